"""Lets the pool of model workers grow while work waits there, and shrink again: looks, and asks for another size.

Several that look at once, one in each HTTP replica, do each other no harm: what they ask for is a size, not a change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from muniment.policies.errors import MunimentError
from muniment.policies.partitioning import Kind
from muniment.policies.pool_size import Look, PoolPolicy, pool_size

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0


class Sizes(Protocol):
    """Whoever makes and ends the workers (``Scaler``). Both block."""

    def worker_sizes(self) -> tuple[int, int]:
        """How many there are to be, and are used."""
        ...

    def want(self, wanted: dict[Kind, int]) -> None:
        """So many from now on."""
        ...


class PoolKeeper:
    """``load``: what the worker of a number says of itself (``ModelWorker.load``)."""

    def __init__(
        self,
        policy: PoolPolicy,
        sizes: Sizes,
        load: Callable[[int], Awaitable[dict[str, float]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._sizes = sizes
        self._load = load
        self._clock = clock
        self._size = 0
        self._looks: list[Look] = []
        self._busy: dict[int, float] = {}
        self._looked_at = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.look()
            except MunimentError as error:
                log.warning("the pool of model workers is left as it is: %s", error.detail)
            except Exception:
                log.exception("looking at the model workers failed in a way nobody foresaw")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Looks once, and asks for another size where it is time."""
        wanted, used = await asyncio.to_thread(self._sizes.worker_sizes)
        if wanted != used or wanted != self._size:
            # What was seen before says nothing of the size that it has now, or is about to have.
            self._size = wanted
            self._looks, self._busy = [], {}
            if wanted != used:
                return
        self._looks.append(await self._seen(used))
        oldest = self._looks[-1].at - self._policy.shrink_after - timedelta(seconds=5)
        self._looks = [look for look in self._looks if look.at >= oldest]
        size = pool_size(self._policy, used, self._looks)
        if size != used:
            log.info("model workers: %d in place of %d", size, used)
            await asyncio.to_thread(self._sizes.want, {"worker": size})

    async def _seen(self, used: int) -> Look:
        answers = await asyncio.gather(*(self._load(number) for number in range(used)), return_exceptions=True)
        now = self._clock()
        waiting = busy = 0.0
        for number, answer in enumerate(answers):
            if isinstance(answer, MunimentError):
                continue  # it restarts, and the others have what it had
            if isinstance(answer, BaseException):
                raise answer
            waiting += answer["waiting_seconds"]
            before = self._busy.get(number)
            if before is not None:
                busy += max(0.0, answer["busy_seconds"] - before) / max(now - self._looked_at, 1e-9)
            self._busy[number] = answer["busy_seconds"]
        self._looked_at = now
        return Look(timedelta(seconds=now), waiting, busy)
