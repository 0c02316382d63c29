"""The verbs of memory (API.md, "Memory"): what a request becomes for a router or a shard, and its answer as JSON.

Lists and histories are read from the store, which is the truth; every change goes through the company's shard.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.clock import Clock, system_clock
from muniment.actors.ports import Record, Shard
from muniment.actors.router import Router
from muniment.actors.slot_reader import SlotPage, SlotReader
from muniment.actors.slot_writer import expired_at
from muniment.actors.store import memory_store
from muniment.actors.store.decision_log import Place
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.store.reach import in_thread
from muniment.actors.wire import fact_from_dict, fact_to_dict, source_from_dict
from muniment.cluster.record_service import cursor_of, place_at
from muniment.cluster.schemas import (
    CorrectRequest,
    ExpireRequest,
    FactsQuery,
    HistoryQuery,
    MemoriesQuery,
    RecallRequest,
    RememberRequest,
)
from muniment.cluster.schemas.answers import fact_out
from muniment.cluster.schemas.base import Write
from muniment.cluster.schemas.memory import FactIn
from muniment.policies.access import (
    Extent,
    Permission,
    Principal,
    confine,
    permitted_source_kind,
    require,
    require_company,
    within_scope,
)
from muniment.policies.errors import Forbidden, NotFound
from muniment.policies.model import Fact, Scope, Slot, SourceKind, Status, fold
from muniment.policies.retention import default_importance

Answer = dict[str, Any]
#: Facts that one page of a filtered list looks at, however few of them fit.
_SCANNED = 2_000
#: Facts of a slot's history that are shown beside what is in force, the newest.
_NEWEST = 200


def actor_record(principal: Principal) -> Record:
    """Who acts, for a shard."""
    return {
        "id": principal.actor,
        "groups": sorted(principal.groups),
        "company_since": principal.company_since,
        "may_claim_record": permitted_source_kind(principal, SourceKind.SYSTEM_OF_RECORD),
    }


def request_record(principal: Principal, request: Write | None, *named: str) -> Record:
    """What a shard knows a write by, so that it is stored once however often it is sent.

    Where the caller gives no idempotency key, one is made for the way from here to the shard. One actor's keys are not
    another's.
    """
    if request is None or request.idempotency_key is None:
        return {"key": uuid.uuid4().hex, "hash": b"", "named": False}
    body = json.dumps([*named, request.without_key().model_dump(mode="json")], sort_keys=True).encode()
    key = hashlib.sha256(f"{principal.actor}\x1f{request.idempotency_key}".encode()).hexdigest()
    return {"key": key, "hash": hashlib.sha256(body).digest(), "named": True}


def notice_of(field: str | None) -> str:
    """The readable line of a dispute."""
    return f"the {field or 'fact'} may have changed".replace("_", " ")


def rendered(record: Record, now: datetime) -> tuple[Answer, Answer | None]:
    """A fact as a shard hands it out (``SlotWriter.handed_out``), as JSON: the fact and its dispute."""
    fact = expired_at(fact_from_dict(record["fact"]), now)
    evidence = [source_from_dict(source) for source in record.get("evidence", ())]
    answer = fact_out(fact, record.get("owner"), evidence)
    dispute = record.get("dispute")
    if dispute is None:
        return answer, None
    other = fact_from_dict(dispute["other"])
    return answer, {
        "conflict_id": dispute["conflict_id"],
        "notice": notice_of(fact.field),
        "other": fact_out(other, record.get("owner")),
    }


class MemoryService:
    """Answers for routers and shards. ``engine``: the memory store, for reading."""

    def __init__(
        self,
        router: Router,
        shard_of: Callable[[str], Shard],
        engine: sa.Engine,
        policies: PolicyBook,
        clock: Clock = system_clock,
    ) -> None:
        self._router = router
        self._shard_of = shard_of
        self._engine = engine
        self._policies = policies
        self._reader = SlotReader(policies)
        self._clock = clock

    # --- telling and asking

    async def remember(self, principal: Principal, request: RememberRequest) -> Answer:
        """Tells facts. What the key may not say is rejected, each fact by itself; the rest commits together."""
        company = require_company(principal)
        await self._policies.refresh(company)  # says how important a fact is whose teller does not
        results: list[Answer | None] = []
        told: list[Record] = []
        for fact in request.facts:
            try:
                told.append(fact_to_dict(self._told(principal, company, fact)))
                results.append(None)
            except Forbidden as refusal:
                code = refusal.fields.get("problem", refusal.code)
                problem = {"code": code, "detail": refusal.detail}
                results.append({"id": None, "outcome": "rejected", "problem": problem})
        # What a key may say can change between two tries, and then the second is another request.
        rejected = [str(place) for place, result in enumerate(results) if result is not None]
        again = request_record(principal, request, *rejected)
        answer = await self._replayed(company, again)
        if answer is None:
            answer = await self._remembered(company, told, actor_record(principal), again)
        accepted = iter(answer["results"])
        return {"results": [next(accepted) if result is None else result for result in results]}

    async def _remembered(self, company: str, told: list[Record], actor: Record, request: Record) -> Record:
        answer: Record = {"results": []}
        if told:
            answer = await self._router.remember(company=company, facts=told, actor=actor, request=request)
        elif request["named"]:
            answer = await self._shard_of(company).remember_rejected(company=company, actor=actor, request=request)
        return answer

    def _told(self, principal: Principal, company: str, fact: FactIn) -> Fact:
        if not permitted_source_kind(principal, fact.source.kind):
            raise Forbidden(f"the key may not claim {fact.source.kind.value}", problem="source_not_allowed")
        user = None
        if fact.scope is Scope.PERSONAL:
            user = fact.user or principal.actor
            if user != principal.actor:
                raise Forbidden("a personal fact is told by its own user", problem="not_its_user")
        importance = default_importance(
            explicit=fact.importance,
            source_kind=fact.source.kind,
            field=fact.field,
            text=fact.text,
            policy=self._policies.memory(company).importance,
        )
        return fact.to_domain(
            id="",
            company=company,
            writer=principal.actor,
            recorded_at=self._clock(),
            default_importance=importance,
            user=user,
            area=confine(principal.area, fact.area, "/area"),
            agent=confine(principal.agent, fact.agent, "/agent"),
        )

    async def _replayed(self, company: str, again: Record) -> Record | None:
        """The answer that this request got before, found before anything is embedded."""
        if not again["named"]:
            return None

        def read() -> Record | None:
            with self._engine.connect() as connection:
                return memory_store.remembered_answer(connection, company, again["key"], again["hash"], self._clock())

        return await in_thread(read)

    async def warm(self, principal: Principal) -> Answer:
        """Loads the company before it is asked for; ``loaded`` is false where nobody has told anything yet."""
        company = require_company(principal)

        def dimension() -> int | None:
            with self._engine.connect() as connection:
                return memory_store.model_dimension(connection)

        found = await in_thread(dimension)
        if found is not None:
            await self._shard_of(company).warm(company=company, dimension=found)
        return {"loaded": found is not None}

    async def recall(self, principal: Principal, request: RecallRequest) -> Answer:
        """The best facts for a query, visible to the actor, best first; and how they were found."""
        company, now = require_company(principal), self._clock()
        filters = request.filters.model_dump(exclude_none=True, exclude_defaults=True)
        filters |= _bound(principal, request.filters.area, request.filters.agent)
        moments = {name: value for name in ("as_of", "known_at") if (value := getattr(request, name)) is not None}
        found = await self._router.recall(
            company=company,
            query=request.query,
            top_k=request.top_k,
            profile=request.profile.value,
            user=principal.actor,
            filters=filters,
            bound=_bound(principal, None, None),
            min_score=request.min_score,
            moments=moments,
        )
        results = []
        for record in found["results"]:
            fact, dispute = rendered(record, now)
            if dispute is not None and not within(principal, fact_from_dict(record["dispute"]["other"])):
                dispute = None
            result: Answer = {"fact": fact, "score": record["score"], "tier": record["tier"]}
            if dispute is not None:
                result["dispute"] = dispute
            if request.explain:
                result["terms"] = record["terms"]
            results.append(result)
        return {"results": results, "route": found["route"], "timings_ms": found["timings_ms"]}

    # --- reading the store

    async def facts(self, principal: Principal, query: FactsQuery) -> Answer:
        """What a slot holds, by rule, and all that was told of it; a user's personal value before the shared one.

        Of a long history: the newest 200, and before them what is in force.
        """
        company, now = require_company(principal), self._clock()
        slots = [
            Slot(company, Scope.PERSONAL, principal.actor, query.subject, query.field),
            Slot(company, Scope.SHARED, "", query.subject, query.field),
        ]
        pages = await in_thread(self._read_slots, slots, query.as_of, query.known_at, now)
        stale = [slot for slot, page in zip(slots, pages, strict=True) if page.stale]
        if stale:
            shard = self._shard_of(company)
            await shard.flag(company=company, slots=[[s.scope.value, s.user, s.subject, s.field] for s in stale])
            pages = await in_thread(self._read_slots, slots, query.as_of, query.known_at, now)
        personal, shared = (self._confined(principal, page) for page in pages)
        chosen = personal if personal.current is not None else shared
        answer: Answer = {"current": self._out(chosen, chosen.current, now)}
        if chosen is personal and shared.current is not None:
            answer["shared"] = self._out(shared, shared.current, now)
        if chosen.current is not None and chosen.dispute is not None:
            conflict, other = chosen.dispute
            answer["dispute"] = {
                "conflict_id": conflict.id,
                "notice": notice_of(chosen.current.field),
                "other": self._out(chosen, other, now),
            }
        history = sorted((*personal.history, *shared.history), key=lambda f: (f.recorded_at, f.id))
        pages_of = {fact.id: page for page in (personal, shared) for fact in page.history}
        in_force = {page.current.id for page in (personal, shared) if page.current is not None}
        shown = [fact for fact in history[:-_NEWEST] if fact.id in in_force] + history[-_NEWEST:]
        answer["history"] = [self._out(pages_of[fact.id], fact, now) for fact in shown]
        return answer

    def _read_slots(
        self, slots: list[Slot], as_of: datetime | None, known_at: datetime | None, now: datetime
    ) -> list[SlotPage]:
        with self._engine.connect() as connection:
            return [self._reader.page(connection, slot, as_of, known_at, now) for slot in slots]

    def _confined(self, principal: Principal, page: SlotPage) -> SlotPage:
        """The page without what a key that is bound to an area or agent may not see."""
        if principal.area is None and principal.agent is None:
            return page
        current = page.current if page.current is not None and within(principal, page.current) else None
        dispute = page.dispute if page.dispute is not None and within(principal, page.dispute[1]) else None
        history = tuple(f for f in page.history if within(principal, f))
        return replace(page, current=current, dispute=dispute, history=history)

    def _out(self, page: SlotPage, fact: Fact | None, now: datetime) -> Answer | None:
        if fact is None:
            return None
        evidence = [f.source for f in page.history if f.corroborates == fact.id and f.status is Status.CURRENT]
        return fact_out(expired_at(fact, now), self._reader.owner(fact), evidence[-20:])

    async def list_memories(self, principal: Principal, query: MemoriesQuery) -> Answer:
        """Facts visible to the actor, newest first. A page may hold fewer than asked for, and still have a next one."""
        company, now = require_company(principal), self._clock()
        bound = _bound(principal, query.area, query.agent)
        wanted = query.model_copy(update=bound)

        def read() -> tuple[list[Fact], str | None]:
            with self._engine.connect() as connection:
                return _scan(connection, company, principal, wanted, now)

        found, following = await in_thread(read)
        answer: Answer = {"memories": [fact_out(f, self._reader.owner(f)) for f in found]}
        if following is not None:
            answer["next"] = following
        return answer

    async def get_memory(self, principal: Principal, id: str) -> Answer:
        """One fact with its evidence. Raises ``NotFound`` for what the actor may not see."""
        fact, evidence = await in_thread(self._get, principal, id)
        return fact_out(expired_at(fact, self._clock()), self._reader.owner(fact), evidence)

    def _get(self, principal: Principal, id: str) -> tuple[Fact, list[Any]]:
        company = require_company(principal)
        with self._engine.connect() as connection:
            fact = memory_store.get_facts(connection, company, [id]).get(id)
            seen = fact is not None and fact.status is not Status.DELETED and fact.visible_to(principal.actor)
            if fact is None or not seen or not within(principal, fact):
                raise NotFound("there is no such fact")
            key = fact.slot.key if fact.slot else None
            siblings = memory_store.slot_facts(connection, company, [key], [Status.CURRENT])[key] if key else []
        return fact, [f.source for f in siblings if f.corroborates == fact.id and within(principal, f)][-20:]

    async def memory_history(self, principal: Principal, id: str, query: HistoryQuery) -> Answer:
        """What became of a fact, oldest first: when it was recorded, and every decision it took part in.

        A page may hold fewer than asked for, and still have a next one.
        """
        after = place_at(query.cursor)
        fact, _ = await in_thread(self._get, principal, id)

        def read() -> tuple[list[Answer], Place | None]:
            with self._engine.connect() as connection:
                return self._reader.story(connection, fact, after, query.limit)

        entries, following = await in_thread(read)
        answer = {"id": id, "status": expired_at(fact, self._clock()).status.value, "history": entries}
        if following is not None:
            answer["next"] = cursor_of(following)
        return answer

    # --- changing one fact

    async def delete_memory(self, principal: Principal, id: str) -> Answer:
        """Deletes a fact: its content is gone, only that there was one stays."""
        return await self._retire(principal, id, Status.DELETED, "deleted on request")

    async def expire_memory(self, principal: Principal, id: str, request: ExpireRequest) -> Answer:
        """Ends a fact that was true and no longer holds."""
        return await self._retire(principal, id, Status.EXPIRED, request.reason, request)

    async def _retire(
        self, principal: Principal, id: str, status: Status, reason: str, request: Write | None = None
    ) -> Answer:
        company = require_company(principal)
        again = request_record(principal, request, "expire", id)
        answer: Answer | None = await self._replayed(company, again)
        if answer is None:
            await in_thread(self._get, principal, id)
            answer = await self._shard_of(company).retire(
                company=company,
                id=id,
                status=status.value,
                reason=reason,
                actor=actor_record(principal),
                own_only=require(principal, Permission.CORRECT_FACTS) is Extent.OWN,
                request=again,
            )
        return answer

    async def correct_memory(self, principal: Principal, id: str, request: CorrectRequest) -> Answer:
        """Puts the right value and text in the place of a fact that was wrong from the start."""
        company = require_company(principal)
        again = request_record(principal, request, "correct", id)
        answer: Answer | None = await self._replayed(company, again)
        if answer is None:
            await in_thread(self._get, principal, id)
            answer = await self._router.correct(
                company=company,
                id=id,
                text=request.text,
                value=request.value,
                reason=request.reason,
                actor=actor_record(principal),
                own_only=require(principal, Permission.CORRECT_FACTS) is Extent.OWN,
                request=again,
            )
        return answer

    async def erase_user(self, principal: Principal, user: str) -> Answer:
        """Erases a user's personal facts, with counts."""
        company = require_company(principal)
        answer: Answer = await self._shard_of(company).erase_user(
            company=company, user=user, actor=actor_record(principal)
        )
        return answer

    # --- erasing a company

    async def erase_company(self, company: str) -> dict[str, int]:
        """Erases all that memory has of a company: counts per table."""
        erased: dict[str, int] = (await self._shard_of(company).erase_company(company=company))["erased"]
        return erased

    async def remaining_of(self, company: str) -> int:
        """How many rows memory still has of a company."""

        def count() -> int:
            with self._engine.connect() as connection:
                return memory_store.count_of(connection, company)

        return await in_thread(count)


def _bound(principal: Principal, area: str | None, agent: str | None) -> dict[str, str]:
    """The area and agent that a bound key is confined to."""
    found = {
        "area": confine(principal.area, area, "/filters/area"),
        "agent": confine(principal.agent, agent, "/filters/agent"),
    }
    return {name: value for name, value in found.items() if value is not None}


def within(principal: Principal, fact: Fact) -> bool:
    """Whether a key that is bound to an area or agent may see the fact."""
    return within_scope(principal, fact.area, fact.agent)


def _scan(
    connection: sa.Connection, company: str, principal: Principal, wanted: MemoriesQuery, now: datetime
) -> tuple[list[Fact], str | None]:
    found: list[Fact] = []
    before, looked = wanted.cursor, 0
    while looked < _SCANNED:
        page = memory_store.list_facts(connection, company, user=principal.actor, before=before, limit=200)
        for fact in page:
            shown = expired_at(fact, now)
            if _fits(shown, wanted):
                found.append(shown)
            before = fact.id
            if len(found) == wanted.limit:
                return found, before
        looked += len(page)
        if len(page) < 200:
            return found, None
    return found, before


def _fits(fact: Fact, wanted: MemoriesQuery) -> bool:
    names: Iterable[str] = ("subject", "field", "area", "agent")
    labels = all(
        getattr(wanted, name) is None or fold(getattr(fact, name) or "") == fold(getattr(wanted, name))
        for name in names
    )
    return (
        labels
        and wanted.status in (None, fact.status)
        and wanted.scope in (None, fact.scope)
        and wanted.user in (None, fact.user)
        and (not wanted.source_kinds or fact.source.kind in wanted.source_kinds)
        and {fold(tag) for tag in wanted.tags} <= {fold(tag) for tag in fact.tags}
        and (wanted.min_importance is None or fact.importance >= wanted.min_importance)
    )
