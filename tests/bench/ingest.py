"""Ingest: facts a second through the service, beside what the encoder alone could take in.

    python -m tests.bench.ingest --facts 2000

Facts are lines of a real log, told in batches by a few callers at once; each batch is embedded, decided and committed
before it is answered. The limit is the same encoder on the same texts in this process, one thread, without anything
else; it is taken before and after, while the service idles.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muniment.actors.onnx_models import OnnxEmbedder, build
from muniment.cluster.settings import load
from tests.bench.logs import DEFAULT_LOG, read_lines
from tests.bench.memory import progress
from tests.bench.report import figure, save, table, write_json
from tests.bench.service import service

COLUMNS = ("facts", "callers", "batch", "facts_per_s", "encoder_limit_per_s", "ratio")


def limit_per_s(encoder: OnnxEmbedder, texts: Sequence[str]) -> float:
    """Texts a second that the encoder takes by itself."""
    started = time.perf_counter()
    for start in range(0, len(texts), 64):
        encoder.embed(texts[start : start + 64])
    return len(texts) / (time.perf_counter() - started)


async def tell(client: Any, texts: Sequence[str], callers: int, batch: int) -> float:
    """Facts a second, all of them acknowledged."""
    parts = iter([texts[start : start + batch] for start in range(0, len(texts), batch)])
    with progress("storing", len(texts)) as advance:

        async def caller() -> None:
            for part in parts:
                told = [{"text": text, "source": {"kind": "system_of_record", "id": "log"}} for text in part]
                answer = await client.remember(told)
                assert all(result["outcome"] == "stored" for result in answer["results"])
                advance(len(part))

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return len(texts) / (time.perf_counter() - started)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The result."""
    lines = read_lines(options.log)
    texts = [f"{lines[i % len(lines)]} #{i}" for i in range(options.facts)]
    encoder = OnnxEmbedder(build("embedder", "bundled", load().workers.cache_dir))
    sample = texts[: min(len(texts), 500)]
    with service() as running:
        async with running.client("handle") as client:
            await client.remember([{"text": "first", "source": {"kind": "system_of_record", "id": "log"}}])
            limits = [limit_per_s(encoder, sample)]
            rate = await tell(client, texts, options.callers, options.batch)
            limits.append(limit_per_s(encoder, sample))
    limit = sum(limits) / len(limits)
    return {
        "facts": len(texts),
        "callers": options.callers,
        "batch": options.batch,
        "facts_per_s": rate,
        "encoder_limit_per_s": limit,
        "ratio": rate / limit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest", description=__doc__.split("\n")[0])
    parser.add_argument("--facts", type=int, default=2_000, help="facts told")
    parser.add_argument("--callers", type=int, default=4, help="batches under way at a time")
    parser.add_argument("--batch", type=int, default=100, help="facts in a batch")
    parser.add_argument("--log", type=Path, default=DEFAULT_LOG, help="a log of BlueGene/L")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    options = parser.parse_args()
    result = asyncio.run(run(options))
    table("ingest", [result], COLUMNS)
    write_json(options.out, result)
    if options.plots:
        made, axes = figure(5)
        bars = axes.bar(
            ["service", "encoder alone"], [result["facts_per_s"], result["encoder_limit_per_s"]], color="#2a6f97"
        )
        axes.bar_label(bars, fmt="%.0f", padding=2)
        axes.set_ylabel("facts a second (higher is better)")
        axes.set_title("Ingest, durable", loc="left")
        save(made, options.plots, "ingest")


if __name__ == "__main__":
    main()
