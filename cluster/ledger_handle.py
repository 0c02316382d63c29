"""A ledger as a client process sees it: operations travel in batches, waits in one parked poll.

An operation whose outcome is unknown (the ledger died under it) is sent again, marked as such, until the deadline: all
of them may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from muniment.actors.ledger_ops import (
    Confirm,
    Erase,
    Erased,
    Forget,
    Forgotten,
    Import,
    Imported,
    Op,
    Propose,
    Proposed,
    Release,
    Renew,
    Settled,
    Token,
    join_ops,
    pack_op,
    partition_of,
    unpack_ops,
    unpack_results,
)
from muniment.actors.wire import unpack
from muniment.cluster import telemetry
from muniment.cluster.coalescer import Coalescer
from muniment.cluster.key_places import KeyPlaces
from muniment.cluster.naming import actor_name
from muniment.cluster.roster import Roster
from muniment.policies.effect_gate import Verdict
from muniment.policies.errors import DeadlineExceeded, Fenced, Moved, MunimentError, StoreUnavailable, Unavailable

log = logging.getLogger(__name__)
A = TypeVar("A")
Asked = TypeVar("Asked", bound=Op)
#: How long an operation is sent again while its ledger restarts.
DEADLINE_SECONDS = 30.0
#: How long one batch may be under way before its outcome counts as unknown.
_CALL_SECONDS = 20.0
_RETRY_SECONDS = 0.1


class LedgerHandle:
    """One named ledger, from one event loop of one process. Made anywhere; looks the Ray actor up when first used."""

    def __init__(
        self,
        name: str,
        namespace: str,
        deadline_seconds: float = DEADLINE_SECONDS,
        went_elsewhere: Callable[[Op], Awaitable[bool]] | None = None,
    ) -> None:
        """``went_elsewhere``: says, where the ledger cannot be reached, whether another one has the operation's key."""
        self.name = name
        self._went_elsewhere = went_elsewhere
        self._namespace = namespace
        self._deadline_seconds = deadline_seconds
        self._client = uuid.uuid4().hex
        self._actor: Any = None
        self._epoch = 0
        self._coalescer: Coalescer[Any] = Coalescer(self._exchange, max_under_way=2, on_orphan=self._give_back)
        self._places = KeyPlaces()
        self._poller: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def waiting(self) -> int:
        """How many callers wait for a key that another run holds."""
        return self._places.waiting

    async def propose(self, op: Propose, wait_seconds: float) -> Proposed:
        """The verdict; waits up to ``wait_seconds`` while another run holds the key. May be cancelled at any time."""
        if wait_seconds <= 0:
            return Proposed(*await self._call(op._replace(waits=False)))
        deadline = asyncio.get_running_loop().time() + wait_seconds
        trying = op._replace(waits=True)
        found = await self._call(trying)
        if found is not None:
            return Proposed(*found)
        with self._places.take(op.key, op.run_id) as place:
            self._start_polling()
            while await place.turn(deadline):
                found = await self._call(trying)
                if found is not None:
                    self._places.decided(place, done=found[0] == Verdict.DUPLICATE.value)
                    return Proposed(*found)
                self._places.still_held(place)
        return Proposed(*await self._call(op._replace(waits=False)))

    async def settle(self, op: Confirm | Renew | Release) -> Settled:
        """Confirms, renews or releases. Raises ``StaleReservation``."""
        return Settled(*await self._call(op))

    async def forget(self, op: Forget) -> Forgotten:
        """Takes a confirmation back. Raises ``NotFound`` and ``StateConflict``."""
        return Forgotten(*await self._call(op))

    async def import_key(self, op: Import) -> Imported:
        """Brings in a confirmed key."""
        return Imported(*await self._call(op))

    async def erase(self, company: str, limit: int = 1_000) -> Erased:
        """Deletes a slice of a company; nothing is left when all counts are 0."""
        return Erased(*await self._call(Erase(company, limit)))

    async def look(self) -> None:
        """Has the ledger learn now what came and went. Raises ``Unavailable``."""
        await self._exchange([])

    async def health(self) -> dict[str, Any]:
        """See ``LedgerActor.health``. Raises ``Unavailable``."""
        answer: dict[str, Any] = await self._remote("health")
        return answer

    async def close(self) -> None:
        """Ends the poll and what runs in the background."""
        tasks = [task for task in (self._poller, *self._background) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, op: Op) -> Any:
        """What the ledger answered: fields, or None. Repeats through a restart; raises what the ledger refused with."""
        give_up: float | None = None
        while True:
            try:
                return await self._coalescer.submit(pack_op(op, telemetry.span_carrier()))
            except (Unavailable, Fenced) as error:
                if isinstance(error, StoreUnavailable):
                    raise  # the ledger is there, and waiting for it does not help
                now = asyncio.get_running_loop().time()
                give_up = give_up or now + self._deadline_seconds
                if now + _RETRY_SECONDS >= give_up:
                    raise Unavailable(f"{self.name} cannot be reached", retry_after_seconds=2) from error
                if isinstance(error, Fenced):
                    self._actor = None
                if self._went_elsewhere is not None and await self._went_elsewhere(op):
                    raise Moved(f"{self.name} does not have this key") from error
                if isinstance(op, (Propose, Forget)):
                    op = op._replace(again=True)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _exchange(self, items: list[bytes]) -> Sequence[Any]:
        epoch, results = unpack_results(await self._remote("operate", self._client, join_ops(items)))
        self._seen(epoch)
        return results

    async def _remote(self, verb: str, *arguments: Any) -> Any:
        """One call of the Ray actor. Raises ``Unavailable`` where it cannot be reached, ``DeadlineExceeded``."""
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self.name, namespace=self._namespace)
            reference = getattr(self._actor, verb).remote(*arguments)
            async with asyncio.timeout(_CALL_SECONDS if verb != "poll" else 2 * _CALL_SECONDS):
                # wrap_future rather than the reference itself: asyncio.wait on references leaks
                return await asyncio.wrap_future(reference.future())
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.name} did not answer in time", retry_after_seconds=2) from error
        except (RayActorError, ValueError) as error:
            if not isinstance(error, ActorUnavailableError):
                self._actor = None
            raise Unavailable(f"{self.name} cannot be reached", retry_after_seconds=2) from error

    def _seen(self, epoch: int) -> None:
        """Another instance answered: it knows nothing of who waits here, so each key is tried again."""
        if self._epoch not in (0, epoch):
            self._places.all_may_be_free()
        self._epoch = epoch

    def _start_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        """Keeps one poll parked while anybody waits."""
        while self._places:
            try:
                epoch, keys = unpack(await self._remote("poll", self._client))
                if isinstance(keys, dict):
                    raise MunimentError.from_wire(keys)
            except MunimentError as error:
                log.debug("the poll of %s broke off: %s", self.name, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._places.all_may_be_free()
                continue
            self._seen(epoch)
            for key in keys:
                self._places.may_be_free(key)

    def _give_back(self, item: bytes, result: Any) -> None:
        """A caller went away while its proposal was under way and won: the key is released, unless claimed since."""
        ((op,), _) = unpack_ops(join_ops([item]))
        if not isinstance(op, Propose) or result is None:
            return
        proposed = Proposed(*result)
        if proposed.token is not None:
            token = Token.parse(proposed.token)
            release = Release(op.company, *token, op.actor, "the caller went away", claim=op.decision_id)
            self._spawn(self._call(release))

    def _spawn(self, work: Awaitable[Any]) -> None:
        async def run() -> None:
            try:
                await work
            except MunimentError as error:
                log.warning("%s: a reservation that nobody waited for is left to lapse: %s", self.name, error)

        task = asyncio.get_running_loop().create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class Ledgers:
    """All ledgers of a cluster. Keys are spread over them by hash, and found wherever they are by now."""

    def __init__(self, roster: Roster, namespace: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._roster = roster
        self._namespace = namespace
        self._deadline_seconds = deadline_seconds
        self._handles: dict[int, LedgerHandle] = {}

    async def propose(self, op: Propose, wait_seconds: float) -> Proposed:
        """See ``LedgerHandle.propose``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        return await self._decided(op, lambda ledger, again: ledger.propose(again, until - loop.time()))

    async def settle(self, op: Confirm | Renew | Release) -> Settled:
        """See ``LedgerHandle.settle``."""
        return await self._decided(op, lambda ledger, again: ledger.settle(again))

    async def forget(self, op: Forget) -> Forgotten:
        """See ``LedgerHandle.forget``."""
        return await self._decided(op, lambda ledger, again: ledger.forget(again))

    async def import_key(self, op: Import) -> Imported:
        """See ``LedgerHandle.import_key``."""
        return await self._decided(op, lambda ledger, again: ledger.import_key(again))

    async def health(self) -> list[dict[str, Any]]:
        """What each ledger that has anything says of itself. Raises ``Unavailable``."""
        await self._roster.refresh()
        owners = self._roster["ledger"].map.owners()
        return await asyncio.gather(*(self._handle(number).health() for number in owners))

    async def erase(self, company: str) -> dict[str, int]:
        """Deletes all that is stored of a company's effects; how many effects and decisions that was."""
        effects = decisions = 0
        while any(erased := await self._handle(0).erase(company)):
            effects, decisions = effects + erased.effects, decisions + erased.decisions
        return {"effects": effects, "effect_decisions": decisions}

    async def close(self) -> None:
        """Closes the handles."""
        for handle in self._handles.values():
            await handle.close()

    def number_of(self, op: Op) -> int:
        """The number of the ledger that decides about an operation, as far as is known."""
        partition = partition_of(op)
        return 0 if partition is None else self._roster["ledger"].map.members[partition]

    def _handle(self, number: int) -> LedgerHandle:
        if number not in self._handles:

            async def went_elsewhere(op: Op) -> bool:
                await self._roster.refresh()
                return self.number_of(op) != number

            name = actor_name("ledger", number)
            self._handles[number] = LedgerHandle(name, self._namespace, self._deadline_seconds, went_elsewhere)
        return self._handles[number]

    async def _decided(self, op: Asked, act: Callable[[LedgerHandle, Asked], Awaitable[A]]) -> A:
        """The answer of the ledger that has the key, wherever it goes meanwhile."""
        give_up: float | None = None
        while True:
            number = self.number_of(op)
            try:
                return await act(self._handle(number), op)
            except Moved as error:
                now = asyncio.get_running_loop().time()
                give_up = give_up or now + self._deadline_seconds
                if now + _RETRY_SECONDS >= give_up:
                    raise Unavailable("the key's ledger cannot be reached", retry_after_seconds=2) from error
            if isinstance(op, (Propose, Forget)):
                op = cast("Asked", op._replace(again=True))
            await self._roster.refresh()
            if self.number_of(op) == number:
                await asyncio.sleep(_RETRY_SECONDS)
