"""Tables of the control store: companies, keys, classifications, policies, calibrations."""

from __future__ import annotations

import sqlalchemy as sa

from muniment.actors.store.decision_log import decision_table, head_table
from muniment.actors.store.engine import Schema, metadata

companies = sa.Table(
    "companies",
    metadata,
    sa.Column("company", sa.String(128), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    #: Set while its data is being erased; nobody acts for the company any more.
    sa.Column("closing", sa.Boolean, nullable=False),
)
access_keys = sa.Table(
    "access_keys",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    #: Null for the operator key only.
    sa.Column("company", sa.String(128), sa.ForeignKey("companies.company")),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    #: roles, user, groups, sources, area, agent.
    sa.Column("granted", sa.JSON, nullable=False),
    sa.Index("access_keys_company", "company", "id"),
)
classifications = sa.Table(
    "classifications",
    metadata,
    sa.Column("company", sa.String(128), primary_key=True),
    sa.Column("tool", sa.String(512), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
)


def _policies(name: str) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("company", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )


precedence_policies = _policies("precedence_policies")
memory_policies = _policies("memory_policies")
#: What was found to suit a company's facts under an embedding model; see ``control_store.Calibration``.
calibrations = sa.Table(
    "calibrations",
    metadata,
    sa.Column("company", sa.String(128), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("body", sa.JSON, nullable=False),
)
control_decisions = decision_table("control_decisions")
control_heads = head_table("control_decisions")

TABLES = Schema(
    "control",
    "0001",
    (
        companies,
        access_keys,
        classifications,
        precedence_policies,
        memory_policies,
        calibrations,
        control_decisions,
        control_heads,
    ),
)
