"""Whether the stores can be reached and used as they are: tables, clocks, the model of the vectors, calibration."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

import sqlalchemy as sa

from muniment.actors.embedding import space_name
from muniment.actors.store import control_tables, effect_store, memory_store
from muniment.actors.store import memory_tables as tables
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import Schema, available, open_engine
from muniment.cluster.settings import Database, Settings
from muniment.policies.errors import ConfigurationError, StoreUnavailable
from muniment.policies.routing import DEFAULT_THRESHOLDS

#: Level, what, detail: as of a ``Finding``.
Found = tuple[Literal["ok", "warning", "error"], str, str]
#: How far a clock may be off before it is told. Leases last a minute.
_SKEW = timedelta(seconds=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMAS: tuple[tuple[Database, Schema], ...] = (
    ("memory", tables.TABLES),
    ("effects", effect_store.TABLES),
    ("control", control_tables.TABLES),
)


def look_at_stores(settings: Settings) -> Iterator[Found]:
    """The three stores one after the other; what was never made is made by the first start."""
    yield "ok", "SQLite", sqlite3.sqlite_version
    for database, schema in _SCHEMAS:
        what = f"{database} store"
        if settings.store.url is None and not (settings.data_dir / f"{database}.db").exists():
            yield "ok", what, "is made at the first start"
            continue
        try:
            engine = open_engine(settings.store_url(database))
        except ConfigurationError as error:
            yield "error", what, error.detail
            return
        try:
            with available(), engine.connect() as connection:
                found = schema.found_in(connection)
                yield _tables(what, found, schema.revision)
                if found == schema.revision:
                    yield from _contents(settings, database, connection)
        except ConfigurationError as error:
            yield "error", what, error.detail
        except (StoreUnavailable, sa.exc.SQLAlchemyError) as error:
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            told = " ".join(str(getattr(cause, "orig", None) or cause).split())[:200]
            advice = (
                "start PostgreSQL, or correct store.url" if settings.store.url else "it is no store of this program"
            )
            yield "error", what, f"cannot be read ({told}); {advice}"
        finally:
            engine.dispose()


def _tables(what: str, found: str | None, revision: str) -> Found:
    if found is None:
        return "ok", what, "is empty; the first start makes its tables"
    if found == revision:
        return "ok", what, f"its tables are at revision {found}"
    return (
        "error",
        what,
        f"its tables are at revision {found}, this program's at {revision}; older ones: stop the service, back the "
        "store up, run: muniment migrate; newer ones need the newer program",
    )


def _contents(settings: Settings, database: Database, connection: sa.Connection) -> Iterator[Found]:
    now = datetime.now(UTC)
    if database == "memory":
        yield from _clock(connection, now)
        newest = memory_store.newest_time(connection)
        if newest is not None:
            yield from _ahead("facts", newest, now)
        yield _vectors(settings, memory_store.model_name(connection))
    elif database == "effects":
        latest = effect_store.EffectStore(connection.dialect, "").read_clock(connection)
        if latest:
            yield from _ahead("effects", _EPOCH + timedelta(microseconds=latest), now)
    else:
        yield _calibration(settings, list(connection.execute(sa.select(control_tables.companies.c.company)).scalars()))


def _clock(connection: sa.Connection, now: datetime) -> Iterator[Found]:
    """The database server's clock against this machine's; a file has none."""
    if connection.dialect.name != "postgresql":
        return
    theirs = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    skew = abs(theirs - now)
    if skew > _SKEW:
        seconds = skew.total_seconds()
        advice = "run a time service (NTP) on both machines: leases and due dates go by these clocks"
        yield "warning", "clock", f"differs from the database's by {seconds:.1f} s; {advice}"
    else:
        yield "ok", "clock", "agrees with the database's"


def _ahead(what: str, newest: datetime, now: datetime) -> Iterator[Found]:
    if newest - now > _SKEW:
        advice = "set this machine's clock right, or wait: until then times of what is new are those of the store"
        yield "warning", "clock", f"the newest {what} are from {newest:%Y-%m-%d %H:%M:%S}Z, which is ahead; {advice}"


def _vectors(settings: Settings, stored: str | None) -> Found:
    running = space_name(settings.workers.model)
    if stored in (None, running):
        return "ok", "stored vectors", f"are of {running}" if stored else "there are none yet"
    return (
        "error",
        "stored vectors",
        f"are of {stored}, not of {running}: set workers.model back, or stop the service and run: muniment reindex",
    )


def _calibration(settings: Settings, companies: list[str]) -> Found:
    model = space_name(settings.workers.model)
    if model in DEFAULT_THRESHOLDS:
        return "ok", "calibration", f"the gate's threshold of {model} is known; a company may have its own"
    control = ControlStore(settings.store_url("control"))
    try:
        without = [company for company in companies if model not in control.calibrations(company)]
    finally:
        control.close()
    if not without:
        return "ok", "calibration", f"every company has the gate's threshold of {model}"
    named = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
    advice = "their gate goes by a guess: muniment calibrate --company COMPANY"
    return "warning", "calibration", f"{len(without)} companies have none for {model} ({named}); {advice}"
