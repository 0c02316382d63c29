"""Coalescing: concurrent operations of one process to one Ray actor travel in one call.

A call costs about the same whether it carries one operation or a hundred, so few batches are under way, and everything
that arrives meanwhile goes into the next. There is no timer: a lone operation leaves at once. With two under way, the
Ray actor works on one while the answers to the other are read here.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from muniment.policies.errors import Overloaded

R = TypeVar("R")
#: Fewer items than this are not split over two batches.
_WORTH_A_CALL = 16


class Coalescer(Generic[R]):
    """Sends packed items in batches of at most ``max_items`` and about ``max_bytes``, ``max_under_way`` at a time.

    ``send`` gets the items of a batch and answers one result each, in order; a result that is an exception is raised to
    the caller of its item, and what ``send`` raises to all callers of the batch. A larger item than ``max_bytes`` goes
    alone. At most ``max_waiting`` items wait; beyond that ``submit`` raises ``Overloaded``. ``on_orphan`` is told the
    result of an item whose caller went away while it was under way. Belongs to one event loop.
    """

    def __init__(
        self,
        send: Callable[[list[bytes]], Awaitable[Sequence[R | Exception]]],
        max_items: int = 256,
        max_bytes: int = 90_000,
        max_waiting: int = 20_000,
        max_under_way: int = 1,
        on_orphan: Callable[[bytes, R], None] | None = None,
    ) -> None:
        self._send = send
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._on_orphan = on_orphan
        self._max_under_way = max_under_way
        self._waiting: deque[tuple[bytes, asyncio.Future[R]]] = deque()
        self._under_way = 0
        self._batches: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def submit(self, item: bytes) -> R:
        """The result of ``item``. A caller that is cancelled before its item left takes it back."""
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded("too many operations wait to be sent", retry_after_seconds=1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._under_way < self._max_under_way and not self._scheduled:
            # The callers that run in this same turn of the loop join the batch.
            self._scheduled = True
            loop.call_soon(self._start)
        return await future

    def _start(self) -> None:
        """Sends what waits, as far as there is room for batches."""
        self._scheduled = False
        while self._waiting and (room := self._max_under_way - self._under_way) > 0:
            items, futures = self._take(max(_WORTH_A_CALL, math.ceil(len(self._waiting) / room)))
            if items:
                self._under_way += 1
                batch = asyncio.get_running_loop().create_task(self._exchange(items, futures))
                self._batches.add(batch)
                batch.add_done_callback(self._batches.discard)

    def _ended(self) -> None:
        """The next batch leaves before those who got an answer go on, who may have much to do with it."""
        self._under_way -= 1
        self._start()

    def _take(self, limit: int) -> tuple[list[bytes], list[asyncio.Future[R]]]:
        limit = min(limit, self._max_items)
        items: list[bytes] = []
        futures: list[asyncio.Future[R]] = []
        size = 0
        while self._waiting and len(items) < limit:
            item, future = self._waiting[0]
            if items and size + len(item) > self._max_bytes:
                break
            self._waiting.popleft()
            if not future.cancelled():
                items.append(item)
                futures.append(future)
                size += len(item)
        return items, futures

    async def _exchange(self, items: list[bytes], futures: list[asyncio.Future[R]]) -> None:
        try:
            results = await self._send(items)
        except BaseException as error:
            self._ended()
            for future in futures:
                _settle(future, error)
            if not isinstance(error, Exception):
                raise
            return
        self._ended()
        for item, future, result in zip(items, futures, results, strict=True):
            if self._on_orphan is not None and future.cancelled() and not isinstance(result, Exception):
                self._on_orphan(item, result)
            _settle(future, result)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, asyncio.CancelledError):
        future.cancel()
    elif isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
