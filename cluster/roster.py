"""Which Ray actors are used and who has what, as the store last said, and the way to a company's shard by it.

Nothing depends on its being right: whoever is asked for what another one has refuses, and then the store is asked.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from muniment.actors.store.engine import available
from muniment.actors.store.reach import SharedReach
from muniment.actors.store.tenure import Role, read_role
from muniment.actors.wire import pack
from muniment.cluster import telemetry
from muniment.cluster.coalescer import Coalescer
from muniment.cluster.handles import DEADLINE_SECONDS, RETRY_SECONDS, ActorHandle, Remote, Unreachable
from muniment.cluster.naming import actor_name
from muniment.policies.errors import Moved, StoreUnavailable, Unavailable
from muniment.policies.partitioning import Kind

#: How old what is known may get while it is used.
FRESH_SECONDS = 1.0
#: Recalls in one call: their answers, unless the facts are long, stay below what Ray puts into the object store.
_TOGETHER = 8


class Roster:
    """What a store says of some kinds of Ray actors. Belongs to one event loop."""

    def __init__(self, engine: sa.Engine, kinds: Sequence[Kind]) -> None:
        """Reads it, and may block for that. Raises ``StoreUnavailable``."""
        self._engine = engine
        self._kinds = kinds
        self._roles = self._read()
        self._read_at = time.monotonic()
        self._reach = SharedReach(self._read)
        self._refreshing: asyncio.Task[None] | None = None

    def __getitem__(self, kind: Kind) -> Role:
        return self._roles[kind]

    async def refresh(self) -> None:
        """Asks the store again; while it is away, what is known goes on holding."""
        with suppress(StoreUnavailable):
            self._roles = await self._reach.ask()
        self._read_at = time.monotonic()

    def freshen(self) -> None:
        """Has the store asked beside the work, where that was not done for a while."""
        idle = self._refreshing is None or self._refreshing.done()
        if idle and time.monotonic() - self._read_at > FRESH_SECONDS:
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh())

    def _read(self) -> dict[Kind, Role]:
        with available(), self._engine.connect() as connection:
            return {kind: read_role(connection, kind) for kind in self._kinds}


class Members:
    """The handles of a kind's Ray actors, as many as are used now."""

    def __init__(self, roster: Roster, kind: Kind, namespace: str) -> None:
        self._roster = roster
        self._kind = kind
        self._namespace = namespace
        self._handles: dict[int, ActorHandle] = {}

    def __call__(self) -> list[ActorHandle]:
        self._roster.freshen()
        return [self[number] for number in range(self._roster[self._kind].used)]

    def __getitem__(self, number: int) -> ActorHandle:
        if number not in self._handles:
            self._handles[number] = ActorHandle(actor_name(self._kind, number), self._namespace)
        return self._handles[number]


class Shards:
    """The way to the shard of a company, wherever it is by now: ``shards(company).recall(company=company, plan=p)``."""

    def __init__(self, roster: Roster, namespace: str) -> None:
        self._roster = roster
        self._members = Members(roster, "shard", namespace)
        self._recalls: dict[int, Coalescer[Any]] = {}

    def __call__(self, company: str) -> Any:
        """The verbs of the company's shard (``actors/ports.py``)."""
        return _Verbs(self, company)

    def members(self) -> dict[str, Any]:
        """The verbs of each shard that has anything, by its name."""
        self._roster.freshen()
        owners = self._roster["shard"].map.owners()
        return {handle.name: Remote(handle) for handle in map(self._members.__getitem__, owners)}

    async def call(self, company: str, verb: str, /, **arguments: Any) -> Any:
        """The verb's answer from whichever shard has the company. Waits through a restart or a move within the
        deadline, then raises ``Unavailable``."""
        request = pack([verb, arguments, [telemetry.carrier()]])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            number = self._roster["shard"].map.of_company(company)
            try:
                answer = await self._together(number).submit(request) if verb == "recall" else None
                return await self._members[number].attempt(request, deadline) if answer is None else answer
            except (Unreachable, Moved) as error:
                if time.monotonic() + RETRY_SECONDS >= deadline:
                    raise Unavailable("the company's shard cannot be reached", retry_after_seconds=2) from error
            await self._roster.refresh()
            if self._roster["shard"].map.of_company(company) == number:
                await asyncio.sleep(RETRY_SECONDS)

    def _together(self, number: int) -> Coalescer[Any]:
        """Recalls to a shard travel together where there are many."""

        async def send(requests: list[bytes]) -> list[Any]:
            return await self._members[number].attempt_together(requests, time.monotonic() + DEADLINE_SECONDS)

        if number not in self._recalls:
            self._recalls[number] = Coalescer(send, max_items=_TOGETHER, max_under_way=2)
        return self._recalls[number]


class _Verbs:
    def __init__(self, shards: Shards, company: str) -> None:
        self._shards = shards
        self._company = company

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return functools.partial(self._shards.call, self._company, verb)
