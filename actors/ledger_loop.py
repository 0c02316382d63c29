"""The ledger's one thread of control, an event loop's: batches in, answers out after the commit; between them lapses
and housekeeping.

Work on the ledger is done in that thread itself, which it blocks, because handing it to another one and back would take
longer than a small batch does. Everything that arrives while one commit runs goes into the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from muniment.actors.dedupe_ledger import DedupeLedger
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
from muniment.actors.store.engine import told_by
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


@dataclass(slots=True)
class _Submitted:
    operations: list[tuple[str, Op]]
    done: asyncio.Future[list[Result]]

    def answer(self, results: list[Result]) -> None:
        """Unless the caller went away."""
        if not self.done.done():
            self.done.set_result(results)

    def refuse(self, error: MunimentError) -> None:
        """Unless the caller went away."""
        if not self.done.done():
            self.done.set_exception(error)


class LedgerLoop:
    """Owns a ledger. All of it belongs to the event loop that it is made in; its properties may be read elsewhere.

    ``open_ledger`` runs in another thread, and may fail while the store is down: it is tried until it works.
    """

    def __init__(
        self,
        open_ledger: Callable[[], DedupeLedger],
        max_queued: int = 20_000,
        max_group: int = 2_048,
        observe: Observe = unobserved,
    ) -> None:
        self._observe = observe
        self._failure: MunimentError | None = Unavailable("the ledger is starting", retry_after_seconds=1)
        self._ledger: DedupeLedger | None = None
        self._queue: deque[_Submitted] = deque()
        self._max_queued = max_queued
        self._max_group = max_group
        self._queued = 0
        self._turn: asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._house_at = 0.0
        #: The epoch this instance holds, 0 until it has opened its store.
        self.epoch = 0
        self.groups = 0
        self.operations = 0
        self.event_loop = asyncio.get_running_loop()
        self._opening = self.event_loop.create_task(self._open(open_ledger))

    @property
    def failure(self) -> MunimentError | None:
        """Why nothing is served, or None."""
        return self._failure

    @property
    def parked(self) -> int:
        """The number of polls that wait."""
        return self._ledger.watch.parked if self._ledger is not None else 0

    def levels(self) -> Levels:
        """How much waits."""
        yield QUEUE_LENGTH, self._queued, {"queue": "ledger_operations"}
        yield WAITING_POLLS, self.parked, {}

    async def operate(self, client: str, operations: Sequence[Op]) -> list[Result]:
        """What became of a client's batch, after the commit.

        Raises ``Overloaded`` where too much is queued, what keeps the ledger from serving, and why it did not commit.
        """
        self._serving()
        if self._queued + len(operations) > self._max_queued:
            self._observe(REFUSED, 1, queue="ledger_operations")
            raise Overloaded("the ledger's queue is full", retry_after_seconds=1)
        submitted = _Submitted([(client, op) for op in operations], self.event_loop.create_future())
        self._queued += len(operations)
        self._queue.append(submitted)
        if self._turn is None:
            # What has arrived by now, but has not come to this point yet, joins the group.
            self._turn = self.event_loop.call_soon(self._take_turn)
        return await submitted.done

    async def poll(self, client: str, seconds: float) -> list[bytes]:
        """The keys that the client waits for and that stopped being held: none where nothing came for so long.

        Raises what keeps the ledger from serving.
        """
        ledger = self._serving()
        told: asyncio.Future[list[bytes]] = self.event_loop.create_future()

        def answer(keys: list[bytes]) -> None:
            if not told.done():
                told.set_result(keys)

        timer = self.event_loop.call_later(seconds, ledger.watch.unpark, client)
        ledger.watch.park(client, answer, ledger.now())
        try:
            return await told
        finally:
            timer.cancel()

    def close(self) -> None:
        """Commits what is queued, and ends."""
        self._opening.cancel()
        while self._queue:
            self._take_turn()
        self._failure = Unavailable("the ledger is closed", retry_after_seconds=1)
        for handle in (self._turn, self._due):
            if handle is not None:
                handle.cancel()
        if self._ledger is not None:
            self._ledger.close()

    def _serving(self) -> DedupeLedger:
        if self._failure is not None:
            raise self._failure
        assert self._ledger is not None
        return self._ledger

    async def _open(self, open_ledger: Callable[[], DedupeLedger]) -> None:
        attempt = 0
        while self._ledger is None:
            try:
                self._ledger = await asyncio.to_thread(open_ledger)
            except ConfigurationError as error:
                log.error("the ledger cannot start: %s", error)
                self._failure = error
                return
            except sa.exc.SQLAlchemyError as error:
                log.warning("the ledger's store cannot be opened: %s", told_by(error))
                self._failure = StoreUnavailable("the ledger's store cannot be opened", retry_after_seconds=2)
                await asyncio.sleep(_OPENING_PAUSES[min(attempt, len(_OPENING_PAUSES) - 1)])
            except Exception:
                log.exception("the ledger cannot be opened")  # nobody awaits this task, so it is told here
                self._failure = Unavailable("the ledger could not be opened; see the log")
                return
            attempt += 1
        self.epoch = self._ledger.fence.epoch
        self._failure = None
        self._turn = self.event_loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Commits a group of what is queued, and does what is due."""
        self._turn = None
        try:
            if self._queue:
                self._commit(self._gather())
            self._do_what_is_due()
        except BaseException:
            self._failure = Unavailable("the ledger ended; see the log")
            while self._queue:
                self._queue.popleft().refuse(self._failure)
            raise

    def _gather(self) -> list[_Submitted]:
        """As much of what is queued as goes into one commit."""
        group: list[_Submitted] = []
        size = 0
        while self._queue and size < self._max_group:
            submitted = self._queue.popleft()
            group.append(submitted)
            size += len(submitted.operations)
        self._queued -= size
        if self._queue:
            self._turn = self.event_loop.call_soon(self._take_turn)
        return group

    def _do_what_is_due(self) -> None:
        """Lapses and housekeeping; and comes again when the next of them is due."""
        ledger = self._ledger
        assert ledger is not None
        ledger.watch.lapse(ledger.now())
        self._keep_house(ledger)
        patience = self._house_at - time.monotonic()
        lapse = ledger.watch.next_lapse()
        if lapse is not None:
            patience = min(patience, (lapse - ledger.now()) / 1e6)
        if self._due is not None:
            self._due.cancel()
        self._due = self.event_loop.call_later(max(0.0, patience), self._take_turn)

    def _commit(self, group: list[_Submitted]) -> None:
        """Applies a group and answers it. A replaced instance refuses this group and all that come."""
        ledger = self._ledger
        assert ledger is not None
        lost: MunimentError
        started = time.perf_counter()
        try:
            results = ledger.execute([item for submitted in group for item in submitted.operations])
        except Fenced as error:
            self._stand_down(ledger, error)
            lost, reason = error, "fenced"
        except sa.exc.SQLAlchemyError as error:
            log.error("the ledger's store did not commit: %s", told_by(error))
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
            submitted.refuse(lost)

    def _stand_down(self, ledger: DedupeLedger, error: Fenced) -> None:
        """Another instance decides now: who waits for a key here is to ask there."""
        log.error("this ledger was replaced: %s", error)
        self._failure = error
        ledger.watch.free_those(lambda _: True)

    def _answer(self, group: list[_Submitted], results: list[Result]) -> None:
        self.groups += 1
        self.operations += len(results)
        start = 0
        for submitted in group:
            end = start + len(submitted.operations)
            submitted.answer(results[start:end])
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
        except Fenced as error:
            self._stand_down(ledger, error)
        except sa.exc.SQLAlchemyError as error:
            log.warning("housekeeping has to wait: %s", told_by(error))
        self._house_at = time.monotonic() + (HOUSEKEEPING_SECONDS / 50 if more else HOUSEKEEPING_SECONDS)
