"""The same companies on one shard and on several: how long a search takes, and how many recalls there are a second.

    python -m tests.bench.shards --shards 1,8

Shards are processes; more of them than cores only pay where one would have too much to remember, and should cost
nothing. Several share one store, so this needs PostgreSQL, which is started here.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from muniment.cluster.settings import Settings
from tests.bench.filling import filled, resident_mb, router_of, shard_pids
from tests.bench.options import numbers
from tests.bench.report import figure, save, stderr, table, write_json
from tests.bench.rivals import Absent, postgres_server
from tests.bench.tenants import percentile

COLUMNS: Final = ("shards", "companies", "facts", "search_p50_ms", "search_p99_ms", "recalls_per_s", "shards_mb")


def measure(shards: int, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of so many shards."""
    names = [f"company-{number:02}" for number in range(options.companies)]
    with filled([(names, options.facts)], url=url, shards=shards) as (settings, texts):

        async def main(settings: Settings) -> dict[str, Any]:
            router = router_of(settings)
            for name in names:
                await router.recall(name, texts[0], 5, "fast", None, {})
            turns, searches = zip(itertools.cycle(names), itertools.cycle(texts), strict=True), []
            started = time.perf_counter()

            async def caller() -> None:
                while time.perf_counter() < started + options.seconds:
                    name, text = next(turns)
                    searches.append((await router.recall(name, text, 5, "fast", None, {}))["timings_ms"]["search"])

            await asyncio.gather(*(caller() for _ in range(options.callers)))
            return {
                "shards": shards,
                "companies": len(names),
                "facts": options.facts,
                "search_p50_ms": percentile(searches, 50),
                "search_p99_ms": percentile(searches, 99),
                "recalls_per_s": len(searches) / (time.perf_counter() - started),
                "shards_mb": sum(map(resident_mb, shard_pids(settings))),
            }

        return asyncio.run(main(settings))


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of shards, each on a server of its own; none where there is no PostgreSQL."""
    rows = []
    for shards in options.shards:
        with TemporaryDirectory(prefix="muniment-bench-", ignore_cleanup_errors=True) as folder:
            try:
                with postgres_server(Path(folder)) as port:
                    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
                    rows.append(measure(shards, url, options))
            except Absent as error:
                stderr.print(f"left out: {error}")
                return []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.shards", description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=numbers, default=[1, 8])
    parser.add_argument("--companies", type=int, default=32)
    parser.add_argument("--facts", type=int, default=2_000, help="facts of each company")
    parser.add_argument("--callers", type=int, default=4, help="recalls under way at a time")
    parser.add_argument("--seconds", type=float, default=8, help="how long companies are asked")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    options = parser.parse_args()
    rows = measure_all(options)
    if rows:
        table("searches over shards", rows, COLUMNS)
        stderr.print(
            f"search p50 of the last over the first: {rows[-1]['search_p50_ms'] / rows[0]['search_p50_ms']:.2f}"
        )
    write_json(options.out, {"rows": rows})
    if options.plots and rows:
        made, axes = figure(5)
        bars = axes.bar([str(row["shards"]) for row in rows], [row["search_p50_ms"] for row in rows], color="#2a6f97")
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_xlabel("shards")
        axes.set_ylabel("p50 of a search, ms (lower is better)")
        axes.set_title("The same companies on more shards", loc="left")
        save(made, options.plots, "shards")


if __name__ == "__main__":
    main()
