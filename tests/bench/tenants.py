"""Many companies in one store, few of them active: what a recall takes, and how much memory the shard does.

    python -m tests.bench.tenants                             10,000 companies, 500 active, beside one alone
    python -m tests.bench.tenants --tenants 100000 --active 1000 --facts 10
    python -m tests.bench.tenants --large 200000              and one of so many facts beside one of 5,000

Recalls go through real shard actors, a few callers at a time, over active companies at random; now and then a company
comes that nobody asked for in a while. ``warm`` recalls find their company loaded, ``cold`` ones load it first.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from muniment.actors.router import Router
from muniment.cluster.settings import Settings
from tests.bench.filling import cpu_seconds, filled, resident_mb, router_of, shard_pids
from tests.bench.memory import progress
from tests.bench.report import figure, save, stderr, table, write_json

COLUMNS: Final = (
    "tenants", "active", "facts", "recalls", "p50_ms", "p99_ms", "cold", "cold_p50_ms", "cold_p99_ms",
    "shard_mb", "loaded",
)  # fmt: skip
LARGE_COLUMNS: Final = ("facts", "recalls", "p50_ms", "p99_ms", "loaded_s")
_USUAL_FACTS: Final = 5_000
_LONGEST_REST_SECONDS: Final = 900


async def asked(router: Router, company: str, text: str) -> float:
    """Milliseconds of one recall."""
    started = time.perf_counter()
    answer = await router.recall(company, text, 5, "fast", None, {})
    assert answer["results"]
    return (time.perf_counter() - started) * 1000


async def drive(
    router: Router, active: Sequence[str], passing: Sequence[str], texts: Sequence[str], callers: int, seconds: float
) -> tuple[list[float], list[float]]:
    """The times of warm and of cold recalls: all active companies are asked once, then any of them for so long."""
    warm: list[float] = []
    cold: list[float] = []
    first = iter(active)
    chance = random.Random(1)

    async def warming() -> None:
        for company in first:
            cold.append(await asked(router, company, chance.choice(texts)))

    await asyncio.gather(*(warming() for _ in range(callers)))
    end = time.perf_counter() + seconds
    strangers = iter(passing)

    async def caller() -> None:
        while time.perf_counter() < end:
            stranger = next(strangers, None) if chance.random() < 0.01 else None
            if stranger is None:
                warm.append(await asked(router, chance.choice(active), chance.choice(texts)))
            else:
                cold.append(await asked(router, stranger, chance.choice(texts)))

    await asyncio.gather(*(caller() for _ in range(callers)))
    return warm, cold


def percentile(times: Sequence[float], share: float) -> float:
    """A percentile, nothing of nothing."""
    return float(np.percentile(times, share)) if times else float("nan")


def measure(tenants: int, active: int, options: argparse.Namespace) -> dict[str, Any]:
    """The row of one store."""
    names = [f"tenant-{number:06}" for number in range(tenants)]
    with filled([(names, options.facts)], loaded_bytes=options.loaded_mb * 1024**2) as (settings, texts):

        async def main(settings: Settings) -> dict[str, Any]:
            router = router_of(settings)
            times = await drive(router, names[:active], names[active:], texts, options.callers, options.seconds)
            warm, cold = times
            (pid,) = shard_pids(settings)
            loaded = (await router._shard_of(names[0]).stats())["tenants_loaded"]
            return {
                "tenants": tenants,
                "active": active,
                "facts": options.facts,
                "recalls": len(warm),
                "p50_ms": percentile(warm, 50),
                "p99_ms": percentile(warm, 99),
                "cold": len(cold),
                "cold_p50_ms": percentile(cold, 50),
                "cold_p99_ms": percentile(cold, 99),
                "shard_mb": resident_mb(pid),
                "loaded": loaded,
            }

        return asyncio.run(main(settings))


async def rested(pid: int) -> None:
    """Until a shard has done what it does in the background: until its processor's time hardly grows."""
    end = time.perf_counter() + _LONGEST_REST_SECONDS
    while time.perf_counter() < end:
        before = cpu_seconds(pid)
        await asyncio.sleep(2)
        if cpu_seconds(pid) - before < 0.2:
            return
    raise TimeoutError("the shard does not come to rest")


def measure_large(facts: int, recalls: int) -> list[dict[str, Any]]:
    """The rows of a company of so many facts and of one of 5,000, loaded in one shard and asked in turn."""
    sizes = {"large": facts, "usual": min(_USUAL_FACTS, facts)}
    groups = [([name], size) for name, size in sizes.items()]
    with filled(groups, l2_capacity=facts) as (settings, texts):

        async def main() -> list[dict[str, Any]]:
            router, chance = router_of(settings), random.Random(1)
            loaded = {name: await asked(router, name, texts[0]) / 1000 for name in sizes}
            (pid,) = shard_pids(settings)
            with progress("waiting for the index", 1) as advance:
                await rested(pid)
                advance(1)
            times: dict[str, list[float]] = {name: [] for name in sizes}
            for _ in range(recalls):
                for name, found in times.items():
                    found.append(await asked(router, name, chance.choice(texts)))
            return [
                {
                    "facts": sizes[name],
                    "recalls": recalls,
                    "p50_ms": percentile(found, 50),
                    "p99_ms": percentile(found, 99),
                    "loaded_s": loaded[name],
                }
                for name, found in times.items()
            ]

        return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tenants", description=__doc__.split("\n")[0])
    parser.add_argument("--tenants", type=int, default=10_000, help="companies in the store")
    parser.add_argument("--active", type=int, default=500, help="companies that are asked for")
    parser.add_argument("--facts", type=int, default=20, help="facts of each company")
    parser.add_argument("--callers", type=int, default=4, help="recalls under way at a time")
    parser.add_argument("--seconds", type=float, default=10, help="how long active companies are asked for")
    parser.add_argument("--loaded-mb", type=int, default=2048, help="memory that loaded companies may take")
    parser.add_argument("--large", type=int, metavar="FACTS", help="also one company of so many facts")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    options = parser.parse_args()
    alone = measure(1, 1, options)
    many = measure(options.tenants, options.active, options)
    ratio = many["p50_ms"] / alone["p50_ms"]
    table("recalls over companies", [alone, many], COLUMNS)
    stderr.print(f"p50 of many over one: {ratio:.2f}")
    result: dict[str, Any] = {"rows": [alone, many], "p50_ratio": ratio}
    if options.large is not None:
        large = measure_large(options.large, recalls=300)
        table("recalls of a large company and of a usual one", large, LARGE_COLUMNS)
        result |= {"large": large, "large_p50_ratio": large[0]["p50_ms"] / large[1]["p50_ms"]}
        stderr.print(f"p50 of the large one over the usual one: {result['large_p50_ratio']:.2f}")
    write_json(options.out, result)
    if options.plots:
        made, axes = figure(5)
        labels = [f"{row['tenants']:,} ({row['active']:,} active)" for row in (alone, many)]
        bars = axes.bar(labels, [row["p50_ms"] for row in (alone, many)], color="#2a6f97")
        axes.bar_label(bars, fmt="%.1f", padding=2)
        axes.set_ylabel("p50 of a recall, ms (lower is better)")
        axes.set_title("Companies in the store", loc="left")
        save(made, options.plots, "tenants")


if __name__ == "__main__":
    main()
