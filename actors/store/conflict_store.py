"""Conflicts, reviews and notices in the store, and what owners ruled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.metrics import AGE_NAMES, AGES
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.memory_store import known, moment
from muniment.actors.wire import pack, unpack
from muniment.policies.authority import Actor
from muniment.policies.model import ConflictKind, Fact, Scope, Slot, fold
from muniment.policies.slot_view import OpenConflict, PastRuling
from muniment.policies.weighing import Rule

OPEN, RESOLVED, WITHDRAWN = "open", "resolved", "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """An entry of an owner's list. ``subject_id``: the fact in use it is about; ``user``: whose personal fact that is;
    ``resolution``: how it ended."""

    id: str
    company: str
    kind: ConflictKind
    slot: Slot | None
    user: str | None
    rule: Rule
    reason: str
    owner: str
    opened_at: datetime
    subject_id: str | None = None
    challenger_id: str | None = None
    due_at: datetime | None = None
    delegate: str | None = None
    proposer: Actor | None = None
    evidence_ids: tuple[str, ...] = ()
    status: str = OPEN
    resolution: dict[str, Any] | None = None

    def opened(self, challenger: Fact | None) -> OpenConflict:
        """The conflict as the policies see it."""
        return OpenConflict(
            id=self.id,
            kind=self.kind,
            rule=self.rule,
            opened_at=self.opened_at,
            subject_id=self.subject_id,
            challenger=challenger,
            proposer=self.proposer,
            evidence_ids=self.evidence_ids,
        )

    def ended(self, status: str, resolution: dict[str, Any]) -> Conflict:
        """The conflict with how it ended."""
        return replace(self, status=status, resolution=resolution)


def _row(conflict: Conflict) -> dict[str, Any]:
    slot, proposer = conflict.slot, conflict.proposer
    body: dict[str, Any] = {
        "rule": conflict.rule,
        "reason": conflict.reason,
        "delegate": conflict.delegate,
        "evidence_ids": list(conflict.evidence_ids),
        "resolution": conflict.resolution,
        "slot": [slot.scope, slot.user, slot.subject, slot.field] if slot else None,
    }
    if proposer is not None:
        body["proposer"] = [proposer.id, sorted(proposer.groups), proposer.may_claim_record]
    return {
        "id": conflict.id,
        "company": conflict.company,
        "kind": conflict.kind.value,
        "status": conflict.status,
        "slot": slot.key if slot else None,
        "subject": fold(slot.subject) if slot else None,
        "field": fold(slot.field) if slot else None,
        "user": conflict.user,
        "owner": conflict.owner,
        "subject_id": conflict.subject_id,
        "challenger_id": conflict.challenger_id,
        "opened_at": microseconds(conflict.opened_at),
        "due_at": None if conflict.due_at is None else microseconds(conflict.due_at),
        "body": pack(body),
    }


def _conflict(row: Any) -> Conflict:
    body = unpack(row.body)
    slot = body["slot"]
    proposer = body.get("proposer")
    return Conflict(
        id=row.id,
        company=row.company,
        kind=ConflictKind(row.kind),
        slot=Slot(row.company, Scope(slot[0]), *slot[1:]) if slot else None,
        user=row.user,
        rule=Rule(body["rule"]),
        reason=body["reason"],
        owner=row.owner,
        opened_at=known(row.opened_at),
        subject_id=row.subject_id,
        challenger_id=row.challenger_id,
        due_at=moment(row.due_at),
        delegate=body["delegate"],
        proposer=Actor(id=proposer[0], groups=frozenset(proposer[1]), may_claim_record=proposer[2])
        if proposer
        else None,
        evidence_ids=tuple(body["evidence_ids"]),
        status=row.status,
        resolution=body["resolution"],
    )


def put_conflicts(connection: sa.Connection, conflicts: Sequence[Conflict]) -> None:
    """Adds conflicts, or writes what changed of those that are there."""
    if not conflicts:
        return
    there: set[str] = set()
    for start in range(0, len(conflicts), 500):
        ids = [c.id for c in conflicts[start : start + 500]]
        there.update(connection.execute(sa.select(t.conflicts.c.id).where(t.conflicts.c.id.in_(ids))).scalars())
    new = [_row(c) for c in conflicts if c.id not in there]
    if new:
        connection.execute(t.conflicts.insert(), new)
    for conflict in conflicts:
        if conflict.id in there:
            connection.execute(t.conflicts.update().where(t.conflicts.c.id == conflict.id).values(_row(conflict)))


def open_conflicts(connection: sa.Connection, company: str, slots: Sequence[str] | None = None) -> list[Conflict]:
    """The company's open conflicts, of these slots (by key) or all, oldest first."""
    c = t.conflicts.c
    where = [c.company == company, c.status == OPEN]
    if slots is None:
        return [_conflict(row) for row in connection.execute(sa.select(t.conflicts).where(*where).order_by(c.id))]
    found = []
    for start in range(0, len(slots), 500):
        part = sa.select(t.conflicts).where(*where, c.slot.in_(slots[start : start + 500])).order_by(c.id)
        found += [_conflict(row) for row in connection.execute(part)]
    return found


def list_conflicts(
    connection: sa.Connection,
    company: str,
    *,
    after: str = "",
    limit: int = 200,
    kind: ConflictKind | None = None,
    status: str | None = None,
    subject: str | None = None,
    field: str | None = None,
) -> list[Conflict]:
    """Conflicts of a company in the order of their opening, later than the id ``after``."""
    c = t.conflicts.c
    where = [c.company == company, c.id > after]
    for column, value in ((c.kind, kind), (c.status, status)):
        if value is not None:
            where.append(column == value)
    for column, value in ((c.subject, subject), (c.field, field)):
        if value is not None:
            where.append(column == fold(value))
    query = sa.select(t.conflicts).where(*where).order_by(c.id).limit(limit)
    return [_conflict(row) for row in connection.execute(query)]


def about(connection: sa.Connection, company: str, fact_ids: Sequence[str]) -> list[Conflict]:
    """The open conflicts whose subject or challenger one of these facts is."""
    c = t.conflicts.c
    found: dict[str, Conflict] = {}
    # A query for each column, so that each has an index to go by.
    for column in (c.subject_id, c.challenger_id):
        for start in range(0, len(fact_ids), 500):
            part = column.in_(fact_ids[start : start + 500])
            query = sa.select(t.conflicts).where(c.company == company, part, c.status == OPEN)
            found.update({row.id: _conflict(row) for row in connection.execute(query)})
    return [found[id] for id in sorted(found)]


def open_counts(connection: sa.Connection, company: str) -> dict[str, int]:
    """How many conflicts, reviews and notices are open."""
    c = t.conflicts.c
    query = sa.select(c.kind, sa.func.count()).where(c.company == company, c.status == OPEN).group_by(c.kind)
    return {row[0]: row[1] for row in connection.execute(query)}


def open_by_age(connection: sa.Connection, now: int) -> list[tuple[str, str, int, int]]:
    """What is open of all companies, by kind and name of age: how many, and how many of these are overdue."""
    c = t.conflicts.c
    age = sa.case(*((c.opened_at >= now - bound * 1_000_000, name) for bound, name in AGES), else_=AGE_NAMES[-1])
    overdue = sa.func.sum(sa.case((c.due_at <= now, 1), else_=0))
    # Written out, because only then do planners know that the index of what is open has it all.
    still_open = c.status == sa.literal_column(f"'{OPEN}'")
    query = sa.select(c.kind, age.label("age"), sa.func.count(), overdue).where(still_open)
    return [(kind, name, count, late) for kind, name, count, late in connection.execute(query.group_by("kind", "age"))]


def involved(connection: sa.Connection, company: str, ids: Iterable[str]) -> set[str]:
    """Which of these facts an open conflict is about."""
    wanted = sorted(ids)
    found: set[str] = set()
    c = t.conflicts.c
    for column in (c.subject_id, c.challenger_id):
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            query = sa.select(column).where(c.company == company, c.status == OPEN, column.in_(part))
            found.update(connection.execute(query).scalars())
    return found


def challenged(connection: sa.Connection, company: str, ids: Iterable[str]) -> set[tuple[str, str, str]]:
    """Where these facts were the new value of a conflict: ``(fact, subject, field)``. A ruling may have moved them."""
    wanted = sorted(ids)
    found: set[tuple[str, str, str]] = set()
    c = t.conflicts.c
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        query = sa.select(c.challenger_id, c.subject, c.field).where(
            c.company == company, c.challenger_id.in_(part), c.subject.is_not(None), c.field.is_not(None)
        )
        found.update((row.challenger_id, row.subject, row.field) for row in connection.execute(query.distinct()))
    return found


def forget_value(connection: sa.Connection, company: str, slot: str, fact_id: str) -> None:
    """Takes the value that an owner gave out of the ruling that this fact came of: it is deleted with the fact."""
    c = t.conflicts.c
    query = sa.select(t.conflicts).where(c.company == company, c.slot == slot, c.status == RESOLVED)
    for conflict in map(_conflict, connection.execute(query).all()):
        ending = conflict.resolution or {}
        if ending.get("fact") == fact_id:
            ending = {name: value for name, value in ending.items() if name != "value"}
            put_conflicts(connection, [replace(conflict, resolution=ending)])


def delete_of_user(connection: sa.Connection, company: str, user: str, slots: Iterable[str]) -> int:
    """Deletes the conflicts about a user's personal facts, and what was ruled on their slots; how many conflicts."""
    c, r = t.conflicts.c, t.rulings.c
    mine = (c.company == company, c.user == user)
    ruled = {key for key in connection.execute(sa.select(c.slot).where(*mine)).scalars() if key is not None}
    keys = sorted(ruled | set(slots))
    for start in range(0, len(keys), 500):
        part = keys[start : start + 500]
        connection.execute(t.rulings.delete().where(r.company == company, r.slot.in_(part)))
    return connection.execute(t.conflicts.delete().where(*mine)).rowcount


def get_conflict(connection: sa.Connection, company: str, id: str) -> Conflict | None:
    """The company's conflict with this id, or None."""
    c = t.conflicts.c
    row = connection.execute(sa.select(t.conflicts).where(c.company == company, c.id == id)).first()
    return _conflict(row) if row else None


def add_ruling(connection: sa.Connection, company: str, id: str, slot: str, ruling: PastRuling) -> None:
    """Records what was ruled on a slot; ``id``: of the conflict, or of the fact that corrected another."""
    body = {"winner_key": ruling.winner_key, "losers": sorted(map(list, ruling.losers))}
    connection.execute(
        t.rulings.insert().values(
            id=id,
            company=company,
            slot=slot,
            at=microseconds(ruling.at),
            body=pack(body),
        )
    )


def past_rulings(connection: sa.Connection, company: str, slots: Sequence[str]) -> dict[str, list[PastRuling]]:
    """What was ruled on each of these slots (by key), oldest first."""
    found: dict[str, list[PastRuling]] = {}
    r = t.rulings.c
    for start in range(0, len(slots), 500):
        part = slots[start : start + 500]
        query = sa.select(t.rulings).where(r.company == company, r.slot.in_(part)).order_by(r.at, r.id)
        for row in connection.execute(query):
            body = unpack(row.body)
            losers = frozenset((value, source) for value, source in body["losers"])
            past = PastRuling(at=known(row.at), winner_key=body["winner_key"], losers=losers)
            found.setdefault(row.slot, []).append(past)
    return found
