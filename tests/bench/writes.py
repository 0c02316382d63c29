"""Durable writes: facts a second that a shard commits, beside the same rows inserted by plain SQLAlchemy.

    python -m tests.bench.writes [--callers 64] [--facts 4000] [--batches 1,20]

Each caller tells a batch of facts and waits until it is committed. Vectors are drawn, not embedded, so that only the
shard's own work is measured: deciding, finding entities and terms, both tiers' indexes, eviction, the answer kept for
its request. The plain program inserts the rows that this left into another SQLite file with the same pragmas, in
transactions of as many writes as the shard's groups had, and does nothing else. In turns; the median round counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import sqlalchemy as sa

from muniment.actors.memory_shard import MemoryShard
from muniment.actors.store import memory_tables as t
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import create_schema, open_engine, sqlite_url, writing
from muniment.actors.store.policy_book import PolicyBook
from tests.bench.logs import DEFAULT_LOG, read_lines
from tests.bench.options import numbers
from tests.bench.report import figure, save, table, write_json

DIMENSION = 384
COMPANY = "bench"
COLUMNS = ("callers", "batch", "facts_per_s", "sqlalchemy_per_s", "ratio", "writes_per_commit")
_WRITER = {"id": "bench", "groups": [], "may_claim_record": True}
_TABLES = (t.facts, t.vectors, t.requests)


def _facts(lines: Sequence[str], start: int, count: int) -> list[dict[str, Any]]:
    source = {"kind": "system_of_record", "id": "bench"}
    numbered = range(start, start + count)
    return [
        {"text": f"{lines[n % len(lines)]} {n}", "source": source, "importance": 0.5, "writer": "bench"}
        for n in numbered
    ]


async def tell(
    shard: MemoryShard, lines: Sequence[str], vectors: np.ndarray, facts: int, callers: int, batch: int
) -> float:
    """Has so many facts committed; facts a second."""
    starts = iter(range(0, facts, batch))

    async def caller() -> None:
        for start in starts:
            request = {"key": f"{batch}-{start}", "hash": b"", "named": False}
            rows = np.take(vectors, range(start, start + batch), axis=0, mode="wrap").tobytes()
            told = _facts(lines, start, batch)
            await shard.remember(
                company=COMPANY, facts=told, vectors=rows, model="drawn", actor=_WRITER, request=request
            )

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return facts / (time.perf_counter() - began)


def insert(engine: sa.Engine, rows: dict[sa.Table, list[dict[str, Any]]], commits: int) -> float:
    """Inserts the rows by SQLAlchemy alone in so many transactions; facts a second."""
    parts = [[found[place::commits] for found in rows.values()] for place in range(commits)]
    began = time.perf_counter()
    for part in parts:
        with writing(engine).begin() as connection:
            for target, some in zip(rows, part, strict=True):
                if some:
                    connection.execute(target.insert(), some)
    return len(rows[t.facts]) / (time.perf_counter() - began)


def measure(lines: Sequence[str], vectors: np.ndarray, facts: int, callers: int, batch: int) -> dict[str, Any]:
    """One round: the shard, then the plain program."""
    with TemporaryDirectory(prefix="muniment-bench-") as name, ExitStack() as stack:
        engine, plain = (open_engine(sqlite_url(Path(name) / f"{what}.db")) for what in ("memory", "plain"))
        control = ControlStore(sqlite_url(Path(name) / "control.db"))
        control.create_company(COMPANY, "bench")
        for closing in (engine.dispose, plain.dispose, control.close):
            stack.callback(closing)
        for one in (engine, plain):
            create_schema(one, t.TABLES)
        shard = MemoryShard(engine, "shard-0", PolicyBook(control))

        async def told() -> tuple[float, dict[str, Any]]:
            return await tell(shard, lines, vectors, facts, callers, batch), await shard.stats()

        ours, stats = asyncio.run(told())
        shard.close()
        with engine.connect() as connection:
            rows = {table: [dict(row._mapping) for row in connection.execute(sa.select(table))] for table in _TABLES}
        theirs = insert(plain, rows, stats["commits"])
    return {"facts_per_s": ours, "sqlalchemy_per_s": theirs, "writes_per_commit": facts / batch / stats["commits"]}


def plot(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Facts a second by facts in one write."""
    made, axes = figure()
    places = np.arange(len(rows))
    for shift, (name, what) in enumerate(
        (("facts_per_s", "muniment"), ("sqlalchemy_per_s", "SQLAlchemy, inserts alone"))
    ):
        colour = ("#2a6f97", "#8d99ae")[shift]
        axes.bar(places + 0.4 * shift - 0.2, [row[name] for row in rows], width=0.38, color=colour, label=what)
    axes.set_xticks(places, [str(row["batch"]) for row in rows])
    axes.set_xlabel(f"facts in one write, {rows[0]['callers']} callers")
    axes.set_ylabel("facts committed a second")
    axes.legend(frameon=False)
    save(made, folder, "writes")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--facts", type=int, default=4_000, help="facts of one round")
    parser.add_argument("--batches", type=numbers, default=[1, 20], help="facts in one write")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write plots into this folder, as PNG")
    args = parser.parse_args()
    lines = read_lines(DEFAULT_LOG)
    vectors = np.random.default_rng(42).standard_normal((2_000, DIMENSION)).astype(np.float32)
    rows = []
    for batch in args.batches:
        rounds = [measure(lines, vectors, args.facts, args.callers, batch) for _ in range(args.rounds)]
        row = {name: round(statistics.median(one[name] for one in rounds), 1) for name in rounds[0]}
        ratio = round(statistics.median(one["facts_per_s"] / one["sqlalchemy_per_s"] for one in rounds), 3)
        rows.append({"callers": args.callers, "batch": batch, **row, "ratio": ratio})
    table("durable writes", rows, COLUMNS)
    write_json(args.out, {"rows": rows})
    if args.plots:
        plot(args.plots, rows)


if __name__ == "__main__":
    main()
