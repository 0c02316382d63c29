"""The verbs of effects (API.md, "Effects"): what a request becomes for a ledger, and a ledger's answer as JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgpack
import sqlalchemy as sa

from muniment.actors.clock import Clock, system_clock
from muniment.actors.ids import new_id
from muniment.actors.ledger_batch import moment, origin
from muniment.actors.ledger_ops import Confirm, Forget, Import, Propose, Proposed, Release, Renew, Token
from muniment.actors.store import effect_store
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.effect_store import KeyRow
from muniment.actors.store.reach import Reach, in_thread
from muniment.actors.wire import to_rfc3339
from muniment.cluster.ledger_handle import Ledgers
from muniment.cluster.schemas import (
    ClassificationRequest,
    EffectsQuery,
    ForgetRequest,
    ImportedKey,
    ImportKeysRequest,
    ProposeRequest,
    ReservationRequest,
    TrailQuery,
)
from muniment.policies.access import Extent, Permission, Principal, confine, require, require_company, within_scope
from muniment.policies.effect_gate import MICROSECONDS, Reason, ToolClassification, Verdict, block_reason
from muniment.policies.errors import InvalidInput, MissingKeyPath
from muniment.policies.fingerprint import effect_key
from muniment.policies.reservation import State, settled

Answer = dict[str, Any]
#: The largest integer in a cursor that a store can compare with.
_MAX_CURSOR_INTEGER = 2**63 - 1
#: The classification in force of a company's tool, or None.
ClassificationOf = Callable[[str, str], Awaitable[ToolClassification | None]]


class EffectService:
    """Answers for the ledgers. Lists are read from the store, which is the truth; everything else goes to a ledger."""

    def __init__(
        self,
        ledgers: Ledgers,
        engine: sa.Engine,
        classification_of: ClassificationOf,
        clock: Clock = system_clock,
    ) -> None:
        """``engine``: the effects' store, for reading."""
        self._ledgers = ledgers
        self._engine = engine
        self._classification_of = classification_of
        self._clock = clock

    async def propose(self, principal: Principal, request: ProposeRequest) -> Answer:
        """The gate's verdict. Raises ``MissingKeyPath`` where a declared path is absent; the trail says so."""
        company = require_company(principal)
        classification = await self._classification_of(company, request.tool)
        blocked = block_reason(classification, request.tainted)
        op = Propose(
            key=b"",
            company=company,
            area=_confined(principal.area, request.area, "/area"),
            agent=_confined(principal.agent, request.agent, "/agent"),
            tool=request.tool,
            run_id=request.run_id,
            step_id=request.step_id,
            actor=principal.actor,
            decision_id=new_id("d", self._clock()),
            agent_version=request.agent_version,
            tainted=request.tainted,
            blocked=blocked.value if blocked else None,
        )
        if classification is None:
            return _proposed(await self._ledgers.propose(op, 0))
        op = op._replace(
            no_key=Reason.WINDOW_OFF.value,
            window=classification.window.microseconds,
            lease=round(classification.lease_seconds * MICROSECONDS),
            max_duplicates=classification.max_duplicates_per_run,
            policy_version=classification.version,
        )
        if not classification.has_key:
            return _proposed(await self._ledgers.propose(op, 0))
        try:
            key = _key(op, classification, request.arguments)
        except InvalidInput as error:
            missing = isinstance(error, MissingKeyPath)
            reason = Reason.MISSING_KEY_PATH if missing else Reason.INVALID_KEY_VALUE
            await self._ledgers.propose(op._replace(no_key=reason.value), 0)
            raise
        proposed = await self._ledgers.propose(op._replace(key=key), request.wait_ms / 1000)
        return _proposed(proposed, classification.lease_seconds)

    async def confirm(self, principal: Principal, request: ReservationRequest) -> Answer:
        """Says that the tool returned success."""
        return await self._settle(Confirm, principal, request)

    async def renew(self, principal: Principal, request: ReservationRequest) -> Answer:
        """Begins the lease anew."""
        return await self._settle(Renew, principal, request)

    async def release(self, principal: Principal, request: ReservationRequest) -> Answer:
        """Says that the tool failed; the next proposer may go at once."""
        return await self._settle(Release, principal, request)

    async def _settle(
        self, kind: type[Confirm | Renew | Release], principal: Principal, request: ReservationRequest
    ) -> Answer:
        token = Token.parse(request.token)
        bound = (principal.area, principal.agent)
        op = kind(require_company(principal), *token, principal.actor, request.reason, request.result_ref, *bound)
        settled = await self._ledgers.settle(op)
        times = {"confirmed_at": settled.confirmed_at, "expires_at": settled.expires_at}
        return {"state": settled.state, "late": settled.late} | _times(times)

    async def erase_company(self, company: str) -> dict[str, int]:
        """Erases all effects of a company and their trail: counts."""
        return await self._ledgers.erase(company)

    async def remaining_of(self, company: str) -> int:
        """How many rows there still are of a company."""

        def count() -> int:
            with self._engine.connect() as connection:
                return effect_store.count_of(connection, company)

        return await in_thread(count)

    async def list_effects(self, principal: Principal, request: EffectsQuery) -> Answer:
        """Keys and their state; what is reserved is listed oldest first, everything else in no order of time.

        ``held_seconds`` of a reservation: for how long it has been held. A page may hold fewer entries than asked for,
        and still have a next one.
        """
        company = require_company(principal)
        area = confine(principal.area, request.area, "/area")
        agent = confine(principal.agent, request.agent, "/agent")
        equal = {"area": area, "agent": agent, "tool": request.tool, "run_id": request.run_id}
        after = _open_cursor(request.cursor, (int, bytes))
        now = microseconds(self._clock())
        page = await in_thread(self._page, company, request.state, equal, after, request.limit, now)
        answer: Answer = {"effects": [_effect(row, now) for row in page.rows]}
        if page.next is not None:
            answer["next"] = _cursor(page.next)
        return answer

    def _page(
        self,
        company: str,
        state: str | None,
        equal: dict[str, str | None],
        after: tuple[int, bytes] | None,
        limit: int,
        now: int,
    ) -> effect_store.KeyPage:
        with self._engine.connect() as connection:
            return effect_store.list_keys(
                connection, company, now, state=State(state) if state else None, equal=equal, after=after, limit=limit
            )

    async def forget(self, principal: Principal, request: ForgetRequest) -> Answer:
        """Takes a confirmation back. Raises ``NotFound`` where there is none, ``StateConflict`` for a reserved key."""
        company = require_company(principal)
        area = _confined(principal.area, request.area, "/area")
        agent = _confined(principal.agent, request.agent, "/agent")
        classification = await self._keyed(company, request.tool, "/tool")
        key = _key_of(company, area, agent, classification, request.arguments)
        op = Forget(
            key=key,
            company=company,
            area=area,
            agent=agent,
            tool=request.tool,
            actor=principal.actor,
            reason=request.reason,
            decision_id=new_id("d", self._clock()),
        )
        forgotten = await self._ledgers.forget(op)
        return {"forgotten": True, "decision_id": forgotten.decision_id}

    async def import_keys(self, principal: Principal, request: ImportKeysRequest) -> Answer:
        """Brings in confirmed keys of an older system, all or (where one is invalid) none.

        A key that is reserved right now is left alone, and so is one whose window has ended since; the outcomes say so.
        """
        company = require_company(principal)
        now = self._clock()
        ops = [await self._import(principal, company, i, item, now) for i, item in enumerate(request.effects)]
        imported = await asyncio.gather(*(self._ledgers.import_key(op) for op in ops))
        outcomes = [answer.outcome for answer in imported]
        return {"imported": outcomes.count("imported"), "results": [{"outcome": outcome} for outcome in outcomes]}

    async def _import(self, principal: Principal, company: str, i: int, item: ImportedKey, now: datetime) -> Import:
        at = f"/effects/{i}"
        if item.confirmed_at is not None and item.confirmed_at > now:
            raise InvalidInput.at(f"{at}/confirmed_at", "lies in the future")
        area = _confined(principal.area, item.area, f"{at}/area")
        agent = _confined(principal.agent, item.agent, f"{at}/agent")
        classification = await self._keyed(company, item.tool, f"{at}/tool")
        try:
            key = _key_of(company, area, agent, classification, item.arguments)
        except InvalidInput as error:
            raise type(error)(
                error.detail,
                errors=[{**e, "pointer": at + e["pointer"]} for e in error.fields["errors"]],
            ) from None
        return Import(
            key=key,
            company=company,
            area=area,
            agent=agent,
            tool=item.tool,
            actor=principal.actor,
            decision_id=new_id("d", now),
            window=classification.window.microseconds,
            run_id=item.origin.run_id if item.origin else None,
            step_id=item.origin.step_id if item.origin else None,
            confirmed_at=microseconds(item.confirmed_at) if item.confirmed_at else None,
            policy_version=classification.version,
        )

    async def _keyed(self, company: str, tool: str, at: str) -> ToolClassification:
        classification = await self._classification_of(company, tool)
        if classification is None or not classification.has_key:
            raise InvalidInput.at(at, "the tool is not classified, or its window is off: its calls have no key")
        return classification

    async def trail(self, principal: Principal, run_id: str, request: TrailQuery) -> Answer:
        """The recorded decisions of a run, in order; an agent's key sees those that its own actor proposed, one that is
        bound to an area or agent those of it."""
        company = require_company(principal)
        own = require(principal, Permission.READ_TRAILS) is Extent.OWN
        actor = principal.actor if own else None
        after = _open_cursor(request.cursor, (int, str, int, int)) or (0, "", 0, 0)

        def mine(entry: dict[str, Any]) -> bool:
            inputs = entry["inputs"]
            scoped = within_scope(principal, inputs.get("area"), inputs.get("agent"))
            return scoped and actor in (None, entry["actor"])

        entries, more = await in_thread(self._trail, company, run_id, mine, after, request.limit)
        answer: Answer = {"entries": [_trail_entry(entry, number) for number, entry in entries]}
        if more:
            number, last = entries[-1]
            answer["next"] = _cursor((microseconds(last["at"]), last["stream"], last["seq"], number))
        return answer

    def _trail(
        self,
        company: str,
        run_id: str,
        mine: Callable[[dict[str, Any]], bool],
        after: tuple[int, str, int, int],
        limit: int,
    ) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
        """Numbered entries of a run, those that are ``mine``, and whether there are more."""
        at, stream, seq, number = after
        found: list[tuple[int, dict[str, Any]]] = []
        with self._engine.connect() as connection:
            while True:
                chunk = list(
                    effect_store.decision_log.entries(
                        connection, company, after=(at, stream, seq), limit=limit + 1, run_id=run_id
                    )
                )
                for entry in chunk:
                    if mine(entry):
                        if len(found) == limit:
                            return found, True
                        number += 1
                        found.append((number, entry))
                if len(chunk) <= limit:
                    return found, False
                at, stream, seq = microseconds(chunk[-1]["at"]), chunk[-1]["stream"], chunk[-1]["seq"]


class StoredClassifications:
    """Classifications read from the control store on each call, so that a change counts at once; parsed once each."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store
        self._reach = Reach()
        self._parse = lru_cache(maxsize=4096)(self._parsed)

    async def __call__(self, company: str, tool: str) -> ToolClassification | None:
        """The classification in force. Raises ``StoreUnavailable``."""
        if self._store.local:  # SQLite answers in less time than a thread takes to start on it
            found = self._store.classification(company, tool)
        else:
            found = await self._reach.ask(self._store.classification, company, tool)
        if found is None:
            return None
        return self._parse(company, tool, found.version, msgpack.packb(found.body))

    @staticmethod
    def _parsed(company: str, tool: str, version: int, body: bytes) -> ToolClassification:
        return ClassificationRequest.model_validate(msgpack.unpackb(body)).to_domain(company, tool, version)


def _confined(bound: str | None, named: str, at: str) -> str:
    return confine(bound, named, at) or named


def _key(op: Propose, classification: ToolClassification, arguments: dict[str, Any]) -> bytes:
    return _key_of(op.company, op.area, op.agent, classification, arguments)


def _key_of(
    company: str, area: str, agent: str, classification: ToolClassification, arguments: dict[str, Any]
) -> bytes:
    return effect_key(
        company=company,
        area=area,
        agent=agent,
        tool=classification.tool,
        paths=classification.key_paths,
        arguments=arguments,
    )


def _times(values: dict[str, int | None]) -> dict[str, str]:
    return {name: to_rfc3339(moment(value)) for name, value in values.items() if value is not None}


def _proposed(proposed: Proposed, lease_seconds: float | None = None) -> Answer:
    answer: Answer = {
        "verdict": proposed.verdict,
        "decision_id": proposed.decision_id,
        "reason": proposed.reason,
        "run": {"duplicates": proposed.duplicates, "stop": proposed.stop},
    }
    if proposed.token is not None:
        times = _times({"expires_at": proposed.expires_at})
        answer["reservation"] = {"token": proposed.token, **times, "lease_seconds": lease_seconds}
    if proposed.verdict == Verdict.DUPLICATE.value:
        answer["origin"] = origin(proposed.origin_run, proposed.origin_step, proposed.confirmed_at)
        answer["policy"] = proposed.policy
    return answer


def _effect(row: KeyRow, now: int) -> Answer:
    state = settled(row.state, row.ends_at, now)
    assert state is not None
    answer: Answer = {"state": state.value, "area": row.area, "agent": row.agent, "tool": row.tool}
    known: dict[str, Any] = {"run_id": row.run_id, "step_id": row.step_id, "result_ref": row.result_ref}
    known["reason"] = row.note
    answer |= {name: value for name, value in known.items() if value is not None}
    if state is State.RESERVED:
        answer |= _times({"reserved_at": row.fence, "expires_at": row.ends_at})
        answer["held_seconds"] = max(0.0, (now - row.fence) / MICROSECONDS)
    elif state is State.CONFIRMED:
        answer |= _times({"confirmed_at": row.changed_at or None, "window_ends_at": row.ends_at})
        answer["late"] = bool(row.late)
    elif state is State.RELEASED:
        answer |= _times({"released_at": row.changed_at})
    else:
        answer |= _times({"lapsed_at": row.ends_at})
    return answer


def _trail_entry(entry: dict[str, Any], number: int) -> Answer:
    inputs = entry["inputs"]
    answer: Answer = {
        "seq": number,
        "at": to_rfc3339(entry["at"]),
        "step_id": inputs.get("step_id"),
        "tool": inputs["tool"],
        "verdict": entry["outcome"],
        "reason": entry["reason"],
        "decision_id": entry["id"],
    }
    optional = {name: inputs.get(name) for name in ("origin", "policy", "holder")}
    return answer | {name: value for name, value in optional.items() if value is not None}


def _cursor(values: Iterable[Any]) -> str:
    return base64.urlsafe_b64encode(msgpack.packb(list(values))).decode()


def _open_cursor(text: str | None, kinds: tuple[type, ...]) -> Any:
    """What ``_cursor`` closed, or None. Raises ``InvalidInput``."""
    if text is None:
        return None
    try:
        values = msgpack.unpackb(base64.urlsafe_b64decode(text))
    except (binascii.Error, TypeError, ValueError, msgpack.exceptions.UnpackException) as error:
        raise InvalidInput.at("/cursor", "this is no cursor") from error
    if not isinstance(values, list) or [type(value) for value in values] != list(kinds):
        raise InvalidInput.at("/cursor", "this is no cursor")
    if any(isinstance(value, int) and abs(value) > _MAX_CURSOR_INTEGER for value in values):
        raise InvalidInput.at("/cursor", "this is no cursor")
    return tuple(values)
