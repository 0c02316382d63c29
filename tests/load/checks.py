"""Whether what was acknowledged is there: looked at now and then while the load runs, and all of it at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from muniment.cluster.transport import Answer
from muniment.cluster.verbs import Request
from muniment.policies.errors import MunimentError, NotFound, StateConflict
from tests.load.targets import TOOL, Requests

REQUESTS = Requests()
Send = Callable[[int, Request], Awaitable[Answer]]
"""Sends a tenant's request, once."""
AT_THE_END = 2_000
"""How many are looked at when the load is over, at the most; of more, ones drawn at random."""
_TRIES = 60


@dataclass(frozen=True, slots=True)
class Remembered:
    """A fact that was stored."""

    tenant: int
    fact_id: str
    text: str

    async def look(self, send: Send) -> str | None:
        """What is wrong, or None. Raises where no answer came."""
        try:
            found = await send(self.tenant, REQUESTS.memory(self.fact_id))
        except NotFound:
            return f"fact {self.fact_id} is gone"
        return None if found["text"] == self.text else f"fact {self.fact_id} says {found['text']!r}"


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that was confirmed."""

    tenant: int
    arguments: dict[str, str]
    run_id: str

    def proposal(self, run_id: str) -> Request:
        """The effect, proposed by a run."""
        return REQUESTS.propose(
            area="load", agent="mailer", tool=TOOL, arguments=self.arguments, run_id=run_id, step_id="1"
        )

    async def look(self, send: Send) -> str | None:
        """See ``Remembered``."""
        found = await send(self.tenant, self.proposal(f"{self.run_id}-again"))
        if found["verdict"] != "duplicate" or found["origin"]["run_id"] != self.run_id:
            return f"the effect of run {self.run_id} may be had again: {found['verdict']}"
        return None


@dataclass(frozen=True, slots=True)
class Ruled:
    """A ruling that was carried out."""

    tenant: int
    conflict_id: str
    subject: str
    winner: str

    async def look(self, send: Send) -> str | None:
        """See ``Remembered``."""
        try:
            await send(self.tenant, REQUESTS.resolve(self.conflict_id, "keep_incumbent"))
        except StateConflict:
            found = await send(self.tenant, REQUESTS.facts(self.subject, "terms"))
            in_force = (found["current"] or {}).get("id")
            return None if in_force == self.winner else f"{self.subject}: in force is {in_force}, not {self.winner}"
        return f"the ruling on {self.conflict_id} was forgotten"


@dataclass(slots=True)
class Acknowledged:
    """Everything that the service said it had done."""

    things: list[Remembered | Effect | Ruled] = field(default_factory=list)
    looked_at: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, thing: Remembered | Effect | Ruled) -> None:
        """The service acknowledged it."""
        self.things.append(thing)

    async def check_one(self, chance: random.Random, send: Send) -> None:
        """Looks at one; where no answer comes, nothing is known."""
        if not self.things:
            return
        try:
            self._found(await chance.choice(self.things).look(send))
        except MunimentError:
            return

    def _found(self, wrong: str | None) -> None:
        self.looked_at += 1
        if wrong is not None:
            self.wrong.append(wrong)

    async def check_all(self, chance: random.Random, send: Send, tenants: int) -> dict[str, Any]:
        """Looks at all, or at a sample, until each has answered; and walks the tenants' chains of decisions."""
        some = chance.sample(self.things, min(AT_THE_END, len(self.things)))
        turn = iter(some)

        async def look() -> None:
            for thing in turn:
                self._found(await _answered(lambda thing=thing: thing.look(send)))

        await asyncio.gather(*(look() for _ in range(8)))
        for tenant in range(tenants):
            verified = await _answered(lambda tenant=tenant: send(tenant, REQUESTS.verify()))
            if not verified["intact"]:
                self.wrong.append(f"the decisions of tenant {tenant} do not verify: {verified.get('broken_at')}")
        return {
            "acknowledged": len(self.things),
            "looked_at": self.looked_at,
            "lost_or_wrong": len(self.wrong),
            "first_wrong": self.wrong[:5],
        }


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(_TRIES):
        try:
            return await ask()
        except MunimentError as error:
            if not error.retryable:
                raise
            failure = error
            await asyncio.sleep(1)
    raise failure
