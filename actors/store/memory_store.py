"""Reading and writing facts: plain functions of a connection, so that the caller decides on the transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from muniment.actors.ids import time_of
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.statements import insert_rows, read_row, upsert_rows
from muniment.actors.wire import fact_from_dict, fact_to_dict, pack, unpack
from muniment.policies.errors import ConfigurationError, IdempotencyMismatch
from muniment.policies.model import Fact, Slot, Status, Tier
from muniment.policies.slot_history import Change, SlotEvent

#: Ids in one ``IN`` list: well under SQLite's bound on variables.
_IN_LIST = 500
#: How long the answer to a request is kept: one that a caller named, and one that was named on its way here.
REMEMBERED = timedelta(hours=24)
REMEMBERED_UNNAMED = timedelta(minutes=10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def known(us: int) -> datetime:
    """The time that ``microseconds`` counted."""
    return EPOCH + timedelta(microseconds=us)


def moment(us: int | None) -> datetime | None:
    """The time that ``microseconds`` counted, None for none."""
    return None if us is None else known(us)


@dataclass(frozen=True, slots=True)
class Stored:
    """A fact as it lies in the store: where it is indexed (None: nowhere) and how often it was returned.

    ``features``: what was found in its text, see ``kept_features``; None where that is not kept. ``changes``: how often
    it was changed, its usage aside.
    """

    fact: Fact
    tier: Tier | None
    usage: int
    vector: bytes
    features: bytes | None = None
    changes: int = 0


def _fact(row: Any) -> Fact:
    return fact_from_dict(unpack(row.body))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _us(value: datetime | None) -> int | None:
    return None if value is None else microseconds(value)


def fact_row(fact: Fact) -> dict[str, Any]:
    """The columns of a fact that say what the fact says."""
    return {
        "id": fact.id,
        "company": fact.company,
        "slot": fact.slot.key if fact.slot else None,
        "status": fact.status.value,
        "user": fact.user,
        "recorded_at": microseconds(fact.recorded_at),
        "expires_at": _us(fact.expires_at),
        "review_at": _us(fact.review_at),
        "corroborates": fact.corroborates,
        "superseded_by": fact.superseded_by,
        "body": pack(fact_to_dict(fact)),
    }


def insert_facts(connection: sa.Connection, stored: Sequence[Stored]) -> None:
    """Adds facts with their vectors and what they are derived from."""
    if not stored:
        return
    rows = []
    for one in stored:
        tier = None if one.tier is None else one.tier.value
        values = {**fact_row(one.fact), "tier": tier, "usage": one.usage, "changes": 0}
        rows.append([values[column.name] for column in t.facts.columns])
    insert_rows(connection, t.facts, rows)
    insert_rows(connection, t.vectors, [(s.fact.id, s.fact.company, s.vector, s.features) for s in stored])
    derived = [
        {"parent_id": parent, "child_id": s.fact.id, "company": s.fact.company}
        for s in stored
        for parent in dict.fromkeys(s.fact.source.derived_from)
    ]
    if derived:
        connection.execute(t.derivations.insert(), derived)


def update_facts(connection: sa.Connection, facts: Iterable[Fact]) -> None:
    """Writes facts that are there anew; not where they are indexed, nor how often they were returned."""
    rows = [fact_row(fact) for fact in facts]
    if rows:
        values: dict[str, Any] = {
            name: sa.bindparam(name) for name in rows[0] if name not in ("id", "company", "recorded_at")
        }
        values["changes"] = t.facts.c.changes + 1
        statement = t.facts.update().where(t.facts.c.id == sa.bindparam("key")).values(values)
        connection.execute(statement, [{"key": row.pop("id"), **row} for row in rows])


def set_tiers(connection: sa.Connection, tiers: dict[str, Tier | None]) -> None:
    """Writes where facts are indexed now; None is nowhere."""
    if tiers:
        changes = t.facts.c.changes + 1
        statement = t.facts.update().where(t.facts.c.id == sa.bindparam("key"))
        statement = statement.values(tier=sa.bindparam("tier"), changes=changes)
        connection.execute(statement, [{"key": key, "tier": tier} for key, tier in tiers.items()])


def set_usage(connection: sa.Connection, usage: dict[str, int]) -> None:
    """Writes how often facts were returned."""
    if usage:
        statement = t.facts.update().where(t.facts.c.id == sa.bindparam("key")).values(usage=sa.bindparam("usage"))
        connection.execute(statement, [{"key": key, "usage": count} for key, count in usage.items()])


def set_features(connection: sa.Connection, features: dict[str, bytes]) -> None:
    """Keeps what was found in the texts of facts."""
    if features:
        statement = t.vectors.update().where(t.vectors.c.fact_id == sa.bindparam("key"))
        rows = [{"key": key, "features": found} for key, found in features.items()]
        connection.execute(statement.values(features=sa.bindparam("features")), rows)


def _lists(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IN_LIST):
        yield ids[start : start + _IN_LIST]


def delete_facts(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Deletes facts, their vectors, their derivations and what happened to them for good."""
    for part in _lists(ids):
        connection.execute(t.facts.delete().where(t.facts.c.id.in_(part)))
        connection.execute(t.vectors.delete().where(t.vectors.c.fact_id.in_(part)))
        connection.execute(t.staged_vectors.delete().where(t.staged_vectors.c.fact_id.in_(part)))
        connection.execute(t.derivations.delete().where(t.derivations.c.child_id.in_(part)))
        connection.execute(t.fact_events.delete().where(t.fact_events.c.fact_id.in_(part)))


def delete_vector(connection: sa.Connection, id: str) -> None:
    """Deletes the vector of a fact whose content is gone."""
    for table in (t.vectors, t.staged_vectors):
        connection.execute(table.delete().where(table.c.fact_id == id))


def get_facts(connection: sa.Connection, company: str, ids: Sequence[str]) -> dict[str, Fact]:
    """The company's facts with these ids; what is not there, or another company's, is left out."""
    found = {}
    for part in _lists(ids):
        query = sa.select(t.facts).where(t.facts.c.company == company, t.facts.c.id.in_(part))
        found.update({row.id: _fact(row) for row in connection.execute(query)})
    return found


def texts_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, str]:
    """The texts of facts, whosever they are."""
    found = {}
    for part in _lists(ids):
        rows = connection.execute(sa.select(t.facts.c.id, t.facts.c.body).where(t.facts.c.id.in_(part)))
        found.update({row.id: _fact(row).text for row in rows})
    return found


def get_vectors(connection: sa.Connection, company: str, ids: Sequence[str]) -> dict[str, bytes]:
    """The vectors of these facts."""
    found = {}
    for part in _lists(ids):
        query = sa.select(t.vectors.c.fact_id, t.vectors.c.vector).where(
            t.vectors.c.company == company, t.vectors.c.fact_id.in_(part)
        )
        found.update({row.fact_id: bytes(row.vector) for row in connection.execute(query)})
    return found


def slot_facts(
    connection: sa.Connection, company: str, slots: Sequence[str], statuses: Sequence[Status] | None = None
) -> dict[str, list[Fact]]:
    """The facts of each slot (by key), of these statuses or all that were ever told, in the order of recording."""
    found: dict[str, list[Fact]] = {slot: [] for slot in slots}
    for part in _lists(list(found)):
        where = [t.facts.c.company == company, t.facts.c.slot.in_(part)]
        if statuses is not None:
            where.append(t.facts.c.status.in_([status.value for status in statuses]))
        query = sa.select(t.facts).where(*where).order_by(t.facts.c.recorded_at, t.facts.c.id)
        for row in connection.execute(query):
            found[row.slot].append(_fact(row))
    return found


def list_facts(
    connection: sa.Connection, company: str, *, user: str | None, before: str | None = None, limit: int = 200
) -> list[Fact]:
    """Facts visible to ``user``, newest first, older than the id ``before``; deleted ones are left out."""
    f = t.facts.c
    visible = f.user.is_(None) if user is None else sa.or_(f.user.is_(None), f.user == user)
    where = [f.company == company, visible, f.status != Status.DELETED.value]
    if before is not None:
        where.append(f.id < before)
    query = sa.select(t.facts).where(*where).order_by(f.id.desc()).limit(limit)
    return [_fact(row) for row in connection.execute(query)]


def indexed_facts(connection: sa.Connection, company: str, ids: Sequence[str] | None = None) -> Iterator[Stored]:
    """What the indexes of a company hold (of it these facts), in the order of recording."""
    f, v = t.facts.c, t.vectors.c
    query = (
        sa.select(f.body, f.tier, f.usage, v.vector, v.features, f.changes)
        .join(t.vectors, v.fact_id == f.id)
        .where(f.company == company, f.tier.is_not(None))
        .order_by(f.id)
    )
    for part in [None] if ids is None else _lists(ids):
        some = query if part is None else query.where(f.id.in_(part))
        for body, tier, usage, vector, features, changes in connection.execute(some.execution_options(yield_per=1000)):
            fact = fact_from_dict(unpack(body))
            yield Stored(fact, Tier(tier), usage, bytes(vector), _bytes(features), changes)


def indexed_changes(connection: sa.Connection, company: str) -> dict[str, int]:
    """How often each fact that the indexes of a company hold was changed."""
    query = sa.select(t.facts.c.id, t.facts.c.changes).where(t.facts.c.company == company, t.facts.c.tier.is_not(None))
    return {row.id: row.changes for row in connection.execute(query)}


def companies_by_size(connection: sa.Connection, limit: int) -> list[str]:
    """The companies whose indexes hold most, the largest first."""
    size = sa.func.count()
    indexed = sa.select(t.facts.c.company).where(t.facts.c.tier.is_not(None)).group_by(t.facts.c.company)
    return list(connection.execute(indexed.order_by(size.desc(), t.facts.c.company).limit(limit)).scalars())


def crowded_slots(connection: sa.Connection, company: str) -> list[Slot]:
    """The slots in which more than one fact is current: corroborated, of several periods, or undecided."""
    f = t.facts.c
    crowded = (
        sa.select(f.slot, sa.func.min(f.id))
        .where(f.company == company, f.slot.is_not(None), f.status == Status.CURRENT.value)
        .group_by(f.slot)
        .having(sa.func.count() > 1)
    )
    ids = [row[1] for row in connection.execute(crowded)]
    return [fact.slot for fact in get_facts(connection, company, ids).values() if fact.slot is not None]


def told_facts(
    connection: sa.Connection, company: str, user: str | None, known_at: datetime | None, limit: int
) -> list[Fact]:
    """The newest ``limit`` facts of slots that ``user`` may see and that were recorded by ``known_at`` (None: now)."""
    f = t.facts.c
    visible = f.user.is_(None) if user is None else sa.or_(f.user.is_(None), f.user == user)
    where = [f.company == company, f.slot.is_not(None), visible]
    if known_at is not None:
        where.append(f.recorded_at <= microseconds(known_at))
    return [
        _fact(row) for row in connection.execute(sa.select(t.facts).where(*where).order_by(f.id.desc()).limit(limit))
    ]


def told_slots(connection: sa.Connection, company: str, limit: int) -> list[Slot]:
    """Slots of which more than one fact was told, at most ``limit``."""
    f = t.facts.c
    told = sa.select(sa.func.min(f.id)).where(f.company == company, f.slot.is_not(None)).group_by(f.slot)
    ids = list(connection.execute(told.having(sa.func.count() > 1).limit(limit)).scalars())
    return [fact.slot for fact in get_facts(connection, company, ids).values() if fact.slot is not None]


def newest_time(connection: sa.Connection) -> datetime | None:
    """When the newest fact of all was recorded, None where there is none."""
    newest: str | None = connection.execute(sa.select(sa.func.max(t.facts.c.id))).scalar()
    return None if newest is None else time_of(newest)


def usage_of(connection: sa.Connection, company: str, ids: Sequence[str]) -> dict[str, int]:
    """How often each of these facts was returned."""
    found: dict[str, int] = {}
    for part in _lists(ids):
        query = sa.select(t.facts.c.id, t.facts.c.usage).where(t.facts.c.company == company, t.facts.c.id.in_(part))
        found.update({row.id: row.usage for row in connection.execute(query)})
    return found


def due_for_review(connection: sa.Connection, company: str, now: datetime, limit: int) -> list[Fact]:
    """Current facts whose review date has passed and that no review was opened for since."""
    f, c = t.facts.c, t.conflicts.c
    reviewed = sa.exists().where(
        c.company == company, c.subject_id == f.id, c.kind == "review", c.opened_at >= f.review_at
    )
    where = (
        f.company == company,
        f.review_at <= microseconds(now),
        f.status == Status.CURRENT.value,
        f.corroborates.is_(None),
        sa.or_(f.expires_at.is_(None), f.expires_at > microseconds(now)),
        ~reviewed,
    )
    return [_fact(row) for row in connection.execute(sa.select(t.facts).where(*where).order_by(f.id).limit(limit))]


def over_but_open(connection: sa.Connection, company: str, now: datetime, limit: int) -> list[Fact]:
    """Facts whose period is over by time alone, and that something open is still about."""
    f, c = t.facts.c, t.conflicts.c
    about = sa.or_(c.subject_id == f.id, c.challenger_id == f.id)
    where = (
        c.company == company,
        c.status == "open",
        f.company == company,
        f.status == Status.CURRENT.value,
        f.expires_at <= microseconds(now),
    )
    query = sa.select(t.facts).join(t.conflicts, about).where(*where).distinct().order_by(f.id).limit(limit)
    return [_fact(row) for row in connection.execute(query)]


def ids_of_user(connection: sa.Connection, company: str, user: str) -> dict[str, str | None]:
    """The ids of a user's personal facts, each with the key of its slot."""
    f = t.facts.c
    query = sa.select(f.id, f.slot).where(f.company == company, f.user == user)
    return {row.id: row.slot for row in connection.execute(query)}


def add_events(connection: sa.Connection, company: str, events: Iterable[tuple[str, SlotEvent]]) -> None:
    """Records what happened to facts; no two changes of one fact and kind may share an instant."""
    rows = [
        {
            "fact_id": id,
            "at": microseconds(event.at),
            "change": event.change.value,
            "company": company,
            "was": None if event.was is None else pack(event.was),
        }
        for id, event in events
    ]
    if rows:
        connection.execute(t.fact_events.insert(), rows)


def get_events(connection: sa.Connection, company: str, ids: Sequence[str]) -> dict[str, tuple[SlotEvent, ...]]:
    """What happened to each of these facts, in the order of time."""
    found: dict[str, list[SlotEvent]] = {}
    e = t.fact_events.c
    for part in _lists(ids):
        query = sa.select(t.fact_events).where(e.company == company, e.fact_id.in_(part)).order_by(e.at)
        for row in connection.execute(query):
            was = None if row.was is None else unpack(row.was)
            event = SlotEvent(known(row.at), Change(row.change), None if was is None else (was[0], was[1]))
            found.setdefault(row.fact_id, []).append(event)
    return {id: tuple(events) for id, events in found.items()}


def children(connection: sa.Connection, company: str, parents: Sequence[str]) -> list[str]:
    """The ids of what was derived from these facts."""
    found: dict[str, None] = {}
    d = t.derivations.c
    for part in _lists(parents):
        query = sa.select(d.child_id).where(d.company == company, d.parent_id.in_(part)).order_by(d.child_id)
        found.update(dict.fromkeys(connection.execute(query).scalars()))
    return sorted(found)


_ANSWERED = 'SELECT body_hash, expires_at, answer FROM requests WHERE company = ? AND "key" = ?'


def remembered_answer(
    connection: sa.Connection, company: str, key: str, body_hash: bytes, now: datetime
) -> dict[str, Any] | None:
    """The answer that this request got in its time. Raises ``IdempotencyMismatch`` for another body."""
    row = read_row(connection, _ANSWERED, company, key)
    if row is None or row[1] <= microseconds(now):
        return None
    if bytes(row[0]) != body_hash:
        raise IdempotencyMismatch("this idempotency key came with another body")
    answer: dict[str, Any] = unpack(row[2])
    return answer


def remember_answer(
    connection: sa.Connection, company: str, key: str, body_hash: bytes, until: datetime, answer: dict[str, Any]
) -> None:
    """Keeps a request's answer."""
    upsert_rows(connection, t.requests, [(company, key, body_hash, microseconds(until), pack(answer))])


def forget_answers(connection: sa.Connection, now: datetime, limit: int) -> int:
    """Deletes at most ``limit`` answers whose time is over; how many went."""
    r = t.requests.c
    over = sa.select(r.company, r.key).where(r.expires_at <= microseconds(now)).order_by(r.expires_at).limit(limit)
    pairs = [(row.company, row.key) for row in connection.execute(over.with_for_update(skip_locked=True))]
    if pairs:
        connection.execute(t.requests.delete().where(sa.tuple_(r.company, r.key).in_(pairs)))
    return len(pairs)


def model_dimension(connection: sa.Connection) -> int | None:
    """The dimension of the stored vectors, None where there are none yet."""
    dimension: int | None = connection.execute(sa.select(t.embedding_model.c.dimension)).scalar()
    return dimension


def model_name(connection: sa.Connection) -> str | None:
    """The name of the model that the stored vectors are from, None where there are none yet."""
    name: str | None = connection.execute(sa.select(t.embedding_model.c.name)).scalar()
    return name


def claim_model(connection: sa.Connection, name: str, dimension: int | None = None) -> None:
    """Records the model of the stored vectors, or refuses another one than they are from.

    Where the dimension is not known yet, only the names are compared.
    """
    row = read_row(connection, "SELECT name, dimension FROM embedding_model")
    if row is None:
        if dimension is not None:
            connection.execute(t.embedding_model.insert().values(name=name, dimension=dimension))
    elif row[0] != name or dimension not in (None, row[1]):
        raise ConfigurationError(
            f"the stored vectors are from {row[0]} ({row[1]} dimensions), not from {name}: set workers.model "
            "back, or stop the service and run: muniment reindex",
            stored=row[0],
            running=name,
        )


_COMPANY_TABLES = tuple(table for table in t.TABLES if "company" in table.c)


def count_of(connection: sa.Connection, company: str) -> int:
    """How many rows there are of a company."""
    counts = (sa.select(sa.func.count()).where(table.c.company == company) for table in _COMPANY_TABLES)
    return sum(connection.execute(count).scalar_one() for count in counts)


def counts_of(
    connection: sa.Connection, company: str, labelled: Callable[[str | None, str | None], bool] | None = None
) -> dict[str, dict[str, int]]:
    """How many facts of a company there are by status, and by tier where they are indexed.

    ``labelled``: says of an area and an agent whether facts of theirs count; then each fact is looked at.
    """
    found: dict[str, dict[str, int]] = {"status": {}, "tier": {}}
    f = t.facts.c
    if labelled is None:
        for name, column in (("status", f.status), ("tier", f.tier)):
            query = sa.select(column, sa.func.count()).where(f.company == company).group_by(column)
            found[name] = {value: count for value, count in connection.execute(query) if value is not None}
        return found
    query = sa.select(f.status, f.tier, f.body).where(f.company == company)
    for status, tier, body in connection.execute(query, execution_options={"yield_per": 1000}):
        fact = unpack(body)
        if labelled(fact.get("area"), fact.get("agent")):
            for name, value in (("status", status), ("tier", tier)):
                if value is not None:
                    found[name][value] = found[name].get(value, 0) + 1
    return found


def erase_company(connection: sa.Connection, company: str) -> dict[str, int]:
    """Deletes all rows of a company, its decisions included; the number of each."""
    counts = {}
    for table in _COMPANY_TABLES:
        counts[table.name] = connection.execute(table.delete().where(table.c.company == company)).rowcount
    return counts
