"""Opening a store: one SQLAlchemy engine per database, SQLite set up to lose nothing that was committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from muniment.policies.errors import ConfigurationError, Fenced

SCHEMA_VERSION = 1
metadata = sa.MetaData()

#: One row: the version of the schema.
schema_info = sa.Table("schema_info", metadata, sa.Column("version", sa.Integer, nullable=False))
#: One row per role ("shard-0", "ledger-2"): the epoch of the instance that may write.
epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("role", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, nullable=False),
)


def sqlite_url(path: Path) -> str:
    """The SQLAlchemy address of an SQLite file."""
    return f"sqlite+pysqlite:///{path}"


def open_engine(url: str) -> sa.Engine:
    """An engine for ``url``. SQLite: WAL, full sync, a busy time-out, and transactions that we begin ourselves."""
    engine = sa.create_engine(url, connect_args={"check_same_thread": False} if url.startswith("sqlite") else {})
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _set_up(connection: Any, _record: Any) -> None:
            connection.isolation_level = None
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "busy_timeout=30000",
                "foreign_keys=ON",
                "wal_autocheckpoint=1000",
                "temp_store=MEMORY",
            ):
                connection.execute(f"PRAGMA {pragma}").close()

        @event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            mode = connection.get_execution_options().get("begin_mode", "DEFERRED")
            connection.exec_driver_sql(f"BEGIN {mode}")

    return engine


def writing(engine: sa.Engine) -> sa.Engine:
    """The same pool, whose transactions take the write lock at their start, so that no upgrade can fail midway."""
    return engine.execution_options(begin_mode="IMMEDIATE") if engine.dialect.name == "sqlite" else engine


def create_schema(engine: sa.Engine, tables: list[sa.Table]) -> None:
    """Creates what is missing of ``tables``; refuses a store that a newer program wrote. Idempotent."""
    with writing(engine).begin() as connection:
        metadata.create_all(connection, tables=[schema_info, epochs, *tables])
        found = connection.execute(sa.select(schema_info.c.version)).scalar()
        if found is None:
            connection.execute(schema_info.insert().values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise ConfigurationError(
                f"the store has schema version {found}, this program reads {SCHEMA_VERSION}",
                found=found,
                wanted=SCHEMA_VERSION,
            )


class Fence:
    """The right to write as ``role``: the newest instance holds it, and an older one is refused in its transaction."""

    def __init__(self, engine: sa.Engine, role: str) -> None:
        self.role = role
        with writing(engine).begin() as connection:
            held = connection.execute(sa.select(epochs.c.epoch).where(epochs.c.role == role)).scalar()
            self.epoch = (held or 0) + 1
            if held is None:
                connection.execute(epochs.insert().values(role=role, epoch=self.epoch))
            else:
                connection.execute(epochs.update().where(epochs.c.role == role).values(epoch=self.epoch))
        self._check = sa.select(epochs.c.epoch).where(epochs.c.role == role)
        if engine.dialect.name == "postgresql":
            self._check = self._check.with_for_update(read=True)

    def check(self, connection: sa.Connection) -> None:
        """Raises ``Fenced`` where a newer instance took over."""
        newest = connection.execute(self._check).scalar()
        if newest != self.epoch:
            raise Fenced(f"{self.role}: epoch {self.epoch} was replaced by {newest}", role=self.role)
