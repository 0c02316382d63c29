"""Group commit: one transaction for all writes that arrive while the last commit runs; acknowledged after commit."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from muniment.actors.store.engine import Fence, writing
from muniment.policies.errors import Fenced, MunimentError, Overloaded, StoreUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Write(Generic[T]):
    """One write: ``body`` runs inside the transaction, ``after`` once it is committed and before the answer."""

    body: Callable[[sa.Connection], T]
    after: Callable[[T], None] | None = None
    future: Future[T] = field(default_factory=Future)


class GroupCommitter:
    """A thread that owns the only writing connection of a store.

    A body that raises is rolled back alone (a savepoint) and its caller gets the error; the rest of the group commits.
    If the commit itself fails, every caller of the group gets ``StoreUnavailable`` and ``on_lost`` is called, because
    what bodies changed in memory may no longer match the store.
    """

    def __init__(
        self,
        engine: sa.Engine,
        fence: Fence | None = None,
        on_lost: Callable[[], None] | None = None,
        max_queue: int = 4096,
        max_group: int = 512,
    ) -> None:
        self._engine = writing(engine)
        self._fence = fence
        self._on_lost = on_lost
        self._max_group = max_group
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
            raise Overloaded("the store's write queue is full", retry_after_seconds=1) from None
        return write.future

    def close(self) -> None:
        """Commits what is queued and ends the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            first = self._queue.get()
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
        try:
            with self._engine.begin() as connection:
                if self._fence is not None:
                    self._fence.check(connection)
                for write in group:
                    try:
                        with connection.begin_nested():
                            done.append((write, write.body(connection)))
                    except MunimentError as error:
                        failed.append((write, error))
        except (sa.exc.SQLAlchemyError, Fenced) as error:
            self._lose(group, error)
            return
        except BaseException as error:  # a bug in a body: nobody may wait for ever, and it must be seen
            log.exception("a write failed in a way nobody foresaw")
            self._lose(group, error)
            return
        self.groups += 1
        self.writes += len(done)
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

    def _lose(self, group: list[Write[Any]], error: BaseException) -> None:
        self.fenced = self.fenced or isinstance(error, Fenced)
        if self._on_lost is not None:
            self._on_lost()
        if isinstance(error, sa.exc.SQLAlchemyError):
            log.error("the store did not commit: %s", error)
            error = StoreUnavailable("the store did not commit; nothing was stored", retry_after_seconds=1)
        for write in group:
            write.future.set_exception(error)
