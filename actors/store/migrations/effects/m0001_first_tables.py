"""The first tables of the effects store."""

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
        "effect_clock",
        sa.Column("role", _text(64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("role"),
    )
    op.create_table(
        "effect_decisions",
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
        sa.PrimaryKeyConstraint("stream", "seq"),
    )
    op.create_index("effect_decisions_at", "effect_decisions", ["company", "at"], unique=False)
    op.create_index(
        "effect_decisions_run",
        "effect_decisions",
        ["company", "run_id", "at"],
        unique=False,
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "effect_decisions_slot",
        "effect_decisions",
        ["company", "subject", "field"],
        unique=False,
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_table(
        "effect_decisions_heads",
        sa.Column("stream", _text(255), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("stream"),
    )
    op.create_table(
        "effect_handovers",
        sa.Column("key", sa.LargeBinary(length=41), nullable=False),
        sa.Column("fence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("nonce", sa.LargeBinary(length=8), nullable=False),
        sa.Column("run_id", _text(), nullable=False),
        sa.Column("step_id", _text(), nullable=False),
        sa.Column("reported", sa.Integer(), nullable=False),
        sa.Column("retire_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", "fence"),
    )
    op.create_index(op.f("ix_effect_handovers_retire_at"), "effect_handovers", ["retire_at"], unique=False)
    op.create_table(
        "effect_keys",
        sa.Column("key", sa.LargeBinary(length=41), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("area", _text(), nullable=False),
        sa.Column("agent", _text(), nullable=False),
        sa.Column("tool", _text(), nullable=False),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("run_id", _text(), nullable=True),
        sa.Column("step_id", _text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(length=8), nullable=False),
        sa.Column("claim", _text(64), nullable=True),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("window", sa.BigInteger(), nullable=True),
        sa.Column("late", sa.Integer(), nullable=False),
        sa.Column("note", _text(), nullable=True),
        sa.Column("result_ref", _text(), nullable=True),
        sa.Column("retire_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index(
        "effect_keys_reserved",
        "effect_keys",
        ["company", "fence"],
        unique=False,
        sqlite_where=sa.text("state = 'reserved'"),
        postgresql_where=sa.text("state = 'reserved'"),
    )
    op.create_index(
        "effect_keys_retire",
        "effect_keys",
        ["retire_at"],
        unique=False,
        sqlite_where=sa.text("retire_at IS NOT NULL"),
        postgresql_where=sa.text("retire_at IS NOT NULL"),
    )
    op.create_table(
        "effect_repeats",
        sa.Column("id", sa.LargeBinary(length=32), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("retire_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_effect_repeats_company"), "effect_repeats", ["company"], unique=False)
    op.create_index(op.f("ix_effect_repeats_retire_at"), "effect_repeats", ["retire_at"], unique=False)
