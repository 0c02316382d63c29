"""The append-only decision log: one hash chain per stream, so that no two writers share a chain head (rule 14).

An entry's hash is SHA-256 over the hash of the entry before it and the entry's own packed content; ``verify`` finds a
changed, missing or reordered entry. What decides an effect is a decision too: a run's trail is a view of this log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from muniment.actors.store.engine import metadata, only_where
from muniment.actors.wire import pack, unpack
from muniment.policies.model import fold

GENESIS = bytes(32)
#: In a body: the digest of its details. In the inputs of an erasure: the entries whose details it erased.
DIGEST = "details_sha256"
ERASED = "erased_details_of"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONAL = ("subject", "field", "run_id", "user")


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


def decision_table(name: str, erasable: bool = False) -> sa.Table:
    """The log's table; each store (memory, effects, control) has one of its own.

    ``erasable``: details (inputs, and what names a person's slot) lie beside the chain, which holds only their digest,
    so that they can be erased and the chain still verifies.
    """
    details: list[sa.schema.SchemaItem] = []
    if erasable:
        details = [sa.Column("user", sa.Text), sa.Column("details", sa.LargeBinary)]
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
        *details,
        sa.Index(f"{name}_at", "company", "at"),
        sa.Index(f"{name}_run", "company", "run_id", "at", **only_where("run_id IS NOT NULL")),
        sa.Index(f"{name}_slot", "company", "subject", "field", **only_where("subject IS NOT NULL")),
    )


class Decision(NamedTuple):
    """One decision: what was decided, by which rule, from which inputs, under which policy version, by whom.

    ``user``: whose personal fact it is about, where it is: only that user may read the inputs.
    """

    id: str
    company: str
    at: datetime
    kind: str
    rule: str
    reason: str
    actor: str
    outcome: str
    inputs: dict[str, Any]
    policy_version: int = 0
    subject: str | None = None
    field: str | None = None
    run_id: str | None = None
    user: str | None = None

    def content(self) -> dict[str, Any]:
        """All of it, without what is empty."""
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
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                content[name] = value
        return content

    def body(self) -> bytes:
        """What is hashed and stored."""
        return pack(self.content())

    def parted(self) -> tuple[bytes, bytes]:
        """What is hashed and stored, and the details beside it of which it holds the salted digest."""
        content = self.content()
        hidden = ("inputs", "subject", "field", "user") if self.user is not None else ("inputs",)
        details = pack({"salt": os.urandom(16), **{name: content.pop(name) for name in hidden if name in content}})
        return pack({**content, DIGEST: hashlib.sha256(details).digest()}), details


def microseconds(moment: datetime) -> int:
    """Microseconds since the epoch: how times stand in the store, so that they sort and compare exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


#: Where an entry stands among those of a store: its time in microseconds, its stream, its number there.
Place: TypeAlias = tuple[int, str, int]


def place_of(entry: dict[str, Any]) -> Place:
    """The place of an entry as ``DecisionLog.entries`` gives it."""
    return microseconds(entry["at"]), entry["stream"], entry["seq"]


class DecisionLog:
    """Appends to the chains of one table, and remembers their heads. One writer per stream."""

    def __init__(self, table: sa.Table, heads: sa.Table) -> None:
        self.table = table
        self.heads = heads
        self._erasable = "details" in table.c
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
            row: dict[str, Any] = {}
            if self._erasable and ERASED not in decision.inputs:
                body, row["details"] = decision.parted()
            else:
                body = decision.body()
            if self._erasable:
                row = {"user": decision.user, "details": None} | row
            seq, head = seq + 1, hashlib.sha256(head + body).digest()
            rows.append(
                {
                    **row,
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
        after: Place = (0, "", 0),
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
            yield {**self._read(row), "stream": row.stream, "seq": row.seq, "hash": bytes(row.hash).hex()}

    def newest(self, connection: sa.Connection, company: str, limit: int, **equal: Any) -> list[dict[str, Any]]:
        """The newest ``limit`` entries, newest first; ``equal``: as in ``entries``."""
        t = self.table
        query = sa.select(t).where(t.c.company == company, *self._equal(equal))
        query = query.order_by(t.c.at.desc(), t.c.stream, t.c.seq.desc()).limit(limit)
        return [self._read(row) for row in connection.execute(query)]

    def _read(self, row: Any) -> dict[str, Any]:
        """An entry with its details; of one whose details were erased, no inputs."""
        entry: dict[str, Any] = unpack(row.body)
        if DIGEST in entry:
            details = {"inputs": {}} if row.details is None else unpack(row.details)
            entry.update({name: value for name, value in details.items() if name != "salt"})
            del entry[DIGEST]
        return entry

    def erase(self, connection: sa.Connection, company: str, naming: str | None = None, **equal: Any) -> list[str]:
        """Erases the details of entries whose columns have these values and whose inputs name ``naming``: their ids.

        The caller logs an erasure whose inputs hold them under ``ERASED``; without it the chain does not verify.
        """
        t = self.table
        where = [t.c.company == company, t.c.details.is_not(None), *self._equal(equal)]
        rows = connection.execute(sa.select(t.c.stream, t.c.seq, t.c.id, t.c.details).where(*where)).all()
        found = [row for row in rows if naming is None or naming in str(unpack(row.details)["inputs"])]
        for row in found:
            this = (t.c.stream == row.stream, t.c.seq == row.seq)
            connection.execute(t.update().where(*this).values(details=None, user=None, subject=None, field=None))
        return [row.id for row in found]

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
        columns = [t.c.stream, t.c.seq, t.c.id, t.c.body, t.c.hash, *([t.c.details] if self._erasable else [])]
        entries = sa.select(*columns).order_by(t.c.stream, t.c.seq)
        heads = sa.select(h.c.stream, h.c.seq, h.c.hash)
        if company is not None:
            entries, heads = entries.where(t.c.company == company), heads.where(h.c.company == company)
        ends = {row.stream: (row.seq, bytes(row.hash)) for row in connection.execute(heads)}
        count, reached = 0, dict.fromkeys(ends, (0, GENESIS))
        bare: dict[str, dict[str, Any]] = {}
        erased: set[str] = set()
        for row in connection.execute(entries, execution_options={"yield_per": 1000}):
            seq, head = reached.get(row.stream, (0, GENESIS))
            seq, head = seq + 1, hashlib.sha256(head + row.body).digest()
            if row.seq != seq or bytes(row.hash) != head or (self._erasable and not _matches(row, bare, erased)):
                return count, {"stream": row.stream, "seq": seq}
            reached[row.stream] = (seq, head)
            count += 1
        for stream, end in sorted(reached.items()):
            if ends.get(stream) != end:
                return count, {"stream": stream, "seq": end[0] + 1}
        return count, next((place for id, place in sorted(bare.items()) if id not in erased), None)


def _matches(row: Any, bare: dict[str, dict[str, Any]], erased: set[str]) -> bool:
    """Whether an entry's details are those it was made with; those that are gone must have been erased by an entry."""
    body = unpack(row.body)
    digest = body.get(DIGEST)
    if digest is None:
        erased.update(body["inputs"].get(ERASED, ()))
        return row.details is None
    if row.details is None:
        bare[row.id] = {"stream": row.stream, "seq": row.seq}
        return True
    return bool(hashlib.sha256(row.details).digest() == digest)
