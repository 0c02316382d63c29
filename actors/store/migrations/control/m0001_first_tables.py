"""The first tables of the control store."""

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
        "calibrations",
        sa.Column("company", _text(128), nullable=False),
        sa.Column("model", _text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("company", "model"),
    )
    op.create_table(
        "classifications",
        sa.Column("company", _text(128), nullable=False),
        sa.Column("tool", _text(512), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", _text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("company", "tool", "version"),
    )
    op.create_table(
        "companies",
        sa.Column("company", _text(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("closing", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("company"),
    )
    op.create_table(
        "control_decisions",
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
    op.create_index("control_decisions_at", "control_decisions", ["company", "at"], unique=False)
    op.create_index(
        "control_decisions_run",
        "control_decisions",
        ["company", "run_id", "at"],
        unique=False,
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "control_decisions_slot",
        "control_decisions",
        ["company", "subject", "field"],
        unique=False,
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_table(
        "control_decisions_heads",
        sa.Column("stream", _text(255), nullable=False),
        sa.Column("company", _text(128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("stream"),
    )
    for policies in ("memory_policies", "precedence_policies"):
        op.create_table(
            policies,
            sa.Column("company", _text(128), nullable=False),
            sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("at", sa.BigInteger(), nullable=False),
            sa.Column("actor", _text(), nullable=False),
            sa.Column("body", sa.JSON(), nullable=False),
            sa.PrimaryKeyConstraint("company", "version"),
        )
    op.create_table(
        "access_keys",
        sa.Column("id", _text(64), nullable=False),
        sa.Column("company", _text(128), nullable=True),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("granted", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["company"],
            ["companies.company"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("access_keys_company", "access_keys", ["company", "id"], unique=False)
