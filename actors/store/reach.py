"""Whether a store answers: so that not every reader waits for one that does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from muniment.policies.errors import StoreUnavailable

T = TypeVar("T")
#: How long a reader waits who can also do without an answer.
PATIENCE_SECONDS = 2.0
#: After a failure nobody asks for so long.
PAUSE_SECONDS = 1.0
#: How long one waits who needs the answer: as long as a statement may take where the store is alive.
ANSWER_SECONDS = 30.0


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What ``function`` asks of a store, in a thread. Raises ``StoreUnavailable`` where the store hangs: its driver
    would wait for ever, and so would the caller."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(function, *arguments), ANSWER_SECONDS)
    except TimeoutError:
        raise StoreUnavailable("the store does not answer", retry_after_seconds=1) from None


class Reach:
    """Asks a store beside the event loop. Belongs to one loop."""

    def __init__(self, threads: Executor | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._again_at = 0.0

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """What ``function`` answers from a thread. Raises ``StoreUnavailable`` soon, or at once where it just did."""
        if self._clock() < self._again_at:
            raise StoreUnavailable("the store did not answer a moment ago", retry_after_seconds=1)
        answer = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        try:
            return await asyncio.wait_for(answer, PATIENCE_SECONDS)
        except StoreUnavailable:
            self._again_at = self._clock() + PAUSE_SECONDS
            raise
        except TimeoutError:
            self._again_at = self._clock() + PAUSE_SECONDS
            raise StoreUnavailable("the store does not answer", retry_after_seconds=1) from None


class SharedReach:
    """Asks a store one thing for many: an answer serves all who asked before the question left. Belongs to one loop."""

    def __init__(self, function: Callable[..., Any], take: Callable[[], tuple[Any, ...]] = tuple) -> None:
        """``take``: the function's arguments, taken in the loop when a question leaves."""
        self._function = function
        self._take = take
        self._reach = Reach()
        self._under_way: asyncio.Task[Any] | None = None
        self._next: asyncio.Task[Any] | None = None

    async def ask(self) -> Any:
        """What the function answers, when it is asked after this call. Raises as ``Reach.ask``, and what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
        return await asyncio.shield(self._next)

    async def _after(self, under_way: asyncio.Task[Any] | None) -> Any:
        if under_way is not None:
            await asyncio.wait([under_way])
        self._under_way, self._next = self._next, None
        return await self._reach.ask(self._function, *self._take())
