"""A ledger in this process that is replaced again and again, while those before it go on with what they had."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Confirm, Forget, Forgotten, Op, Propose, Proposed, Release, Renew, Settled
from muniment.actors.store import effect_store
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.policies.errors import MunimentError, Unavailable
from tests.ledger_thread import LedgerThread


class ReplacedLedger:
    """Has the verbs of a handle. Whose call was under way at a replacement does not learn what became of it."""

    def __init__(self, folder: Path) -> None:
        self._url = sqlite_url(folder / "effects.db")
        self._old: list[threading.Thread] = []
        self._start()

    def _start(self) -> None:
        self._gone = asyncio.Event()
        self._ledger = LedgerThread(lambda: DedupeLedger(open_engine(self._url), "ledger-0"))

    def replace(self) -> None:
        """Another one takes over; the old one commits what it can, which is nothing."""
        old, gone = self._ledger, self._gone
        self._start()
        gone.set()
        self._old.append(threading.Thread(target=old.close))
        self._old[-1].start()

    async def propose(self, op: Propose, wait_seconds: float) -> Proposed:
        """See ``LedgerHandle``."""
        return Proposed(*await self._call(op))

    async def settle(self, op: Confirm | Renew | Release) -> Settled:
        """See ``LedgerHandle``."""
        return Settled(*await self._call(op))

    async def forget(self, op: Forget) -> Forgotten:
        """See ``LedgerHandle``."""
        return Forgotten(*await self._call(op))

    async def health(self) -> dict[str, Any]:
        """See ``LedgerHandle``."""
        return {"failure": self._ledger.loop.failure}

    async def _call(self, op: Op) -> Any:
        answer = asyncio.wrap_future(self._ledger.operate(op))
        gone = asyncio.create_task(self._gone.wait())
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        if not gone.cancel():
            answer.cancel()
            raise Unavailable("it was replaced")
        (result,) = await answer
        if isinstance(result, MunimentError):
            raise result
        return result

    def close(self) -> Any:
        """Ends all of them; what is wrong with the decision log, or None."""
        self._ledger.close()
        for thread in self._old:
            thread.join()
        engine: sa.Engine = open_engine(self._url)
        with engine.connect() as connection:
            wrong = effect_store.decision_log.verify(connection)[1]
        engine.dispose()
        return wrong
