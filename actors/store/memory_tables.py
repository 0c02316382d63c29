"""The tables of the memory store: facts, vectors, conflicts, remembered requests, and their decision log."""

from __future__ import annotations

import sqlalchemy as sa

from muniment.actors.store.decision_log import decision_table, head_table
from muniment.actors.store.engine import Schema, metadata, only_where

#: The ``info`` of a column that is made from others and may be empty: archives leave it out.
DERIVED = {"derived": True}

#: All that was ever told, except slotless facts that retention deleted. ``body`` is the packed fact; the columns are
#: what queries ask for. Times are microseconds.
facts = sa.Table(
    "facts",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("slot", sa.Text),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("tier", sa.String(2)),
    sa.Column("usage", sa.Integer, nullable=False, default=0),
    #: Counts what was changed, usage aside, so that who read it before knows.
    sa.Column("changes", sa.Integer, nullable=False, default=0),
    sa.Column("user", sa.Text),
    sa.Column("recorded_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Column("review_at", sa.BigInteger),
    sa.Column("corroborates", sa.String(64)),
    sa.Column("superseded_by", sa.String(64)),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("facts_company", "company", "id"),
    sa.Index("facts_slot", "company", "slot", "status", **only_where("slot IS NOT NULL")),
    sa.Index("facts_tier", "company", "tier", **only_where("tier IS NOT NULL")),
    sa.Index("facts_user", "company", "user", **only_where('"user" IS NOT NULL')),
    sa.Index("facts_review", "company", "review_at", **only_where("review_at IS NOT NULL")),
)

#: (d,) float32 in C order, of every stored fact; and what was found in its text, which can be found again.
vectors = sa.Table(
    "fact_vectors",
    metadata,
    sa.Column("fact_id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("features", sa.LargeBinary, info=DERIVED),
    sa.Index("fact_vectors_company", "company"),
)

#: Vectors of another model, made while those above are in use; they take their place when there is one of each.
staged_vectors = sa.Table(
    "staged_vectors",
    metadata,
    sa.Column("fact_id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Index("staged_vectors_company", "company"),
)

#: Which fact was derived from which, so that a faulty parent's summaries are found.
derivations = sa.Table(
    "derivations",
    metadata,
    sa.Column("parent_id", sa.String(64), primary_key=True),
    sa.Column("child_id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Index("derivations_company", "company"),
)

#: Conflicts, reviews and notices, open and ended. ``due_at`` sorts an owner's list; ``body`` holds what is only read.
conflicts = sa.Table(
    "conflicts",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("slot", sa.Text),
    sa.Column("subject", sa.Text),
    sa.Column("field", sa.Text),
    sa.Column("user", sa.Text),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("subject_id", sa.String(64)),
    sa.Column("challenger_id", sa.String(64)),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("due_at", sa.BigInteger),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("conflicts_company", "company", "status", "id"),
    sa.Index("conflicts_slot", "company", "slot", "status"),
    sa.Index("conflicts_subject", "company", "subject_id"),
    sa.Index("conflicts_challenger", "company", "challenger_id"),
    sa.Index("conflicts_open", "kind", "opened_at", "due_at", **only_where("status = 'open'")),
)

#: What an owner ruled on a slot: the winning value's key, and the losing (value, source) pairs, packed. ``id``: of the
#: conflict, or of the fact that corrected another.
rulings = sa.Table(
    "rulings",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("slot", sa.Text, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("rulings_slot", "company", "slot"),
)

#: What happened to a fact that decides whether it counts at a knowledge time (``slot_history.Change``). ``was``: its
#: dates before, packed, where the change gave it others.
fact_events = sa.Table(
    "fact_events",
    metadata,
    sa.Column("fact_id", sa.String(64), primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("change", sa.String(16), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("was", sa.LargeBinary),
    sa.Index("fact_events_company", "company"),
)

#: Answers of writes, by the request's id: what is sent again within its time gets the same answer and writes nothing.
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("company", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("body_hash", sa.LargeBinary(32), nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Index("requests_expires", "expires_at"),
)

#: What owners are still to be told of outside, a row for each message until it has arrived or was given up.
outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("company", sa.String(128), nullable=False),
    sa.Column("role", sa.String(64), nullable=False),
    sa.Column("next_at", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("outbox_next", "role", "next_at"),
    sa.Index("outbox_company", "company"),
)

#: The embedding model the stored vectors are from: one row.
embedding_model = sa.Table(
    "embedding_model",
    metadata,
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("dimension", sa.Integer, nullable=False),
)

decisions = decision_table("memory_decisions", erasable=True)
decision_heads = head_table("memory_decisions")

TABLES = Schema(
    "memory",
    "0001",
    (
        facts,
        vectors,
        staged_vectors,
        derivations,
        conflicts,
        rulings,
        fact_events,
        requests,
        outbox,
        embedding_model,
        decisions,
        decision_heads,
    ),
)
