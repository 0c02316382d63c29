"""A ledger's process that can be killed, at named points and at any time, and what lies in its store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import sqlalchemy as sa

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Op, Result
from muniment.actors.store import effect_store
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.cluster.ledger_actor import LedgerActor, create_ledger
from muniment.cluster.ledger_handle import LedgerHandle

POINTS = ["before the commit", "after the commit"]
_names = itertools.count()


class DyingLedger(DedupeLedger):
    """Kills its process once, at the point that a file names (``KIND point``), when a batch has such an operation."""

    order: Path

    def execute(self, operations: Sequence[tuple[str, Op]]) -> list[Result]:
        self._kinds = {type(op).__name__ for _, op in operations}
        return super().execute(operations)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with super()._transaction() as connection:
            yield connection
            self._die_at("before the commit")
        self._die_at("after the commit")

    def _die_at(self, point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            kind, wanted = self.order.read_text().split(maxsplit=1)
            if wanted == point and kind in self._kinds:
                self.order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


class DyingActor(LedgerActor):
    """A ledger actor that can be told when to die."""

    def _open(self, url: str, role: str) -> DedupeLedger:
        ledger = DyingLedger(open_engine(url), role)
        ledger.order = Path(url.removeprefix("sqlite+pysqlite:///")).with_name("die")
        ledger._kinds = set()
        return ledger

    async def pid(self) -> int:
        return os.getpid()


class MortalLedger:
    """A ledger that can be killed."""

    def __init__(self, namespace: str, directory: Path) -> None:
        # The workers cannot import this module.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.name = f"dying-ledger-{next(_names)}"
        self.namespace = namespace
        self.order = directory / "die"
        self.engine = open_engine(sqlite_url(directory / "effects.db"))
        url = sqlite_url(directory / "effects.db")
        self.actor = create_ledger(url, 0, namespace=namespace, name=self.name, actor_class=DyingActor)

    def handle(self, deadline_seconds: float = 120) -> LedgerHandle:
        return LedgerHandle(self.name, self.namespace, deadline_seconds=deadline_seconds)

    async def kill(self) -> bool:
        """Whether there was a process to kill."""
        try:
            os.kill(await asyncio.wrap_future(self.actor.pid.remote().future()), signal.SIGKILL)
        except (ray.exceptions.RayActorError, ProcessLookupError):
            return False
        return True

    def kill_at(self, kind: str, point: str) -> None:
        # In one step: the ledger reads it before each commit, and must not find it half written.
        written = self.order.with_suffix(".new")
        written.write_text(f"{kind} {point}")
        written.replace(self.order)

    def trail(self, run: str) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return list(effect_store.decision_log.entries(connection, "acme", run_id=run))

    def verify(self) -> Any:
        with self.engine.connect() as connection:
            return effect_store.decision_log.verify(connection)[1]

    def close(self) -> None:
        ray.kill(self.actor)
        self.engine.dispose()
