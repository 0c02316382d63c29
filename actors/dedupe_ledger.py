"""The ledger: it alone decides the reservations of its keys, so that of a hundred proposals exactly one wins (rule 7).

It keeps no state but the clock and who waits: the store is the truth, each batch of operations reads the rows it
needs, applies the table of ``policies/reservation.py`` in order, and writes what changed in one transaction. So a
restart reads nothing, and memory does not grow with history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from muniment.actors.clock import Clock, ForwardClock
from muniment.actors.key_watch import KeyWatch
from muniment.actors.ledger_batch import Batch
from muniment.actors.ledger_ops import Op, Propose, Result, partition_of
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.effect_store import TABLES, EffectStore, KeyRow
from muniment.actors.store.engine import create_schema, driver_errors, writing
from muniment.actors.store.tenure import Fence
from muniment.policies.errors import Moved, MunimentError
from muniment.policies.fingerprint import key_partition
from muniment.policies.reservation import State

#: A client that has not polled for so long is gone. Its polls last less than half of it.
SILENT_MICROSECONDS = 60_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DedupeLedger:
    """One ledger. All methods belong to one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        role: str,
        make_clock: Callable[[datetime | None], Clock] = ForwardClock,
        watch: KeyWatch | None = None,
    ) -> None:
        """Takes over ``role`` ("ledger-0") in the store; whoever held it is fenced off.

        ``make_clock``: a clock that never shows a time before its argument, the latest this or any ledger has acted at.
        """
        create_schema(engine, TABLES)
        self.fence = Fence(engine, role)
        self.fence.on_moved = self._moved
        self.store = EffectStore(engine.dialect, role)
        self.watch = watch or KeyWatch()
        self._engine = writing(engine)
        self._connection: sa.Connection | None = None
        self._make_clock = make_clock
        with engine.connect() as connection:
            self._latest = self.store.read_clock(connection)
        self._clock = make_clock(_EPOCH + timedelta(microseconds=self._latest) if self._latest else None)

    def now(self) -> int:
        """The ledger's time, in microseconds; it never runs backwards."""
        return microseconds(self._clock())

    def execute(self, operations: Sequence[tuple[str, Op]]) -> list[Result]:
        """Applies the operations of the named clients in order, commits, and answers each.

        An operation that is refused gets its error and changes nothing; the others go on. One about a key that another
        ledger has gets ``Moved``. Raises ``Fenced`` where a newer instance took over,
        ``sqlalchemy.exc.SQLAlchemyError`` where the store did not commit.
        """
        with self._transaction() as connection:
            now = self.now()
            batch = Batch(self.store, connection, now, self._latest)
            batch.load([op for _, op in operations])
            results = [self._apply(batch, client, op) for client, op in operations]
            if batch.flush():
                self.store.save_clock(connection, max(now, batch.last_fence))
        self._latest = max(self._latest, batch.last_fence)
        self._tell(batch.changed)
        return results

    def _apply(self, batch: Batch, client: str, op: Op) -> Result:
        partition = partition_of(op)
        if partition is not None and not self.fence.has_partition(partition):
            return Moved(f"{self.fence.role} does not have this key")
        try:
            result = batch.apply(op)
            if result is None and isinstance(op, Propose):
                self.watch.register(client, op.key, batch.held_until(op.key), batch.now)
        except MunimentError as error:
            return error
        return result

    def _tell(self, changed: dict[bytes, KeyRow]) -> None:
        """After the commit: who waits for these keys learns what became of them."""
        for key, row in changed.items():
            if key in self.watch:
                if row.state is State.RESERVED and row.ends_at is not None:
                    self.watch.held_until(key, row.ends_at)
                else:
                    self.watch.free(key)

    def keep_house(self, limit: int) -> int:
        """Deletes at most ``limit`` rows per table that are over since 24 h, and forgets clients that are gone."""
        self.watch.drop_silent(self.now() - SILENT_MICROSECONDS)
        with self._transaction() as connection:
            now = self.now()
            gone = self.store.retire(connection, now, limit)
            if gone:
                # Else a ledger that restarts with its clock set back would miss rows that are not over for it.
                self.store.save_clock(connection, max(now, self._latest))
        return gone

    def _moved(self, connection: sa.Connection, changed: frozenset[int]) -> None:
        """Partitions came or went. What came was decided about at times, and under tokens, after which this ledger
        goes on; who waits for a key of them is to try again, and is sent on where it went."""
        self._latest = max(self._latest, self.store.read_clock(connection))
        self._clock = self._make_clock(max(self._clock(), _EPOCH + timedelta(microseconds=self._latest)))
        self.watch.free_those(lambda key: key_partition(key) in changed)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction on the ledger's one connection, checked against the fence, committed at its end."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            with driver_errors(self._engine.dialect), self._connection.begin():
                self.fence.check(self._connection)
                yield self._connection
        except sa.exc.SQLAlchemyError:
            self.close()
            raise

    def close(self) -> None:
        """Gives the connection back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
