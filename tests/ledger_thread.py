"""A ledger's loop in a thread of its own, so that a test can go on while it is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_loop import LedgerLoop
from muniment.actors.ledger_ops import Op

_SECONDS_TO_WAIT = 60


class LedgerThread:
    """Called from other threads; answers are futures of theirs."""

    def __init__(self, open_ledger: Callable[[], DedupeLedger], **options: Any) -> None:
        self._events = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._events.run_forever)
        self._thread.start()

        async def make() -> LedgerLoop:
            return LedgerLoop(open_ledger, **options)

        self.loop = self._run(make()).result(_SECONDS_TO_WAIT)

    def operate(self, *ops: Op, client: str = "c") -> Future[Any]:
        """What becomes of a client's batch."""
        return self._run(self.loop.operate(client, ops))

    def answers(self, *ops: Op, client: str = "c") -> Any:
        """The same, as soon as it serves, and when it is there."""
        self.until(lambda: self.loop.failure is None)
        return self.operate(*ops, client=client).result(_SECONDS_TO_WAIT)

    def poll(self, client: str = "c", seconds: float = _SECONDS_TO_WAIT) -> Future[list[bytes]]:
        """The keys that stop being held."""
        return self._run(self.loop.poll(client, seconds))

    def close(self) -> None:
        """Has it commit what is queued, and ends the thread. It may be closed before."""
        if self._thread.is_alive():
            self.close_loop()
            self._events.call_soon_threadsafe(self._events.stop)
            self._thread.join()
            self._events.close()

    def close_loop(self) -> None:
        """Ends the loop, not the thread."""

        async def close() -> None:
            self.loop.close()

        self._run(close()).result(_SECONDS_TO_WAIT)

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Waits for what other threads do."""
        tick = threading.Event()
        for _ in range(_SECONDS_TO_WAIT * 100):
            if condition():
                return
            tick.wait(0.01)
        raise AssertionError("it did not come")

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._events)
