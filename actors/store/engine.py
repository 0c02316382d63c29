"""Opening a store: one SQLAlchemy engine per database, SQLite or PostgreSQL, set up to lose nothing that was committed.

Everything dialects differ in, the text of frequent statements aside, stands here. Texts compare by code point in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from muniment.policies.errors import ConfigurationError, StoreUnavailable

metadata = sa.MetaData()

#: One row per role ("shard-0", "ledger-2"): the epoch of the instance that may write, and how often something came to
#: it or went from it.
epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("role", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("moves", sa.Integer, nullable=False),
)
#: One row per kind of Ray actor: how many there are to be, how many are used, and for shards and ledgers who has what.
roles = sa.Table(
    "roles",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("wanted", sa.Integer, nullable=False),
    sa.Column("used", sa.Integer, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("map", sa.JSON, nullable=False),
)
#: Any number, the same for all: who creates or upgrades tables holds this PostgreSQL lock.
_SCHEMA_LOCK = 4_711_230_561
#: What a session of PostgreSQL may do at most. A process that stopped in the middle of a transaction loses its locks
#: before those who wait for them give up.
_SESSION = "-c statement_timeout=30s -c idle_in_transaction_session_timeout=10s -c lock_timeout=20s"
_CONNECT_SECONDS = 5
_POOL = {"pool_size": 8, "max_overflow": 8, "pool_timeout": 5, "pool_pre_ping": True}


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one database, and the revision of them that this program reads and writes."""

    name: str
    revision: str
    tables: tuple[sa.Table, ...]
    #: What Alembic asks which revision a store is at.
    version_table: sa.Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        versions = sa.Table(f"{self.name}_schema", metadata, sa.Column("version_num", sa.String(32), primary_key=True))
        object.__setattr__(self, "version_table", versions)
        for column in (column for table in self.tables for column in table.columns):
            kind = column.type
            if isinstance(kind, sa.String):
                column.type = kind.with_variant(type(kind)(kind.length, collation="C"), "postgresql")

    def __iter__(self) -> Iterator[sa.Table]:
        return iter(self.tables)

    def found_in(self, connection: sa.Connection) -> str | None:
        """The revision that the store is at, None where it has none of these tables."""
        inspector = sa.inspect(connection)
        if inspector.has_table(self.version_table.name):
            found = connection.execute(sa.select(self.version_table.c.version_num)).scalar()
            if found is not None:
                return str(found)
        if inspector.has_table(self.tables[0].name):
            raise ConfigurationError(f"the store has a table {self.tables[0].name!r} that this program did not make")
        return None


def only_where(condition: str) -> dict[str, Any]:
    """What makes an index one of the rows that fulfil ``condition`` only."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def sqlite_url(path: Path) -> str:
    """The SQLAlchemy address of an SQLite file."""
    return f"sqlite+pysqlite:///{path}"


def open_engine(url: str) -> sa.Engine:
    """An engine for ``url``. It connects when it is first used, and anew after the store was away.

    SQLite: WAL, full sync, a busy time-out, and transactions that we begin ourselves. PostgreSQL: reads see one
    snapshot per transaction, sessions are bounded. Raises ``ConfigurationError`` for any other database.
    """
    try:
        address = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigurationError("store.url is not an address") from None
    if address.get_backend_name() == "sqlite":
        return _open_sqlite(address)
    if address.get_backend_name() == "postgresql":
        return _open_postgresql(address)
    raise ConfigurationError(f"store.url: {address.get_backend_name()!r} is not supported, PostgreSQL is")


def _open_sqlite(address: sa.URL) -> sa.Engine:
    engine = sa.create_engine(address, connect_args={"check_same_thread": False}, hide_parameters=True)

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


def _open_postgresql(address: sa.URL) -> sa.Engine:
    address = address.set(drivername="postgresql+psycopg")
    given = address.query.get("options", "")
    connect_args = {
        "application_name": "muniment",
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "options": f"{_SESSION} {given if isinstance(given, str) else ' '.join(given)}",
    }
    return sa.create_engine(
        address, connect_args=connect_args, isolation_level="REPEATABLE READ", hide_parameters=True, **_POOL
    )


def writing(engine: sa.Engine) -> sa.Engine:
    """The same pool, for transactions that write.

    SQLite takes the write lock at their start, so that no upgrade can fail midway. In PostgreSQL each statement sees
    what was committed before it, so that a fence is seen the moment it falls.
    """
    if engine.dialect.name == "sqlite":
        return engine.execution_options(begin_mode="IMMEDIATE")
    return engine.execution_options(isolation_level="READ COMMITTED")


def unbound(connection: sa.Connection) -> None:
    """Lets this transaction take its time: a walk through everything, or a migration."""
    if connection.dialect.name == "postgresql":
        for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
            connection.exec_driver_sql(f"SET LOCAL {name} = 0")


def patient(connection: sa.Connection) -> None:
    """Lets this transaction wait for what is made of its answers: a large company's indexes."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '120s'")


@contextmanager
def available() -> Iterator[None]:
    """What fails in it because the store cannot be reached, or is not able to, becomes ``StoreUnavailable``."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError, sa.exc.TimeoutError) as error:
        raise StoreUnavailable("the store did not answer", retry_after_seconds=1) from error


def told_by(error: sa.exc.SQLAlchemyError) -> str:
    """What the database said, in a line, for a log: what PostgreSQL adds may quote a row, and so a user's text."""
    said = getattr(error, "orig", None) or error
    return f"{type(said).__name__}: {str(said).partition(chr(10))[0]}"


def cursor_of(connection: sa.Connection) -> Any:
    """The driver's own cursor in the connection's transaction, for what runs so often that SQLAlchemy's part counts.

    What the driver raises has to be caught by ``driver_errors``.
    """
    return connection.connection.cursor()


@contextmanager
def driver_errors(dialect: sa.Dialect) -> Iterator[None]:
    """What the driver itself raises in it becomes SQLAlchemy's error of the same kind."""
    driver: Any = dialect.dbapi
    try:
        yield
    except driver.Error as error:
        raise sa.exc.DBAPIError.instance(None, None, error, driver.Error, dialect=dialect) from error


def create_schema(engine: sa.Engine, schema: Schema, upgrade: bool = False) -> None:
    """Creates the tables in an empty store. Idempotent, and safe against several at once.

    A store of an older revision is brought to this one where ``upgrade`` says so. Raises ``ConfigurationError`` for
    one that this program cannot use as it is, ``sqlalchemy.exc.SQLAlchemyError`` where it cannot be reached.
    """
    with engine.connect() as connection:
        if schema.found_in(connection) == schema.revision:
            return
    with writing(engine).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
            unbound(connection)
        found = schema.found_in(connection)
        if found is None:
            metadata.create_all(connection, tables=[epochs, roles, schema.version_table, *schema.tables])
            connection.execute(schema.version_table.insert().values(version_num=schema.revision))
        elif found != schema.revision:
            from muniment.actors.store.migrations import migrate  # Alembic, which few starts need

            migrate(connection, schema, found, upgrade)
