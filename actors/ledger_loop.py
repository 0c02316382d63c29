"""The ledger's one thread of control: batches in, answers out after the commit; between them lapses and housekeeping.

Everything that arrives while one commit runs goes into the next. Callers are other threads; answers are given by
calling back in this one, so a callback must only hand over.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.key_watch import Answer
from muniment.actors.ledger_ops import Op, Proposed, Result
from muniment.actors.metrics import (
    COMMIT_FAILURES,
    COMMIT_SECONDS,
    COMMIT_WRITES,
    QUEUE_LENGTH,
    REFUSED,
    VERDICTS,
    WAITING_POLLS,
    Levels,
    Observe,
    unobserved,
)
from muniment.policies.errors import (
    ConfigurationError,
    Fenced,
    MunimentError,
    Overloaded,
    StoreUnavailable,
    Unavailable,
)

log = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 5.0
_SLICE = 500
_OPENING_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
#: Told the results of a batch, or the one error of all of it.
Done = Callable[[list[Result] | MunimentError], object]


@dataclass(slots=True)
class _Submitted:
    operations: list[tuple[str, Op]]
    done: Done


class LedgerLoop:
    """Owns a ledger and its thread. ``open_ledger`` may fail while the store is down: it is tried until it works."""

    def __init__(
        self,
        open_ledger: Callable[[], DedupeLedger],
        max_queued: int = 20_000,
        max_group: int = 2_048,
        observe: Observe = unobserved,
    ) -> None:
        self._open_ledger = open_ledger
        self._observe = observe
        self._failure: MunimentError | None = Unavailable("the ledger is starting", retry_after_seconds=1)
        self._queue: queue.SimpleQueue[_Submitted | Callable[[DedupeLedger], None] | None] = queue.SimpleQueue()
        self._max_queued = max_queued
        self._max_group = max_group
        self._queued = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._house_at = 0.0
        #: The epoch this instance holds, 0 until it has opened its store.
        self.epoch = 0
        self._parked = 0
        self.groups = 0
        self.operations = 0
        self._thread = threading.Thread(target=self._guarded, name="ledger", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> MunimentError | None:
        """Why nothing is served, or None."""
        return self._failure

    @property
    def parked(self) -> int:
        """The number of polls that wait."""
        return self._parked

    def levels(self) -> Levels:
        """How much waits."""
        yield QUEUE_LENGTH, self._queued, {"queue": "ledger_operations"}
        yield WAITING_POLLS, self._parked, {}

    def submit(self, client: str, operations: Sequence[Op], done: Done) -> None:
        """Queues a client's batch; ``done`` is called in the ledger's thread, after the commit.

        Raises ``Overloaded`` where too much is queued, and what keeps the ledger from serving.
        """
        submitted = _Submitted([(client, op) for op in operations], done)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._queued + len(operations) > self._max_queued:
                self._observe(REFUSED, 1, queue="ledger_operations")
                raise Overloaded("the ledger's queue is full", retry_after_seconds=1)
            self._queued += len(operations)
            self._queue.put(submitted)

    def park(self, client: str, answer: Answer) -> None:
        """Parks a client's poll; ``answer`` is called in the ledger's thread with the keys that stopped being held.

        Raises what keeps the ledger from serving.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._queue.put(lambda ledger: ledger.watch.park(client, answer, ledger.now()))

    def unpark(self, client: str) -> None:
        """Answers the client's poll with what there is, perhaps nothing."""
        self._queue.put(lambda ledger: ledger.watch.unpark(client))

    def close(self) -> None:
        """Commits what is queued and ends the thread."""
        self._stop_serving(Unavailable("the ledger is closed", retry_after_seconds=1))
        self._closed.set()
        self._queue.put(None)
        self._thread.join()

    def _stop_serving(self, failure: MunimentError) -> None:
        with self._lock:
            self._failure = failure

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException:
            self._stop_serving(Unavailable("the ledger's thread ended; see the log"))
            raise

    def _run(self) -> None:
        ledger = self._open()
        if ledger is None:
            return
        self.epoch = ledger.fence.epoch
        with self._lock:
            self._failure = None
        last = False
        while not last:
            group, last = self._gather(ledger)
            if group:
                self._commit(ledger, group)
            ledger.watch.lapse(ledger.now())
            self._parked = ledger.watch.parked
            self._keep_house(ledger)
        ledger.close()

    def _open(self) -> DedupeLedger | None:
        attempt = 0
        while not self._closed.is_set():
            try:
                return self._open_ledger()
            except ConfigurationError as error:
                log.error("the ledger cannot start: %s", error)
                self._stop_serving(error)
                return None
            except sa.exc.SQLAlchemyError as error:
                log.warning("the ledger's store cannot be opened: %s", error)
                self._stop_serving(StoreUnavailable("the ledger's store cannot be opened", retry_after_seconds=2))
            self._closed.wait(_OPENING_PAUSES[min(attempt, len(_OPENING_PAUSES) - 1)])
            attempt += 1
        return None

    def _gather(self, ledger: DedupeLedger) -> tuple[list[_Submitted], bool]:
        """What is queued, at least one thing unless something is due before it comes; and whether this is the end."""
        group: list[_Submitted] = []
        size = 0
        wait: float | None = self._patience(ledger)
        while size < self._max_group:
            try:
                item = self._queue.get(timeout=wait) if wait else self._queue.get_nowait()
            except queue.Empty:
                break
            wait = None
            if item is None:
                return group, True
            if isinstance(item, _Submitted):
                group.append(item)
                size += len(item.operations)
            else:
                item(ledger)
        with self._lock:
            self._queued -= size
        return group, False

    def _patience(self, ledger: DedupeLedger) -> float:
        """How long, in seconds, nothing needs to be done."""
        patience = max(0.0, self._house_at - time.monotonic())
        lapse = ledger.watch.next_lapse()
        if lapse is not None:
            patience = min(patience, max(0.0, (lapse - ledger.now()) / 1e6))
        return patience

    def _commit(self, ledger: DedupeLedger, group: list[_Submitted]) -> None:
        """Applies a group and answers it. A replaced instance refuses this group and all that come."""
        operations = [item for submitted in group for item in submitted.operations]
        lost: MunimentError
        started = time.perf_counter()
        try:
            results = ledger.execute(operations)
        except Fenced as error:
            log.error("this ledger was replaced: %s", error)
            self._stop_serving(error)
            lost, reason = error, "fenced"
        except sa.exc.SQLAlchemyError as error:
            log.error("the ledger's store did not commit: %s", error)
            lost, reason = StoreUnavailable("the store did not commit", retry_after_seconds=1), "store"
        except Exception as error:
            log.exception("a batch failed in a way nobody foresaw")
            lost, reason = MunimentError(f"the ledger failed: {type(error).__name__}"), "internal"
        else:
            self._observe(COMMIT_SECONDS, time.perf_counter() - started, store="effects")
            self._observe(COMMIT_WRITES, len(results), store="effects")
            self._answer(group, results)
            self._tell(results)
            return
        self._observe(COMMIT_FAILURES, 1, store="effects", reason=reason)
        for submitted in group:
            submitted.done(lost)

    def _answer(self, group: list[_Submitted], results: list[Result]) -> None:
        self.groups += 1
        self.operations += len(results)
        start = 0
        for submitted in group:
            end = start + len(submitted.operations)
            submitted.done(results[start:end])
            start = end

    def _tell(self, results: list[Result]) -> None:
        for (verdict, reason), count in Counter(r[:2] for r in results if isinstance(r, Proposed)).items():
            self._observe(VERDICTS, count, verdict=verdict, reason=reason)

    def _keep_house(self, ledger: DedupeLedger) -> None:
        """A slice of housekeeping when it is due; the next one soon where there is more."""
        if time.monotonic() < self._house_at:
            return
        more = False
        try:
            more = ledger.keep_house(_SLICE) >= _SLICE
        except (sa.exc.SQLAlchemyError, Fenced) as error:
            log.warning("housekeeping has to wait: %s", error)
        self._house_at = time.monotonic() + (HOUSEKEEPING_SECONDS / 50 if more else HOUSEKEEPING_SECONDS)
