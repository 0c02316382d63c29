"""The verbs of conflicts (API.md): the owner's list, rulings, the audit of what lies there, simulation of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.clock import Clock, system_clock
from muniment.actors.ports import Shard
from muniment.actors.router import Router
from muniment.actors.slot_audit import SlotAudit, Within
from muniment.actors.slot_reader import SlotReader
from muniment.actors.slot_writer import expired_at
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store.conflict_store import Conflict
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.store.reach import in_thread
from muniment.actors.wire import fact_from_dict, to_rfc3339
from muniment.cluster.memory_service import actor_record, request_record, within
from muniment.cluster.schemas import AuditRequest, ConflictsQuery, ResolutionRequest, SimulateRequest
from muniment.cluster.schemas.answers import fact_out
from muniment.policies.access import Extent, Permission, Principal, Role, owns, require, require_company
from muniment.policies.errors import InvalidInput, NotFound
from muniment.policies.model import Fact
from muniment.policies.values import sentence

Answer = dict[str, Any]
#: Conflicts that one page of a filtered list looks at, however few of them fit.
_SCANNED = 2_000


class ConflictService:
    """Answers for the shards. Lists are read from the store; rulings go to the company's shard."""

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
        self._audit = SlotAudit(policies)
        self._clock = clock

    async def list_conflicts(self, principal: Principal, query: ConflictsQuery) -> Answer:
        """Conflicts, reviews and notices, oldest first: an owner's own, and what is overdue and delegated to them."""
        company, now = require_company(principal), self._clock()
        all_owners = require(principal, Permission.LIST_CONFLICTS) is Extent.ALL
        await self._review_due(company, now)

        def read() -> tuple[list[Conflict], dict[str, Fact], str | None]:
            with self._engine.connect() as connection:
                return self._page(connection, company, principal, query, all_owners, now)

        found, facts, following = await in_thread(read)
        answer: Answer = {"conflicts": [self._out(principal, conflict, facts, now) for conflict in found]}
        if following is not None:
            answer["next"] = following
        return answer

    async def _review_due(self, company: str, now: datetime) -> None:
        """What has passed its review date gets a review before anybody looks at the list."""

        def due() -> bool:
            with self._engine.connect() as connection:
                return self._audit.reviews_due(connection, company, now)

        if await in_thread(due):
            await self._shard_of(company).review_due(company=company)

    def _page(
        self,
        connection: sa.Connection,
        company: str,
        principal: Principal,
        query: ConflictsQuery,
        all_owners: bool,
        now: datetime,
    ) -> tuple[list[Conflict], dict[str, Fact], str | None]:
        found: list[Conflict] = []
        sides: dict[str, Fact] = {}
        after, looked = query.cursor or "", 0
        in_force = self._in_force(company)
        while looked < _SCANNED:
            page = conflict_store.list_conflicts(
                connection,
                company,
                after=after,
                limit=200,
                kind=query.kind,
                status=query.status,
                subject=query.subject,
                field=query.field,
            )
            facts = _sides(connection, company, page)
            for conflict in map(in_force, page):
                after = conflict.id
                named = query.owner is None or query.owner == conflict.owner
                if named and _listed(principal, conflict, all_owners, now) and _seen(principal, conflict, facts):
                    found.append(conflict)
                    sides.update(facts)
                if len(found) == query.limit:
                    return found, sides, after
            looked += len(page)
            if len(page) < 200:
                return found, sides, None
        return found, sides, after

    def _in_force(self, company: str) -> Callable[[Conflict], Conflict]:
        """An open conflict belongs to whom the policy names now, and is due when it says now; as rulings go by it."""
        rules_for = self._policies.rules_for(company)

        def in_force(conflict: Conflict) -> Conflict:
            if conflict.slot is None or conflict.status != conflict_store.OPEN:
                return conflict
            rules = rules_for(conflict.slot)
            due_at = rules.due_at(conflict.opened_at)
            return replace(conflict, owner=rules.owner, due_at=due_at, delegate=rules.delegate)

        return in_force

    def _out(self, principal: Principal, conflict: Conflict, facts: dict[str, Fact], now: datetime) -> Answer:
        answer: Answer = {
            "id": conflict.id,
            "kind": conflict.kind.value,
            "status": conflict.status,
            "rule": conflict.rule.value,
            "reason": conflict.reason,
            "owner": conflict.owner,
            "opened_at": to_rfc3339(conflict.opened_at),
        }
        slot = conflict.slot
        if slot is not None:
            answer["slot"] = {"subject": slot.subject, "field": slot.field, "scope": slot.scope.value}
            if slot.user:
                answer["slot"]["user"] = slot.user
        for name, id in (("incumbent", conflict.subject_id), ("challenger", conflict.challenger_id)):
            fact = facts.get(id or "")
            if fact is not None and _visible(principal, fact):
                answer[name] = fact_out(expired_at(fact, now), self._reader.owner(fact))
        if conflict.due_at is not None:
            answer["due_at"] = to_rfc3339(conflict.due_at)
        if conflict.delegate is not None:
            answer["delegate"] = conflict.delegate
        if conflict.evidence_ids:
            answer["evidence_ids"] = list(conflict.evidence_ids)
        if conflict.resolution is not None:
            shown = {n: v for n, v in conflict.resolution.items() if v is not None}
            answer["resolution"] = {n: to_rfc3339(v) if isinstance(v, datetime) else v for n, v in shown.items()}
        return answer

    async def resolve_conflict(self, principal: Principal, id: str, request: ResolutionRequest) -> Answer:
        """Rules on a conflict; only who answers for the slot may. A second ruling is refused and shows the first."""
        company = require_company(principal)
        conflict = await in_thread(self._get, principal, id)
        resolution = request.model_dump(exclude_none=True, exclude={"idempotency_key"})
        if request.value is not None and request.text is None and conflict.slot is not None:
            resolution["text"] = sentence(conflict.slot.subject, conflict.slot.field, request.value)
        answer: Answer = await self._router.resolve(
            company=company,
            conflict_id=id,
            resolution=resolution,
            text=resolution.get("text"),
            actor=actor_record(principal),
            rules_all=require(principal, Permission.RULE_CONFLICTS) is Extent.ALL,
            request=request_record(principal, request, "resolve", id),
        )
        if "current" in answer:
            fact = fact_from_dict(answer["current"])
            answer["current"] = fact_out(fact, self._reader.owner(fact))
        return answer

    def _get(self, principal: Principal, id: str) -> Conflict:
        """The conflict, unless the actor may not see what it is about."""
        company = require_company(principal)
        with self._engine.connect() as connection:
            conflict = conflict_store.get_conflict(connection, company, id)
            if conflict is None or not _own_scope(principal, conflict):
                raise NotFound("there is no such conflict")
            if not _seen(principal, conflict, _sides(connection, company, [conflict])):
                raise NotFound("there is no such conflict")
        return conflict

    async def audit_conflicts(self, principal: Principal, request: AuditRequest) -> Answer:
        """Contradictions that already lie in the store, the most damaging first; and the fields most overruled.

        What is found and on nobody's list is put there.
        """
        company, now = require_company(principal), self._clock()

        def find() -> list[list[str]]:
            with self._engine.connect() as connection:
                return self._audit.undecided(connection, company, request.subject, now)

        undecided = await in_thread(find)
        if undecided:
            await self._shard_of(company).flag(company=company, slots=undecided)

        def read() -> tuple[list[Conflict], dict[str, Fact], list[tuple[str, int]]]:
            with self._engine.connect() as connection:
                found = self._audit.open_by_damage(connection, company, request.subject, now)
                facts = _sides(connection, company, found)
                found = [c for c in found if _own_scope(principal, c) and _seen(principal, c, facts)]
                found = list(map(self._in_force(company), found))
                overruled = self._audit.most_overruled(connection, company, principal.actor, _sight(principal))
                return found, facts, overruled

        found, facts, overruled = await in_thread(read)
        first = _offset(request.cursor)
        shown = found[first : first + request.limit]
        answer: Answer = {
            "conflicts": [self._out(principal, conflict, facts, now) for conflict in shown],
            "most_overruled": [{"field": field, "times": times} for field, times in overruled],
        }
        if first + request.limit < len(found):
            answer["next"] = str(first + request.limit)
        return answer

    async def simulate_policy(self, principal: Principal, request: SimulateRequest) -> Answer:
        """What another policy would have decided differently, on past decisions and on what lies in the slots."""
        company, now = require_company(principal), self._clock()

        def read() -> Answer:
            with self._engine.connect() as connection:
                return self._audit.simulate(
                    connection,
                    company,
                    request.policy,
                    request.since,
                    now,
                    principal.actor,
                    _sight(principal),
                )

        return await in_thread(read)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise InvalidInput.at("/cursor", "is not a cursor of this list")
    return int(cursor)


def _own_scope(principal: Principal, conflict: Conflict) -> bool:
    return conflict.user in (None, principal.actor)


def _sides(connection: sa.Connection, company: str, conflicts: Sequence[Conflict]) -> dict[str, Fact]:
    """The facts that these conflicts are about, by id."""
    ids = {i for c in conflicts for i in (c.subject_id, c.challenger_id) if i is not None}
    return memory_store.get_facts(connection, company, sorted(ids))


def _visible(principal: Principal, fact: Fact) -> bool:
    """A ruling may have made a fact somebody's own."""
    return fact.visible_to(principal.actor) and within(principal, fact)


def _sight(principal: Principal) -> Within:
    """Which facts the key may see; None: no area or agent binds it."""
    if principal.area is None and principal.agent is None:
        return None
    return lambda fact: within(principal, fact)


def _seen(principal: Principal, conflict: Conflict, facts: dict[str, Fact]) -> bool:
    """Whether a key that is bound to an area or agent may see what the conflict is about."""
    sides = (facts.get(id or "") for id in (conflict.subject_id, conflict.challenger_id))
    return all(fact is None or within(principal, fact) for fact in sides)


def _listed(principal: Principal, conflict: Conflict, all_owners: bool, now: datetime) -> bool:
    if not _own_scope(principal, conflict):
        return False
    overdue = conflict.due_at is not None and conflict.due_at <= now and conflict.delegate is not None
    delegated = overdue and (conflict.delegate == principal.actor or conflict.delegate in principal.groups)
    return all_owners or owns(principal, conflict.owner) or delegated or Role.OPERATOR in principal.roles
