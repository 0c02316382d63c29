"""Starts each task when it is due, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Driven:
    """How the generator itself did: whether it kept up with its own schedule."""

    started: int = 0
    latest_ms: float = 0.0
    most_outstanding: int = 0


async def drive(
    schedule: Iterable[tuple[float, T]],
    play: Callable[[T, float], Coroutine[Any, Any, None]],
    clock: Callable[[], float] = time.perf_counter,
) -> Driven:
    """Plays every ``(due, task)`` of the schedule, in order of time; returns when all have ended.

    ``due`` is in seconds from the start; ``play`` gets the task and when it was due, on the same clock. It must
    bound its own time, and what it raises ends the run.
    """
    start = clock()
    driven = Driven()
    async with asyncio.TaskGroup() as group:
        outstanding: set[asyncio.Task[None]] = set()
        for due, task in schedule:
            # Also where it is late already: the answers that came meanwhile have to be read.
            await asyncio.sleep(max(0.0, start + due - clock()))
            driven.latest_ms = max(driven.latest_ms, (clock() - start - due) * 1000)
            started = group.create_task(play(task, start + due))
            outstanding.add(started)
            started.add_done_callback(outstanding.discard)
            driven.started += 1
            driven.most_outstanding = max(driven.most_outstanding, len(outstanding))
    return driven
