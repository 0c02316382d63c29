"""The verbs that look at the whole: the decision log across the stores, its verification, counts, and readiness."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from muniment.actors.ports import Workers
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store.decision_log import DecisionLog, Place, microseconds, place_of
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.store.reach import in_thread
from muniment.actors.wire import to_rfc3339
from muniment.cluster.roster import Shards
from muniment.cluster.schemas import DecisionsQuery
from muniment.policies.access import Extent, Permission, Principal, owns, require, require_company, within_scope
from muniment.policies.errors import InvalidInput, MunimentError
from muniment.policies.model import Scope, Slot
from muniment.policies.routing import default_threshold

Answer = dict[str, Any]
Log = tuple[sa.Engine, DecisionLog]
#: Entries that one page of an owner's list looks at, however few of them are the owner's.
_SCANNED = 2_000
_CHECK_SECONDS = 5.0
_SHOWN = ("id", "kind", "rule", "reason", "actor", "policy_version", "outcome", "hash", "subject", "field", "run_id")


class RecordService:
    """Reads all stores. ``logs``: the decision logs of memory, effects and control."""

    def __init__(
        self,
        logs: Sequence[Log],
        memory: sa.Engine,
        policies: PolicyBook,
        shards: Shards,
        workers: Workers,
        ledger_health: Callable[[], Awaitable[list[dict[str, Any]]]],
    ) -> None:
        self._logs = logs
        self._memory = memory
        self._policies = policies
        self._shards = shards
        self._workers = workers
        self._ledger_health = ledger_health

    async def decisions(self, principal: Principal, query: DecisionsQuery) -> Answer:
        """Entries of the decision log, oldest first; an owner's are those of slots that are the owner's own.

        What is about another user's personal fact is listed without its slot and its inputs. A key that is bound to an
        area or agent sees what is of it.
        """
        company = require_company(principal)
        own_only = require(principal, Permission.READ_DECISIONS) is Extent.OWN
        after = place_at(query.cursor)
        if after is None:
            after = (microseconds(query.since) - 1, "\U0010ffff", 0) if query.since is not None else (-1, "", 0)
        equal = {
            "subject": query.subject,
            "field": query.field,
            "run_id": query.run_id,
            "kind": query.kind,
        }

        def read() -> tuple[list[Answer], Place | None]:
            return self._read(principal, company, after, equal, own_only, query.limit)

        entries, following = await in_thread(read)
        answer: Answer = {"entries": entries}
        if following is not None:
            answer["next"] = cursor_of(following)
        return answer

    def _read(
        self,
        principal: Principal,
        company: str,
        after: Place,
        equal: dict[str, Any],
        own_only: bool,
        limit: int,
    ) -> tuple[list[Answer], Place | None]:
        found: list[Answer] = []
        looked = 0
        rules_for = self._policies.rules_for(company)
        while looked < _SCANNED:
            page = self._merged(company, after, equal)
            for entry in page:
                after = place_of(entry)
                own = not own_only or self._is_own(principal, company, entry, rules_for)
                if own and self._within(principal, company, entry):
                    found.append(_shown(entry, principal))
                if len(found) == limit:
                    return found, after
            looked += len(page)
            if len(page) < 200:
                return found, None
        return found, after

    def _merged(self, company: str, after: Place, equal: dict[str, Any]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for engine, log in self._logs:
            with engine.connect() as connection:
                entries += log.entries(connection, company, after=after, limit=200, **equal)
        return sorted(entries, key=place_of)[:200]

    def _is_own(
        self, principal: Principal, company: str, entry: dict[str, Any], rules_for: Callable[[Slot], Any]
    ) -> bool:
        subject, field = entry.get("subject"), entry.get("field")
        if subject is None or field is None:
            return False
        user = entry.get("user")
        if user is not None:
            return bool(user == principal.actor)
        return owns(principal, rules_for(Slot(company, Scope.SHARED, "", subject, field)).owner)

    def _within(self, principal: Principal, company: str, entry: dict[str, Any]) -> bool:
        """Whether a key that is bound to an area or agent may see the entry: not what is of no fact or effect."""
        if principal.area is None and principal.agent is None:
            return True
        inputs = entry["inputs"]
        if entry["kind"] == "effect":
            return within_scope(principal, inputs.get("area"), inputs.get("agent"))
        if "fact" not in inputs:
            return False
        with self._memory.connect() as connection:
            fact = memory_store.get_facts(connection, company, [inputs["fact"]]).get(inputs["fact"])
        return fact is not None and within_scope(principal, fact.area, fact.agent)

    async def verify(self, principal: Principal) -> Answer:
        """Walks every chain of hashes of the company."""
        company = require_company(principal)

        def walk() -> Answer:
            total = 0
            for engine, log in self._logs:
                with engine.connect() as connection:
                    count, broken = log.verify(connection, company)
                total += count
                if broken is not None:
                    return {"entries": total, "intact": False, "broken_at": broken}
            return {"entries": total, "intact": True}

        return await asyncio.to_thread(walk)

    async def stats(self, principal: Principal) -> Answer:
        """Counts of the company: facts by status and tier, open conflicts by kind; and its gate.

        For a key that is bound to an area or agent, those that are of it.
        """
        company = require_company(principal)

        def count() -> tuple[Answer, str | None]:
            with self._memory.connect() as connection:
                return self._counts(connection, principal, company), memory_store.model_name(connection)

        counts, model = await in_thread(count)
        await self._policies.refresh(company)
        return counts if model is None else {**counts, "gate": self._gate(company, model)}

    def _counts(self, connection: sa.Connection, principal: Principal, company: str) -> Answer:
        if principal.area is None and principal.agent is None:
            counts = conflict_store.open_counts(connection, company)
            return {"facts": memory_store.counts_of(connection, company), "open_conflicts": counts}
        facts = memory_store.counts_of(connection, company, partial(within_scope, principal))
        conflicts = conflict_store.open_conflicts(connection, company)
        ids = {id for c in conflicts for id in (c.subject_id, c.challenger_id) if id is not None}
        sides = memory_store.get_facts(connection, company, sorted(ids))
        others = {id for id, fact in sides.items() if not within_scope(principal, fact.area, fact.agent)}
        seen = [c.kind.value for c in conflicts if others.isdisjoint((c.subject_id, c.challenger_id))]
        return {"facts": facts, "open_conflicts": dict(Counter(seen))}

    def _gate(self, company: str, model: str) -> Answer:
        """The threshold in use, and what it was found by where the company was calibrated."""
        found = self._policies.calibration(company, model)
        gate = {"model": model, "threshold": self._policies.threshold(company, model)}
        return gate if found is None else {**gate, "calibration": asdict(found)}

    async def ready(self) -> Answer:
        """Which needed parts are down, and which optional ones are missing: ``{ready, down, degraded, models}``."""
        checks = {
            "store": asyncio.to_thread(self._check_store),
            "embedder": self._workers.describe(),
            "ledger": self._ledger_health(),
            **{name: shard.stats() for name, shard in self._shards.members().items()},
        }
        answers = await asyncio.gather(*(_within(check) for check in checks.values()))
        found = dict(zip(checks, answers, strict=True))
        down = [name for name, answer in found.items() if answer is None]
        ledgers = found["ledger"] or []
        if any(health.get("failure") for health in ledgers):
            down.append("ledger")
        models = found["embedder"] or {}
        if models:
            models["gate_threshold"] = default_threshold(models["embedder"])
        degraded = ["no_reranker"] if models and models.get("reranker") is None else []
        return {"ready": not down, "down": down, "degraded": degraded, "models": models}

    def _check_store(self) -> bool:
        for engine in (self._memory, *(engine for engine, _ in self._logs)):
            with engine.connect() as connection:
                connection.execute(sa.select(1))
        return True


async def _within(check: Awaitable[Any]) -> Any:
    """The check's answer, None where it failed or did not come in time."""
    try:
        return await asyncio.wait_for(check, _CHECK_SECONDS)
    except (MunimentError, sa.exc.SQLAlchemyError, TimeoutError):
        return None


def cursor_of(place: Place) -> str:
    """The cursor of a list of decisions that goes on after ``place``."""
    at, stream, seq = place
    return f"{at}~{seq}~{stream}"


def place_at(cursor: str | None) -> Place | None:
    """The place that ``cursor_of`` was given, None of no cursor. Raises ``InvalidInput``."""
    if cursor is None:
        return None
    match = re.fullmatch(r"(-?\d{1,18})~(\d{1,18})~(.*)", cursor, re.ASCII | re.DOTALL)
    if match is None:
        raise InvalidInput.at("/cursor", "is not a cursor of this list")
    return int(match[1]), match[3], int(match[2])


def _shown(entry: dict[str, Any], principal: Principal) -> Answer:
    private = entry.get("user") not in (None, principal.actor)
    names = [name for name in _SHOWN if not (private and name in ("subject", "field"))]
    answer = {name: entry[name] for name in names if entry.get(name) is not None}
    inputs = {"personal": True} if private else _plain(entry["inputs"])
    return {**answer, "at": to_rfc3339(entry["at"]), "inputs": inputs}


def _plain(value: Any) -> Any:
    """Stored inputs as JSON."""
    if isinstance(value, datetime):
        return to_rfc3339(value)
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
