"""Group commit: one transaction for all writes that arrive while the last commit runs; acknowledged after commit."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from muniment.actors.metrics import (
    COMMIT_FAILURES,
    COMMIT_SECONDS,
    COMMIT_WRITES,
    REFUSED,
    Observe,
    unobserved,
)
from muniment.actors.store.engine import cursor_of, driver_errors, told_by, writing
from muniment.actors.store.tenure import Fence
from muniment.policies.errors import Fenced, MunimentError, Overloaded, StoreUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)
#: How often an idle instance looks whether it was replaced.
_LOOK_SECONDS = 2.0


@dataclass(slots=True)
class Write(Generic[T]):
    """One write: ``body`` runs inside the transaction, ``after`` once it is committed and before the answer."""

    body: Callable[[sa.Connection], T]
    after: Callable[[T], None] | None = None
    future: Future[T] = field(default_factory=Future)


class GroupCommitter:
    """A thread that owns the only writing connection of a store.

    A body that raises is rolled back alone (a savepoint) and its caller gets the error; the rest of the group commits.
    If the commit itself fails, every caller of the group gets ``StoreUnavailable``; where bodies had run, ``on_lost``
    is called, because what they changed in memory may not match the store. ``on_begin`` is called before the first body
    of a group runs, when all its writes have been asked for. A store that was away is found again by the
    next write. While nothing is written the fence is looked at now and then, so that a replaced instance learns of it.
    """

    def __init__(
        self,
        engine: sa.Engine,
        fence: Fence | None = None,
        on_lost: Callable[[], None] | None = None,
        on_begin: Callable[[], None] = lambda: None,
        max_queue: int = 4096,
        max_group: int = 512,
        observe: Observe = unobserved,
    ) -> None:
        self._engine = writing(engine)
        self._fence = fence
        self._on_lost = on_lost
        self._on_begin = on_begin
        self._max_group = max_group
        self._observe = observe
        #: Whether the store answered when it was last asked for anything.
        self.reachable = True
        self._queue: queue.Queue[Write[Any] | None] = queue.Queue(max_queue)
        self.groups = 0
        self.writes = 0
        self.fenced = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, body: Callable[[sa.Connection], T], after: Callable[[T], None] | None = None) -> Future[T]:
        """Queues a write; the future holds ``body``'s answer after commit. Raises ``Overloaded`` when full."""
        write = Write(body, after)
        if self._closed:
            raise StoreUnavailable("the store is closed", retry_after_seconds=1)
        if self.fenced:
            raise Fenced("this instance was replaced")
        try:
            self._queue.put_nowait(write)
        except queue.Full:
            self._observe(REFUSED, 1, queue="memory_writes")
            raise Overloaded("the store's write queue is full", retry_after_seconds=1) from None
        return write.future

    @property
    def queued(self) -> int:
        """How many writes wait."""
        return self._queue.qsize()

    def close(self) -> None:
        """Commits what is queued and ends the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                first = self._queue.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                self._look()
                continue
            if first is None:
                return
            group = [first]
            last = False
            while len(group) < self._max_group:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    last = True
                    break
                group.append(following)
            self._commit([write for write in group if write.future.set_running_or_notify_cancel()])
            if last:
                return

    def _commit(self, group: list[Write[Any]]) -> None:
        done: list[tuple[Write[Any], Any]] = []
        failed: list[tuple[Write[Any], BaseException]] = []
        began = False
        started = time.perf_counter()
        try:
            with self._engine.begin() as connection:
                if self._fence is not None:
                    self._fence.check(connection)
                began = True
                self._on_begin()
                for write in group:
                    try:
                        with _alone(connection):
                            answer = write.body(connection)
                        done.append((write, answer))
                    except MunimentError as error:
                        failed.append((write, error))
        except (sa.exc.SQLAlchemyError, Fenced) as error:
            self._lose(group, error, began)
            return
        except BaseException as error:  # a bug in a body: nobody may wait for ever, and it must be seen
            log.exception("a write failed in a way nobody foresaw")
            self._lose(group, error, began)
            return
        self.reachable = True
        self.groups += 1
        self.writes += len(done)
        self._observe(COMMIT_SECONDS, time.perf_counter() - started, store="memory")
        self._observe(COMMIT_WRITES, len(done), store="memory")
        for write, refusal in failed:
            write.future.set_exception(refusal)
        for write, answer in done:
            try:
                if write.after is not None:
                    write.after(answer)
            except BaseException as error:
                log.exception("what follows a commit failed; memory is rebuilt from the store")
                if self._on_lost is not None:
                    self._on_lost()
                write.future.set_exception(error)
            else:
                write.future.set_result(answer)

    def _look(self) -> None:
        if self._fence is None or self.fenced:
            return
        try:
            with self._engine.connect() as connection:
                up_to_date = self._fence.look(connection)
        except Fenced as error:
            log.error("this instance was replaced: %s", error)
            self._observe(COMMIT_FAILURES, 1, store="memory", reason="fenced")
            self.fenced = True
        except sa.exc.SQLAlchemyError as error:
            log.warning("the store does not answer: %s", told_by(error))
            self.reachable = False
        else:
            self.reachable = True
            if not up_to_date:
                self._commit([])

    def _lose(self, group: list[Write[Any]], error: BaseException, began: bool) -> None:
        reason = "internal"
        if began and self._on_lost is not None:
            self._on_lost()
        if isinstance(error, Fenced):
            self.fenced, reason = True, "fenced"
        elif isinstance(error, sa.exc.SQLAlchemyError):
            reason = "store"
            log.error("the store did not commit: %s", told_by(error))
            self.reachable = not isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError))
            known = "to repeat it with its key is safe" if began else "nothing was stored"
            error = StoreUnavailable(f"the store did not commit; {known}", retry_after_seconds=1)
        self._observe(COMMIT_FAILURES, 1, store="memory", reason=reason)
        for write in group:
            write.future.set_exception(error)


@contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    """What it raises takes back what was written in it, and nothing else of the transaction."""
    cursor = cursor_of(connection)
    with driver_errors(connection.dialect):
        cursor.execute("SAVEPOINT one_write")
        try:
            yield
        except MunimentError:
            cursor.execute("ROLLBACK TO SAVEPOINT one_write")
            cursor.execute("RELEASE SAVEPOINT one_write")
            raise
        cursor.execute("RELEASE SAVEPOINT one_write")
