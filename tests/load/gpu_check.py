"""Checks and times the models of a worker on a real GPU, in one run of a few minutes; without a GPU it says so.

    python -m tests.load.gpu_check [--out FILE.json]

Checked: vectors and logits of half precision against float32 on the CPU, the same through a worker's batches, and that
a query is answered while bulk ingest fills the queue. Timed: texts and pairs a second by batch, one query alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muniment.actors.cross_encoder import load_cross_encoder
from muniment.actors.embedding import SentenceTransformerEmbedder
from muniment.actors.model_worker import ModelWorker, Priority
from muniment.cluster.actor_classes import open_worker
from muniment.cluster.settings import WorkerSettings
from tests.bench.logs import DEFAULT_LOG, read_lines
from tests.bench.report import stderr, table, write_json

LEAST_COSINE = 0.99
LEAST_CORRELATION = 0.99
QUERY = "Which node lost its power supply?"


def check(what: str, value: float, least: float) -> None:
    """Prints what was found; ends the run where it is too little."""
    stderr.print(f"{what}: {value:.4f} (at least {least})", highlight=False)
    if not value >= least:
        sys.exit(f"{what}: {value:.4f} is below {least}")


async def compare(worker: ModelWorker, texts: Sequence[str]) -> None:
    """Half precision through the worker's batches, beside float32 on the CPU."""
    found = np.frombuffer(await worker.embed(texts), np.float32).reshape(len(texts), -1)
    expected = SentenceTransformerEmbedder(device="cpu").embed(texts)
    check("lowest cosine to float32", float((found * expected).sum(1).min()), LEAST_COSINE)
    logits = np.array(await worker.rerank(QUERY, texts))
    expected = np.asarray(load_cross_encoder("bundled", "cpu").predict([(QUERY, text) for text in texts]))
    check("correlation of logits with float32", float(np.corrcoef(logits, expected)[0, 1]), LEAST_CORRELATION)


async def rates(worker: ModelWorker, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Texts and pairs a second, by how many are asked for at once."""
    rows = []
    for count in (1, 32, 256, 2_048):
        asked = [texts[i % len(texts)] for i in range(count)]
        row: dict[str, Any] = {"at_once": count}
        for name, call in (
            ("texts_per_s", lambda asked=asked: worker.embed(asked, Priority.INGEST)),
            ("pairs_per_s", lambda asked=asked: worker.rerank(QUERY, asked)),
        ):
            await call()
            times = []
            for _ in range(5):
                started = time.perf_counter()
                await call()
                times.append(time.perf_counter() - started)
            row[name] = count / float(np.median(times))
        rows.append(row)
    return rows


async def query_under_load(worker: ModelWorker, texts: Sequence[str]) -> dict[str, float]:
    """The p50 of one query, alone and while bulk ingest fills the queue."""

    async def p50() -> float:
        times = []
        for _ in range(30):
            started = time.perf_counter()
            await worker.embed([QUERY])
            times.append((time.perf_counter() - started) * 1000)
        return float(np.median(times))

    alone = await p50()
    bulk = asyncio.create_task(worker.embed([texts[i % len(texts)] for i in range(15_000)], Priority.INGEST))
    await asyncio.sleep(0)
    busy = await p50()
    waited = not bulk.done()
    await bulk
    return {"query_p50_ms": alone, "query_p50_ms_under_ingest": busy, "ingest_outlasted_the_queries": float(waited)}


async def run() -> dict[str, Any]:
    """Everything; the result."""
    worker = open_worker(WorkerSettings(device="cuda"))
    models = await worker.describe()
    texts = read_lines(DEFAULT_LOG)[::10]
    await compare(worker, texts[:100])
    rows = await rates(worker, texts)
    return {"models": models, "rows": rows, **await query_under_load(worker, texts)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.load.gpu_check", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: nothing was checked")
        return
    stderr.print(f"on {torch.cuda.get_device_name()}, {torch.version.cuda}", highlight=False)
    result = asyncio.run(run())
    table("by batch", result["rows"], ("at_once", "texts_per_s", "pairs_per_s"))
    stderr.print({name: value for name, value in result.items() if name.startswith("query")})
    write_json(options.out, result)


if __name__ == "__main__":
    main()
