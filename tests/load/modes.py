"""The ways in which load is put on a service: steadily, in bursts, ever more, too much, and for long."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.load import arrivals
from tests.load.analysis import knee, recovered_after, slope
from tests.load.world import Phase, World

#: A sweep ends here if nothing gives in before.
_MOST_STEPS = 16


def schedule(options: argparse.Namespace, rate: float, seconds: float) -> Iterator[float]:
    """Arrivals of the kind that was asked for."""
    chance = random.Random(options.seed)
    if options.arrivals == "constant":
        return arrivals.constant(rate, seconds)
    if options.arrivals == "bursts":
        return arrivals.bursts(rate, seconds, chance)
    return arrivals.poisson(rate, seconds, chance)


def _result(phase: Phase) -> dict[str, Any]:
    return {"rows": phase.recorder.rows(), "seconds": phase.recorder.seconds(), "phase": phase}


async def steady(world: World, options: argparse.Namespace) -> dict[str, Any]:
    """One rate for a while."""
    phase = await world.phase(schedule(options, options.rate, options.seconds), options.seconds)
    return {"summary": phase.summary(), **_result(phase)}


async def sweep(world: World, options: argparse.Namespace) -> dict[str, Any]:
    """Rates that grow until one is not carried; the knee is the last that was."""
    points: list[dict[str, Any]] = []
    rate = options.rate
    for _ in range(_MOST_STEPS):
        phase = await world.phase(schedule(options, rate, options.seconds), options.seconds)
        points.append({"rate": rate, **phase.summary()})
        if knee(points[-1:], options.within_ms) is None:
            break
        rate *= options.step
    return {"points": points, "knee": knee(points, options.within_ms), **_result(phase)}


async def overload(world: World, options: argparse.Namespace) -> dict[str, Any]:
    """Half of the capacity, then twice as much as it, then half again: what is refused, and how soon all is well."""
    swept: dict[str, Any] = {}
    capacity = options.capacity
    if capacity is None:
        swept = await sweep(world, options)
        if swept["knee"] is None:
            return {"points": swept["points"], "failed": f"not even {options.rate} a second were carried"}
        capacity = swept["knee"]["offered_per_s"]
    seconds = options.seconds
    rates = (capacity / 2, capacity * 2, capacity / 2)
    whole = itertools.chain.from_iterable(
        (place * seconds + due for due in schedule(options, rate, seconds)) for place, rate in enumerate(rates)
    )
    phase = await world.phase(whole, 3 * seconds)
    rows = phase.recorder.seconds()
    parts = [rows[round(place * seconds) : round((place + 1) * seconds)] for place in range(3)]
    # The medians of the seconds: in a second there are too few requests for anything further out.
    calm = [row["p50_ms"] for row in parts[0] if "p50_ms" in row]
    limit_ms = max(2 * sorted(calm)[len(calm) // 2] if calm else 0.0, 250.0)
    answered = [row for row in rows if "p50_ms" in row]
    recovery = recovered_after(
        [row["second"] for row in answered], [row["p50_ms"] for row in answered], 2 * seconds, limit_ms
    )
    return {
        "capacity_per_s": capacity,
        "parts": [
            {"part": name, **_sums(part, seconds), "memory_mb": phase.watch.most_mb(n * seconds, (n + 1) * seconds)}
            for n, (name, part) in enumerate(zip(("half before", "twice", "half after"), parts, strict=True))
        ],
        "recovered_after_s": recovery,
        "recovered_within_ms": limit_ms,
        "summary": phase.summary(),
        **({"points": swept["points"], "knee": swept["knee"]} if swept else {}),
        **_result(phase),
    }


def _sums(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    kinds = ("due", "ok", "refused", "unavailable", "late", "error")
    slowest = max((row["p99_ms"] for row in rows if "p99_ms" in row), default=None)
    return {**{kind: sum(row[kind] for row in rows) / seconds for kind in kinds}, "worst_second_p99_ms": slowest}


async def soak(world: World, options: argparse.Namespace) -> dict[str, Any]:
    """A rate for long. In the first half Ray actors are killed; the second half tells whether memory grows."""
    seconds = options.seconds
    phase = await world.phase(schedule(options, options.rate, seconds), seconds, kill_every=options.kill_every)
    grows = slope(*phase.watch.totals(since=seconds / 2))
    kinds = sorted({kind for sample in phase.watch.samples for kind in sample["bytes"]})
    by_kind = {}
    for kind in kinds:
        late = [s for s in phase.watch.samples if s["second"] >= seconds / 2]
        found = slope([s["second"] for s in late], [s["bytes"].get(kind, 0) / 1e6 for s in late])
        by_kind[kind] = None if found is None else asdict(found)
    return {
        "summary": phase.summary(),
        "memory": phase.watch.samples,
        "kills": phase.watch.kills,
        "memory_mb_per_minute": None if grows is None else asdict(grows),
        "memory_mb_per_minute_by_kind": by_kind,
        **_result(phase),
    }


MODES = {"steady": steady, "burst": steady, "sweep": sweep, "overload": overload, "soak": soak}
