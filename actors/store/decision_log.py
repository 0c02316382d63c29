"""The append-only decision log: one hash chain per stream, so that no two writers share a chain head (rule 14).

An entry's hash is SHA-256 over the hash of the entry before it and the entry's own packed content; ``verify`` finds a
changed, missing or reordered entry. What decides an effect is a decision too: a run's trail is a view of this log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from muniment.actors.store.engine import metadata, only_where
from muniment.actors.wire import pack, unpack
from muniment.policies.model import fold

GENESIS = bytes(32)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def head_table(name: str) -> sa.Table:
    """The newest number and hash of each stream of the log ``name``, so that a cut-off end is found as well."""
    return sa.Table(
        f"{name}_heads",
        metadata,
        sa.Column("stream", sa.String(255), primary_key=True),
        sa.Column("company", sa.String(128), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
    )


def decision_table(name: str) -> sa.Table:
    """The log's table; each store (memory, effects, control) has one of its own."""
    return sa.Table(
        name,
        metadata,
        sa.Column("stream", sa.String(255), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("company", sa.String(128), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.Text),
        sa.Column("field", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Index(f"{name}_at", "company", "at"),
        sa.Index(f"{name}_run", "company", "run_id", "at", **only_where("run_id IS NOT NULL")),
        sa.Index(f"{name}_slot", "company", "subject", "field", **only_where("subject IS NOT NULL")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision: what was decided, by which rule, from which inputs, under which policy version, by whom."""

    id: str
    company: str
    at: datetime
    kind: str
    rule: str
    reason: str
    actor: str
    outcome: str
    policy_version: int = 0
    inputs: dict[str, Any]
    subject: str | None = None
    field: str | None = None
    run_id: str | None = None
    user: str | None = None
    """Whose personal fact it is about, where it is: only that user may read the inputs."""

    def body(self) -> bytes:
        """What is hashed and stored."""
        content = {
            "id": self.id,
            "company": self.company,
            "at": self.at,
            "kind": self.kind,
            "rule": self.rule,
            "reason": self.reason,
            "actor": self.actor,
            "outcome": self.outcome,
            "policy_version": self.policy_version,
            "inputs": self.inputs,
        }
        optional = {"subject": self.subject, "field": self.field, "run_id": self.run_id, "user": self.user}
        content.update({name: value for name, value in optional.items() if value is not None})
        return pack(content)


def microseconds(moment: datetime) -> int:
    """Microseconds since the epoch: how times stand in the store, so that they sort and compare exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class DecisionLog:
    """Appends to the chains of one table, and remembers their heads. One writer per stream."""

    def __init__(self, table: sa.Table, heads: sa.Table) -> None:
        self.table = table
        self.heads = heads
        self._heads: dict[str, tuple[int, bytes]] = {}

    def forget_heads(self) -> None:
        """After a failed commit: the heads are read again."""
        self._heads.clear()

    def append(self, connection: sa.Connection, stream: str, company: str, decisions: Iterable[Decision]) -> None:
        """Adds to the end of ``stream``, which belongs to ``company``, inside the caller's transaction.

        On rollback the caller must call ``forget_heads``.
        """
        rows = []
        seq, head = self._head(connection, stream)
        for decision in decisions:
            body = decision.body()
            seq, head = seq + 1, hashlib.sha256(head + body).digest()
            rows.append(
                {
                    "stream": stream,
                    "seq": seq,
                    "id": decision.id,
                    "company": decision.company,
                    "at": microseconds(decision.at),
                    "kind": decision.kind,
                    "subject": None if decision.subject is None else fold(decision.subject),
                    "field": None if decision.field is None else fold(decision.field),
                    "run_id": decision.run_id,
                    "body": body,
                    "hash": head,
                }
            )
        if rows:
            connection.execute(self.table.insert(), rows)
            where = self.heads.c.stream == stream
            if seq == len(rows):
                connection.execute(self.heads.insert().values(stream=stream, company=company, seq=seq, hash=head))
            else:
                connection.execute(self.heads.update().where(where).values(seq=seq, hash=head))
            self._heads[stream] = (seq, head)

    def _head(self, connection: sa.Connection, stream: str) -> tuple[int, bytes]:
        if stream not in self._heads:
            newest = sa.select(self.heads.c.seq, self.heads.c.hash).where(self.heads.c.stream == stream)
            row = connection.execute(newest).first()
            self._heads[stream] = (row.seq, bytes(row.hash)) if row else (0, GENESIS)
        return self._heads[stream]

    def entries(
        self,
        connection: sa.Connection,
        company: str,
        *,
        after: tuple[int, str, int] = (0, "", 0),
        limit: int = 200,
        **equal: Any,
    ) -> Iterator[dict[str, Any]]:
        """Entries of a company in order of time, stream and number, later than ``after``.

        ``equal``: columns (``run_id``, ``subject``, ``field``, ``kind``) that must have this value, or one of these.
        Subjects and fields compare folded.
        """
        t = self.table
        where = [t.c.company == company, sa.tuple_(t.c.at, t.c.stream, t.c.seq) > sa.tuple_(*map(sa.literal, after))]
        where += self._equal(equal)
        order = (t.c.at, t.c.stream, t.c.seq)
        for row in connection.execute(sa.select(t).where(*where).order_by(*order).limit(limit)):
            yield {**unpack(row.body), "stream": row.stream, "seq": row.seq, "hash": bytes(row.hash).hex()}

    def newest(self, connection: sa.Connection, company: str, limit: int, **equal: Any) -> list[dict[str, Any]]:
        """The newest ``limit`` entries, newest first; ``equal``: as in ``entries``."""
        t = self.table
        query = sa.select(t).where(t.c.company == company, *self._equal(equal))
        query = query.order_by(t.c.at.desc(), t.c.stream, t.c.seq.desc()).limit(limit)
        return [unpack(row.body) for row in connection.execute(query)]

    def _equal(self, equal: dict[str, Any]) -> Iterator[sa.ColumnElement[bool]]:
        for name, value in equal.items():
            column = self.table.c[name]
            if isinstance(value, tuple):
                yield column.in_(value)
            elif value is not None:
                yield column == (fold(value) if name in ("subject", "field") else value)

    def verify(self, connection: sa.Connection, company: str | None = None) -> tuple[int, dict[str, Any] | None]:
        """Walks all chains (of one company): the number of entries and the first that does not fit, or None."""
        t, h = self.table, self.heads
        entries = sa.select(t.c.stream, t.c.seq, t.c.body, t.c.hash).order_by(t.c.stream, t.c.seq)
        heads = sa.select(h.c.stream, h.c.seq, h.c.hash)
        if company is not None:
            entries, heads = entries.where(t.c.company == company), heads.where(h.c.company == company)
        ends = {row.stream: (row.seq, bytes(row.hash)) for row in connection.execute(heads)}
        count, reached = 0, dict.fromkeys(ends, (0, GENESIS))
        for row in connection.execute(entries, execution_options={"yield_per": 1000}):
            seq, head = reached.get(row.stream, (0, GENESIS))
            seq, head = seq + 1, hashlib.sha256(head + row.body).digest()
            if row.seq != seq or bytes(row.hash) != head:
                return count, {"stream": row.stream, "seq": seq}
            reached[row.stream] = (seq, head)
            count += 1
        for stream, end in sorted(reached.items()):
            if ends.get(stream) != end:
                return count, {"stream": stream, "seq": end[0] + 1}
        return count, None
