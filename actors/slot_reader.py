"""The reading side of slots, straight from the store: what a slot holds, held, and was believed to hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.slot_pages import is_unsettled
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.conflict_store import Conflict
from muniment.actors.store.decision_log import DecisionLog, Place, microseconds, place_of
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.wire import to_rfc3339
from muniment.policies.authority import follow_parents, key_of, owner_of
from muniment.policies.model import ConflictKind, Fact, Slot, Status
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import SlotRecord, as_of, read

#: Decisions that one page of a fact's story looks at, however few of them name the fact; and at once.
_SCANNED = 2_000
_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class SlotPage:
    """A slot as it is read: the fact in force, the open dispute about it with its other side, and all that was told,
    in the order of recording. ``stale``: the slot's shard has to look at it, because a second value is current and on
    nobody's list, or because time has changed what is in force."""

    current: Fact | None
    dispute: tuple[Conflict, Fact] | None
    history: tuple[Fact, ...]
    stale: bool = False


def all_known(records: Iterable[SlotRecord], now: datetime) -> datetime:
    """The time at which all of this is known. A shard's time may run ahead of a reader's."""
    times = (moment for record in records for moment in (record.fact.recorded_at, *(e.at for e in record.events)))
    return max(now, max(times, default=now))


def dispute_about(fact: Fact | None, conflicts: Iterable[tuple[Conflict, Fact | None]]) -> tuple[Conflict, Fact] | None:
    """The open conflict, else notice, about a fact with its other side; the first opened of several."""
    found = [
        (conflict, other)
        for conflict, other in conflicts
        if other is not None
        and fact is not None
        and conflict.subject_id == fact.id
        and conflict.kind is not ConflictKind.REVIEW
    ]
    return min(found, key=lambda pair: (pair[0].kind is ConflictKind.NOTICE, pair[0].id), default=None)


def any_unlisted(others: Iterable[Fact], conflicts: Iterable[tuple[Conflict, Fact | None]], rules: SlotRules) -> bool:
    """Whether one of these values is in no open conflict."""
    listed = {
        key_of(challenger, rules)
        for conflict, challenger in conflicts
        if conflict.kind is ConflictKind.CONFLICT and challenger is not None and challenger.value is not None
    }
    return any(key_of(other, rules) not in listed for other in others)


def parents_of(connection: sa.Connection, company: str, facts: Iterable[Fact]) -> dict[str, Fact]:
    """The facts that these are derived from, and theirs, without corrected and deleted ones."""
    return follow_parents(facts, lambda ids: memory_store.get_facts(connection, company, sorted(ids)))


class SlotReader:
    """Reads slots under a company's policies. Whatever is read is for one reader: visibility is the caller's."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self._log = DecisionLog(t.decisions, t.decision_heads)

    def owner(self, fact: Fact) -> str:
        """Who answers for a fact (``authority.owner_of``)."""
        return owner_of(fact, self._policies.rules)

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
            known = known_at or all_known(records, now)
            held = as_of(records, instant or known_at or now, known, self._policies.rules_at(slot), parents)
            return SlotPage(held, None, tuple(told))
        # What a ruling says from now on must not wait for a reader whose clock is behind its shard's.
        now = max(now, told[-1].recorded_at)
        rules = self._policies.rules(slot)
        reading = read(told, rules, parents, now)
        conflicts = self._open(connection, slot)
        current = [fact for fact in told if fact.status is Status.CURRENT]
        stale = is_unsettled(current, now) or any_unlisted(reading.others, conflicts, rules)
        return SlotPage(reading.current, dispute_about(reading.current, conflicts), tuple(told), stale)

    def _open(self, connection: sa.Connection, slot: Slot) -> list[tuple[Conflict, Fact | None]]:
        found = conflict_store.open_conflicts(connection, slot.company, [slot.key])
        ids = [conflict.challenger_id for conflict in found if conflict.challenger_id is not None]
        others = memory_store.get_facts(connection, slot.company, ids)
        return [(conflict, others.get(conflict.challenger_id or "")) for conflict in found]

    def story(
        self, connection: sa.Connection, fact: Fact, after: Place | None, limit: int
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """What became of a fact, oldest first: its recording, and the decisions of its slot that name it.

        At most ``limit`` entries (from the beginning, or ``after`` a place in the log), and the place to go on from,
        None where that was all. A page may hold fewer than asked for, and still have a next one.
        """
        slot = fact.slot
        # A decision that names a fact is of its slot, or, for a fact without one, a later one of a few of all. Those of
        # a slot may be dated before the fact's recording, as the write that told it began then.
        where = {"subject": slot.subject, "field": slot.field} if slot else {"kind": ("retirement", "correction")}
        entries: list[dict[str, Any]] = []
        if after is None:
            told = {"kind": "recorded", "actor": fact.writer, "outcome": "recorded"}
            entries.append({"at": to_rfc3339(fact.recorded_at), **told})
            after = (0 if slot else microseconds(fact.recorded_at), "", 0)
        for _ in range(0, _SCANNED, _AT_ONCE):
            page = list(self._log.entries(connection, fact.company, after=after, limit=_AT_ONCE, **where))
            for entry in page:
                if len(entries) == limit:
                    return entries, after
                after = place_of(entry)
                if fact.id in str(entry["inputs"]):
                    shown = {name: entry[name] for name in ("kind", "rule", "reason", "actor", "outcome")}
                    entries.append({"at": to_rfc3339(entry["at"]), **shown, "decision_id": entry["id"]})
            if len(page) < _AT_ONCE:
                return entries, None
        return entries, after
