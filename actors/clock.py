"""Time as the actors see it: aware UTC from one place, so that tests can move it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def system_clock() -> datetime:
    """The machine's time, aware and in UTC."""
    return datetime.now(UTC)


class ForwardClock:
    """A clock that never runs backwards: not when the wall clock is set back, nor, given ``floor``, across a restart.

    It returns the wall clock, or what the monotonic clock has added to the latest time known, whichever is later.
    """

    def __init__(
        self,
        floor: datetime | None = None,
        wall: Clock = system_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        start = wall()
        self._base = max(start, floor) if floor is not None else start
        self._started = monotonic()

    def __call__(self) -> datetime:
        elapsed = timedelta(seconds=self._monotonic() - self._started)
        now = max(self._wall(), self._base + elapsed)
        self._base, self._started = now, self._monotonic()
        return now
