"""What a series of measurements says: where the knee is, how steep a line, how soon it was as before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def knee(points: Sequence[Mapping[str, Any]], within_ms: float, share: float = 0.95) -> Mapping[str, Any] | None:
    """The point of the highest load that was still carried, None where none was.

    Carried: at least ``share`` of what was due was answered, and the 99th percentile stayed within ``within_ms``. A
    load above one that was not carried does not count.
    """
    best = None
    for point in sorted(points, key=lambda point: float(point["offered_per_s"])):
        if point["answered_per_s"] < share * point["offered_per_s"] or point["p99_ms"] > within_ms:
            break
        best = point
    return best


@dataclass(frozen=True, slots=True)
class Slope:
    """A line through a series: what it gains a minute, and the half width of the 95 % interval."""

    per_minute: float
    uncertainty: float


def slope(seconds: Sequence[float], values: Sequence[float], block_seconds: float = 20.0) -> Slope | None:
    """The least-squares slope of the blocks' medians; None where there are too few.

    Neighbouring samples resemble each other, so each would claim to be more evidence than it is; blocks hardly do.
    """
    at, value = np.asarray(seconds, float), np.asarray(values, float)
    if len(at) == 0:
        return None
    number = ((at - at[0]) // block_seconds).astype(int)
    blocks = [number == n for n in np.unique(number)]
    x = np.array([at[block].mean() for block in blocks]) / 60
    y = np.array([np.median(value[block]) for block in blocks])
    if len(x) < 4:
        return None
    from scipy.stats import linregress, t

    line = linregress(x, y)
    return Slope(float(line.slope), float(t.ppf(0.975, len(x) - 2) * line.stderr))


def recovered_after(
    seconds: Sequence[float], latencies_ms: Sequence[float], overload_ended: float, limit_ms: float, stays: int = 3
) -> float | None:
    """Seconds from the end of the overload until the first of ``stays`` seconds in a row within ``limit_ms``.

    ``seconds`` and ``latencies_ms``: second by second, when requests were due and how long they took.
    """
    after = [(at, ms) for at, ms in zip(seconds, latencies_ms, strict=True) if at >= overload_ended]
    for place in range(len(after) - stays + 1):
        if all(ms <= limit_ms for _, ms in after[place : place + stays]):
            return after[place][0] - overload_ended
    return None
