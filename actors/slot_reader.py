"""The reading side of slots, straight from the store: what a slot holds, held, and was believed to hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.conflict_store import Conflict
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.wire import to_rfc3339
from muniment.policies.model import ConflictKind, Fact, Scope, Slot, Status
from muniment.policies.slot_history import SlotRecord, as_of, read

#: How far summaries of summaries are followed.
_PARENT_STEPS = 8
#: Entries of a fact's story.
_STORY = 200


@dataclass(frozen=True, slots=True)
class SlotPage:
    """A slot as it is read: the fact in force, the open dispute about it with its other side, and all that was told,
    in the order of recording. ``undecided``: a second value is current and on nobody's list."""

    current: Fact | None
    dispute: tuple[Conflict, Fact] | None
    history: tuple[Fact, ...]
    undecided: bool = False


def parents_of(connection: sa.Connection, company: str, facts: Iterable[Fact]) -> dict[str, Fact]:
    """The facts that these are derived from, and theirs, without corrected and deleted ones."""
    found: dict[str, Fact] = {}
    wanted = {id for fact in facts for id in fact.source.derived_from}
    for _ in range(_PARENT_STEPS):
        fresh = memory_store.get_facts(connection, company, sorted(wanted - found.keys()))
        found.update({id: f for id, f in fresh.items() if f.status not in (Status.CORRECTED, Status.DELETED)})
        wanted = {id for fact in fresh.values() for id in fact.source.derived_from}
        if not wanted - found.keys():
            break
    return found


class SlotReader:
    """Reads slots under a company's policies. Whatever is read is for one reader: visibility is the caller's."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self._log = DecisionLog(t.decisions, t.decision_heads)

    def owner(self, fact: Fact) -> str:
        """Who answers for a fact: by policy for one of a slot, else its user, or its writer where it is shared."""
        if fact.slot is not None:
            return self._policies.rules(fact.slot).owner
        return fact.user if fact.scope is Scope.PERSONAL and fact.user else fact.writer

    def page(
        self,
        connection: sa.Connection,
        slot: Slot,
        instant: datetime | None,
        known_at: datetime | None,
        now: datetime,
    ) -> SlotPage:
        """The slot now, or what held at ``instant`` as far as it was recorded by ``known_at``."""
        company = slot.company
        told = memory_store.slot_facts(connection, company, [slot.key])[slot.key]
        told = [f for f in told if f.status is not Status.DELETED and (known_at is None or f.recorded_at <= known_at)]
        if not told:
            return SlotPage(None, None, ())
        parents = parents_of(connection, company, told)
        if instant is not None or known_at is not None:
            events = memory_store.get_events(connection, company, [f.id for f in told])
            records = [SlotRecord(f, events.get(f.id, ())) for f in told]
            rules_at = self._policies.rules_at(slot)
            known = known_at or max(fact.recorded_at for fact in told)
            held = as_of(records, instant or known_at or now, known, rules_at, parents)
            return SlotPage(held, None, tuple(told))
        reading = read(told, self._policies.rules(slot), parents, now)
        dispute, waiting = self._dispute(connection, slot, reading.current)
        undecided = any(other.id not in waiting for other in reading.others)
        return SlotPage(reading.current, dispute, tuple(told), undecided)

    def _dispute(
        self, connection: sa.Connection, slot: Slot, current: Fact | None
    ) -> tuple[tuple[Conflict, Fact] | None, set[str | None]]:
        found = conflict_store.open_conflicts(connection, slot.company, [slot.key])
        disputes = [c for c in found if c.kind is not ConflictKind.REVIEW and c.challenger_id is not None]
        waiting: set[str | None] = {c.challenger_id for c in disputes}
        about = [c for c in disputes if current is not None and c.subject_id == current.id]
        about.sort(key=lambda c: (c.kind is ConflictKind.NOTICE, c.id))
        others = memory_store.get_facts(connection, slot.company, [c.challenger_id for c in about if c.challenger_id])
        shown = [(c, others[c.challenger_id]) for c in about if c.challenger_id in others]
        return (shown[0] if shown else None), waiting

    def story(self, connection: sa.Connection, fact: Fact) -> list[dict[str, Any]]:
        """What became of a fact, oldest first: its recording, and the decisions of its slot that name it."""
        entries: list[dict[str, Any]] = [
            {"at": to_rfc3339(fact.recorded_at), "kind": "recorded", "actor": fact.writer, "outcome": "recorded"}
        ]
        slot = fact.slot
        # A decision that names a fact is of its slot, or, for a fact without one, a few of all.
        where = {"subject": slot.subject, "field": slot.field} if slot else {"kind": ("retirement", "correction")}
        for entry in self._log.entries(connection, fact.company, limit=10_000, **where):
            if fact.id in str(entry["inputs"]):
                shown = {name: entry[name] for name in ("kind", "rule", "reason", "actor", "outcome")}
                entries.append({"at": to_rfc3339(entry["at"]), **shown, "decision_id": entry["id"]})
        return entries[-_STORY:]
