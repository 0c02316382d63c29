"""The first tables of the memory store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _text(length: int | None = None) -> sa.types.TypeEngine[str]:
    """A text that compares by code point."""
    kind = sa.String if length else sa.Text
    return kind(length).with_variant(kind(length, collation="C"), "postgresql")


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "conflicts",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("kind", _text(16), nullable=False),
        sa.Column("status", _text(16), nullable=False),
        sa.Column("slot", _text(), nullable=True),
        sa.Column("subject", _text(), nullable=True),
        sa.Column("field", _text(), nullable=True),
        sa.Column("user", _text(), nullable=True),
        sa.Column("owner", _text(), nullable=False),
        sa.Column("subject_id", _text(64), nullable=True),
        sa.Column("challenger_id", _text(64), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("conflicts_challenger", "conflicts", ["company", "challenger_id"], unique=False)
    op.create_index("conflicts_company", "conflicts", ["company", "status", "id"], unique=False)
    op.create_index(
        "conflicts_open",
        "conflicts",
        ["kind", "opened_at", "due_at"],
        unique=False,
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_index("conflicts_slot", "conflicts", ["company", "slot", "status"], unique=False)
    op.create_index("conflicts_subject", "conflicts", ["company", "subject_id"], unique=False)
    op.create_table(
        "derivations",
        sa.Column("parent_id", _text(64), nullable=False),
        sa.Column("child_id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.PrimaryKeyConstraint("parent_id", "child_id"),
    )
    op.create_index("derivations_company", "derivations", ["company"], unique=False)
    op.create_table(
        "embedding_model",
        sa.Column("name", _text(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
    )
    op.create_table(
        "fact_events",
        sa.Column("fact_id", _text(64), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("change", _text(16), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("was", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("fact_id", "at", "change"),
    )
    op.create_index("fact_events_company", "fact_events", ["company"], unique=False)
    op.create_table(
        "fact_vectors",
        sa.Column("fact_id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("fact_id"),
    )
    op.create_index("fact_vectors_company", "fact_vectors", ["company"], unique=False)
    op.create_table(
        "staged_vectors",
        sa.Column("fact_id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("model", _text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("fact_id"),
    )
    op.create_index("staged_vectors_company", "staged_vectors", ["company"], unique=False)
    op.create_table(
        "facts",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("slot", _text(), nullable=True),
        sa.Column("status", _text(16), nullable=False),
        sa.Column("tier", _text(2), nullable=True),
        sa.Column("usage", sa.Integer(), nullable=False),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("user", _text(), nullable=True),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("review_at", sa.BigInteger(), nullable=True),
        sa.Column("corroborates", _text(64), nullable=True),
        sa.Column("superseded_by", _text(64), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("facts_company", "facts", ["company", "id"], unique=False)
    op.create_index(
        "facts_review",
        "facts",
        ["company", "review_at"],
        unique=False,
        sqlite_where=sa.text("review_at IS NOT NULL"),
        postgresql_where=sa.text("review_at IS NOT NULL"),
    )
    op.create_index(
        "facts_slot",
        "facts",
        ["company", "slot", "status"],
        unique=False,
        sqlite_where=sa.text("slot IS NOT NULL"),
        postgresql_where=sa.text("slot IS NOT NULL"),
    )
    op.create_index(
        "facts_tier",
        "facts",
        ["company", "tier"],
        unique=False,
        sqlite_where=sa.text("tier IS NOT NULL"),
        postgresql_where=sa.text("tier IS NOT NULL"),
    )
    op.create_index(
        "facts_user",
        "facts",
        ["company", "user"],
        unique=False,
        sqlite_where=sa.text('"user" IS NOT NULL'),
        postgresql_where=sa.text('"user" IS NOT NULL'),
    )
    op.create_table(
        "memory_decisions",
        sa.Column("stream", _text(255), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", _text(32), nullable=False),
        sa.Column("subject", _text(), nullable=True),
        sa.Column("field", _text(), nullable=True),
        sa.Column("run_id", _text(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("user", _text(), nullable=True),
        sa.Column("details", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("stream", "seq"),
    )
    op.create_index("memory_decisions_at", "memory_decisions", ["company", "at"], unique=False)
    op.create_index(
        "memory_decisions_run",
        "memory_decisions",
        ["company", "run_id", "at"],
        unique=False,
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "memory_decisions_slot",
        "memory_decisions",
        ["company", "subject", "field"],
        unique=False,
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_table(
        "memory_decisions_heads",
        sa.Column("stream", _text(255), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("stream"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("role", _text(64), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("outbox_company", "outbox", ["company"], unique=False)
    op.create_index("outbox_next", "outbox", ["role", "next_at"], unique=False)
    op.create_table(
        "requests",
        sa.Column("company", _text(128), nullable=False),
        sa.Column("key", _text(255), nullable=False),
        sa.Column("body_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("company", "key"),
    )
    op.create_index("requests_expires", "requests", ["expires_at"], unique=False)
    op.create_table(
        "rulings",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("slot", _text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("rulings_slot", "rulings", ["company", "slot"], unique=False)
