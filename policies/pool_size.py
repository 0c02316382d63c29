"""How many model workers there should be, from what waited for them lately.

One more when every look of some seconds found work waiting, one fewer when none of a minute did and those that are left
would not be busy. Growing and shrinking have thresholds and spans of their own (hysteresis), and each change is judged
by what was seen after it, so that the pool does not swing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """Bounds and thresholds. Times of waiting are in seconds of work for each worker."""

    least: int
    most: int
    grow_above: float = 0.2
    grow_after: timedelta = timedelta(seconds=3)
    shrink_below: float = 0.02
    shrink_after: timedelta = timedelta(seconds=60)
    #: How busy those that are left may be after one has gone, as a share of their time.
    busy_at_most: float = 0.6

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 ≤ least ≤ most, not {self.least} and {self.most}")
        if not 0 <= self.shrink_below < self.grow_above:
            raise ValueError("a pool shrinks at less than it grows at")


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of the pool at a time: seconds of work that waited at all workers together, and how many workers'
    time was taken since the look before (1.5: one and a half)."""

    at: timedelta
    waiting_seconds: float
    busy: float


def pool_size(policy: PoolPolicy, size: int, looks: Sequence[Look]) -> int:
    """How many workers there should be: ``size``, or one more or fewer, within the bounds.

    ``looks``: since the pool has had its size, oldest first.
    """
    if not policy.least <= size <= policy.most:
        return min(max(size, policy.least), policy.most)
    waited = _since(looks, policy.grow_after)
    if size < policy.most and waited and all(look.waiting_seconds / size > policy.grow_above for look in waited):
        return size + 1
    idle = _since(looks, policy.shrink_after)
    if size > policy.least and idle and all(look.waiting_seconds / size < policy.shrink_below for look in idle):
        busy = sum(look.busy for look in idle) / len(idle)
        return size - 1 if busy <= policy.busy_at_most * (size - 1) else size
    return size


def _since(looks: Sequence[Look], span: timedelta) -> Sequence[Look]:
    """The looks of the last ``span``; none where the pool has not been looked at for so long."""
    if not looks or looks[-1].at - looks[0].at < span:
        return ()
    return [look for look in looks if looks[-1].at - look.at <= span]
