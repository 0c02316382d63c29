"""What is stored of effects: keys, handovers of keys, repeats of runs, the ledger's clock, and the trail.

The trail is a decision log. The statements of the hot path are written out, a whole batch in one, because SQLAlchemy
Core's own cost would be the larger part of them; what dialects differ in stands in ``statements`` and ``_Statements``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from muniment.actors.store.decision_log import (
    GENESIS,
    Decision,
    DecisionLog,
    decision_table,
    head_table,
    microseconds,
)
from muniment.actors.store.engine import Schema, cursor_of, metadata, only_where
from muniment.actors.store.statements import insert, mark, upsert
from muniment.policies.access import covers
from muniment.policies.fingerprint import KEY_BYTES, company_prefix
from muniment.policies.reservation import State, settled

decisions = decision_table("effect_decisions")
decision_heads = head_table("effect_decisions")
#: For reading and verifying; a ledger appends with ``EffectStore.append``.
decision_log = DecisionLog(decisions, decision_heads)

#: The hot table: one row per key that is held, confirmed, or was either a short while ago.
keys = sa.Table(
    "effect_keys",
    metadata,
    sa.Column("key", sa.LargeBinary(KEY_BYTES), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("area", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("run_id", sa.Text),
    sa.Column("step_id", sa.Text),
    # Grows with each reservation; it is the ledger's time at the reservation, made unique.
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("nonce", sa.LargeBinary(8), nullable=False),
    # The decision that last handed the reservation out; only while reserved.
    sa.Column("claim", sa.String(64)),
    # The end of the lease while reserved, of the window once confirmed (null: permanent).
    sa.Column("ends_at", sa.BigInteger),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("lease", sa.BigInteger, nullable=False),
    sa.Column("window", sa.BigInteger),
    sa.Column("late", sa.Integer, nullable=False),
    sa.Column("note", sa.Text),
    sa.Column("result_ref", sa.Text),
    # From this instant on the row counts as absent; null: never.
    sa.Column("retire_at", sa.BigInteger),
    sa.Index("effect_keys_retire", "retire_at", **only_where("retire_at IS NOT NULL")),
    sa.Index("effect_keys_reserved", "company", "fence", **only_where("state = 'reserved'")),
)

#: Tokens whose key was given to somebody else unconfirmed: what a late confirmation is answered from.
handovers = sa.Table(
    "effect_handovers",
    metadata,
    sa.Column("key", sa.LargeBinary(KEY_BYTES), primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("nonce", sa.LargeBinary(8), nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("step_id", sa.Text, nullable=False),
    sa.Column("reported", sa.Integer, nullable=False),
    sa.Column("retire_at", sa.BigInteger, nullable=False, index=True),
)

#: How often a run met the same finished effect. ``id`` is the SHA-256 of key and run.
repeats = sa.Table(
    "effect_repeats",
    metadata,
    sa.Column("id", sa.LargeBinary(32), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False, index=True),
    sa.Column("count", sa.Integer, nullable=False),
    sa.Column("retire_at", sa.BigInteger, nullable=False, index=True),
)

#: The latest time each ledger has acted at: no ledger ever starts before it.
clock = sa.Table(
    "effect_clock",
    metadata,
    sa.Column("role", sa.String(64), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
)

TABLES = Schema("effects", "0001", (keys, handovers, repeats, clock, decisions, decision_heads))


@dataclass(slots=True)
class KeyRow:
    """One row of the hot table, in the order of its columns. Times in microseconds."""

    key: bytes
    company: str
    area: str
    agent: str
    tool: str
    state: State
    run_id: str | None
    step_id: str | None
    fence: int
    nonce: bytes
    claim: str | None
    ends_at: int | None
    changed_at: int
    lease: int
    window: int | None
    late: int
    note: str | None
    result_ref: str | None
    retire_at: int | None

    def values(self) -> tuple[Any, ...]:
        """The row as parameters."""
        return (
            self.key,
            self.company,
            self.area,
            self.agent,
            self.tool,
            self.state.value,
            self.run_id,
            self.step_id,
            self.fence,
            self.nonce,
            self.claim,
            self.ends_at,
            self.changed_at,
            self.lease,
            self.window,
            self.late,
            self.note,
            self.result_ref,
            self.retire_at,
        )


@dataclass(frozen=True, slots=True)
class Handover:
    """Who held a key under a token before somebody else got it."""

    run_id: str
    step_id: str
    nonce: bytes
    reported: bool


def repeat_id(key: bytes, run_id: str) -> bytes:
    """The id of a run's counter for a key."""
    return hashlib.sha256(key + run_id.encode()).digest()


class _Statements:
    """The hot path's SQL for one dialect."""

    def __init__(self, dialect: sa.Dialect) -> None:
        self._sqlite = dialect.name == "sqlite"
        sign = mark(dialect)
        self._key_columns = ", ".join(f'"{c.name}"' for c in keys.columns)
        self.save_keys = upsert(keys, sign)
        self.save_repeats = upsert(repeats, sign)
        self.save_clock = upsert(clock, sign)
        self.save_heads = upsert(decision_heads, sign)
        self.append = insert(decisions, sign)

    def select_heads(self, streams: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
        """The newest number and hash of these streams."""
        return self._select_in("SELECT stream, seq, hash FROM effect_decisions_heads WHERE stream", streams)

    def select_keys(self, wanted: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        """The rows of these keys."""
        return self._select_in(f"SELECT {self._key_columns} FROM effect_keys WHERE key", wanted)

    def select_repeats(self, wanted: Sequence[bytes]) -> tuple[str, tuple[Any, ...]]:
        """Id and count of these counters."""
        return self._select_in("SELECT id, count, retire_at FROM effect_repeats WHERE id", wanted)

    def _select_in(self, select: str, wanted: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
        if not self._sqlite:
            return f"{select} = ANY(%s)", (list(wanted),)
        # A few lengths only, so that SQLite's prepared statements are found again.
        length = 1 << (len(wanted) - 1).bit_length()
        padded = (*wanted, *(wanted[-1],) * (length - len(wanted)))
        return f"{select} IN ({', '.join('?' * length)})", padded


class EffectStore:
    """Reads and writes of one ledger, inside transactions that the ledger begins and commits."""

    def __init__(self, dialect: sa.Dialect, role: str) -> None:
        self.role = role
        self._sql = _Statements(dialect)

    def load(self, connection: sa.Connection, wanted: Collection[bytes], now: int) -> dict[bytes, KeyRow]:
        """The rows of the keys that have one; a retired row counts as absent."""
        if not wanted:
            return {}
        found = {}
        for values in cursor_of(connection).execute(*self._sql.select_keys(list(wanted))):
            row = KeyRow(*values)
            if row.retire_at is None or row.retire_at > now:
                row.state = State(row.state)
                found[row.key] = row
        return found

    def save(self, connection: sa.Connection, rows: Iterable[KeyRow]) -> None:
        """Inserts or replaces the rows."""
        values = [row.values() for row in rows]
        if values:
            cursor_of(connection).executemany(self._sql.save_keys, values)

    def load_repeats(self, connection: sa.Connection, ids: Collection[bytes], now: int) -> dict[bytes, int]:
        """The counters that there are."""
        if not ids:
            return {}
        rows = cursor_of(connection).execute(*self._sql.select_repeats(list(ids)))
        return {bytes(row[0]): row[1] for row in rows if row[2] > now}

    def save_repeats(self, connection: sa.Connection, rows: Sequence[tuple[bytes, str, int, int]]) -> None:
        """Inserts or replaces counters: id, company, count, when they may go."""
        if rows:
            cursor_of(connection).executemany(self._sql.save_repeats, rows)

    def append(self, connection: sa.Connection, trail: Sequence[Decision]) -> None:
        """Adds decisions of any companies to this ledger's chains, in this order within each.

        The heads are read each time rather than kept: another ledger may have erased a company.
        """
        if not trail:
            return
        streams = {f"{self.role}:{decision.company}" for decision in trail}
        cursor = cursor_of(connection)
        found = cursor.execute(*self._sql.select_heads(list(streams)))
        heads = {row[0]: (row[1], bytes(row[2])) for row in found}
        ends: dict[str, tuple[str, str, int, bytes]] = {}
        entries = []
        for decision in trail:
            stream = f"{self.role}:{decision.company}"
            seq, head = heads.get(stream, (0, GENESIS))
            body = decision.body()
            seq, head = seq + 1, hashlib.sha256(head + body).digest()
            heads[stream] = (seq, head)
            ends[stream] = (stream, decision.company, seq, head)
            entries.append(
                (
                    stream,
                    seq,
                    decision.id,
                    decision.company,
                    microseconds(decision.at),
                    decision.kind,
                    decision.subject,
                    decision.field,
                    decision.run_id,
                    body,
                    head,
                )
            )
        cursor.executemany(self._sql.append, entries)
        cursor.executemany(self._sql.save_heads, list(ends.values()))

    def read_clock(self, connection: sa.Connection) -> int:
        """The latest time any ledger has acted at, 0 where none has."""
        return connection.execute(sa.select(sa.func.max(clock.c.at))).scalar() or 0

    def save_clock(self, connection: sa.Connection, at: int) -> None:
        """Moves this ledger's latest time."""
        cursor_of(connection).execute(self._sql.save_clock, (self.role, at))

    def hand_over(self, connection: sa.Connection, row: KeyRow, retire_at: int) -> None:
        """Remembers who held ``row``'s key, before its next reservation overwrites that."""
        values = {
            "key": row.key,
            "fence": row.fence,
            "nonce": row.nonce,
            "run_id": row.run_id,
            "step_id": row.step_id,
            "reported": 0,
            "retire_at": retire_at,
        }
        connection.execute(handovers.insert().values(values))

    def handover(self, connection: sa.Connection, key: bytes, fence: int, now: int) -> Handover | None:
        """Who held the key under this token, where it was handed over since."""
        h = handovers.c
        query = sa.select(h.run_id, h.step_id, h.nonce, h.reported).where(
            h.key == key, h.fence == fence, h.retire_at > now
        )
        row = connection.execute(query).first()
        return Handover(row.run_id, row.step_id, bytes(row.nonce), bool(row.reported)) if row else None

    def mark_reported(self, connection: sa.Connection, key: bytes, fence: int) -> None:
        """A late confirmation of this handover stands in the trail: once is enough."""
        h = handovers.c
        connection.execute(handovers.update().where(h.key == key, h.fence == fence).values(reported=1))

    def is_recorded(
        self, connection: sa.Connection, company: str, decision_id: str, since: int, run_id: str | None = None
    ) -> bool:
        """Whether the decision stands in the trail since ``since``; sooner found where its run is known."""
        d = decisions.c
        query = sa.select(d.seq).where(d.company == company, d.at >= since, d.id == decision_id).limit(1)
        if run_id is not None:
            query = query.where(d.run_id == run_id)
        return connection.execute(query).first() is not None

    def retire(self, connection: sa.Connection, now: int, limit: int) -> int:
        """Deletes at most ``limit`` rows of each table that count as absent; how many went."""
        gone = 0
        for table in (keys, handovers, repeats):
            columns = list(table.primary_key.columns)
            due = sa.select(*columns).where(table.c.retire_at <= now).order_by(table.c.retire_at).limit(limit)
            due = due.with_for_update(skip_locked=True)
            rows = [tuple(row) for row in connection.execute(due)]
            if rows:
                # The time is asked again: another ledger may have taken the key since.
                these = (sa.tuple_(*columns).in_(rows), table.c.retire_at <= now)
                gone += connection.execute(table.delete().where(*these)).rowcount
        return gone

    def erase(self, connection: sa.Connection, company: str, limit: int) -> tuple[int, int, int]:
        """Deletes at most ``limit`` rows of each table of a company: how many effects, decisions and repeats went."""
        prefix = company_prefix(company)
        in_range = (keys.c.key >= prefix, keys.c.key < prefix + b"\xff" * (KEY_BYTES - len(prefix) + 1))
        query = sa.select(keys.c.key).where(*in_range, keys.c.company == company).limit(limit)
        some = [row.key for row in connection.execute(query)]
        for table in (handovers, keys):
            connection.execute(table.delete().where(table.c.key.in_(some)))
        ids = sa.select(repeats.c.id).where(repeats.c.company == company).limit(limit)
        counters = connection.execute(repeats.delete().where(repeats.c.id.in_(ids))).rowcount
        d = decisions.c
        oldest = connection.execute(sa.select(d.stream, d.seq).where(d.company == company).limit(limit)).all()
        if oldest:
            pairs = [(row.stream, row.seq) for row in oldest]
            connection.execute(decisions.delete().where(sa.tuple_(d.stream, d.seq).in_(pairs)))
        else:
            connection.execute(decision_heads.delete().where(decision_heads.c.company == company))
        return len(some), len(oldest), counters


@dataclass(frozen=True, slots=True)
class KeyPage:
    """A page of keys; ``next``: where the following one begins, or None."""

    rows: list[KeyRow]
    next: tuple[int, bytes] | None


#: How many keys one page looks at, at the most, to find those that were asked for.
_SCANNED = 5_000


def list_keys(
    connection: sa.Connection,
    company: str,
    now: int,
    *,
    state: State | None = None,
    equal: Mapping[str, str | None],
    after: tuple[int, bytes] | None = None,
    limit: int = 50,
) -> KeyPage:
    """Keys of a company that are in ``state`` at ``now`` and have the values ``equal`` (None: any). Area and agent
    compare folded.

    What is reserved comes oldest first; anything else in the order of the keys. A page looks at a bounded number of
    keys, so that it may hold fewer than ``limit`` and still have a next one.
    """
    k = keys.c
    query = sa.select(keys).where(k.company == company)
    if state is State.RESERVED:
        later = sa.tuple_(k.fence, k.key) > sa.tuple_(*map(sa.literal, after or (0, b"")))
        query = query.where(k.state == State.RESERVED.value, later).order_by(k.fence, k.key)
    else:
        first = company_prefix(company)
        beyond = first + b"\xff" * (KEY_BYTES - len(first) + 1)
        query = query.where(k.key > (after[1] if after else first), k.key < beyond).order_by(k.key)
    found: list[KeyRow] = []
    looked_at = 0
    row = None
    for values in connection.execute(query.limit(_SCANNED), execution_options={"yield_per": 500}):
        row = KeyRow(*values)
        row.state = State(row.state)
        looked_at += 1
        wanted = state is None or settled(row.state, row.ends_at, now) is state
        over = row.retire_at is not None and row.retire_at <= now
        if wanted and not over and all(_has(row, name, value) for name, value in equal.items()):
            found.append(row)
            if len(found) == limit:
                return KeyPage(found, (row.fence, row.key))
    more = row is not None and looked_at == _SCANNED
    return KeyPage(found, (row.fence, row.key) if row is not None and more else None)


def _has(row: KeyRow, name: str, value: str | None) -> bool:
    return covers(value, getattr(row, name)) if name in ("area", "agent") else value in (None, getattr(row, name))


def held(connection: sa.Connection, now: int) -> tuple[int, int | None]:
    """How many keys are reserved now, and when the one that is held longest was reserved."""
    # Written out, because only then do planners know that the index of what is reserved has it all.
    still = (keys.c.state == sa.literal_column(f"'{State.RESERVED.value}'")) & (keys.c.ends_at > now)
    found = connection.execute(sa.select(sa.func.count(), sa.func.min(keys.c.fence)).where(still)).one()
    return found[0], found[1]


def count_of(connection: sa.Connection, company: str) -> int:
    """How many rows there are of a company."""
    counted = (table for table in TABLES if "company" in table.c)
    counts = (sa.select(sa.func.count()).where(table.c.company == company) for table in counted)
    return sum(connection.execute(count).scalar_one() for count in counts)
