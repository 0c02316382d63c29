"""Export and import: what the stores have of companies, as an archive; and an archive as companies in the stores.

An archive holds all that belongs to companies: facts, conflicts, effects, keys (only their hashes, as stored),
policies, and every decision with its chain of hashes. What belongs to a cluster stays: epochs, clocks, where partitions
lie, the operator's key and log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import IO, Any

import sqlalchemy as sa

from muniment.actors.store import control_tables, effect_store, memory_store, memory_tables
from muniment.actors.store.archive import MAX_BYTES, MAX_ROWS, Header, Writer, read_header, read_rows
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.engine import Schema, epochs, unbound, writing
from muniment.policies.errors import ConfigurationError, NotFound, StateConflict
from muniment.policies.fingerprint import KEY_BYTES, company_prefix

SCHEMAS: tuple[Schema, ...] = (memory_tables.TABLES, effect_store.TABLES, control_tables.TABLES)
_OF_THE_CLUSTER = {
    memory_tables.embedding_model,
    memory_tables.staged_vectors,
    effect_store.clock,
}
#: Companies last: nobody may act for one before everything else of it is there.
_TABLES: tuple[tuple[str, sa.Table], ...] = (
    *(
        (schema.name, table)
        for schema in SCHEMAS
        for table in schema.tables
        if table not in _OF_THE_CLUSTER
        and table is not control_tables.access_keys
        and table is not control_tables.companies
    ),
    ("control", control_tables.companies),
    ("control", control_tables.access_keys),
)
_BY_NAME = {table.name: (database, table) for database, table in _TABLES}
#: Rows that go by themselves, or that come after the company is open: some may be missing.
_PASSING = {memory_tables.requests, effect_store.keys, effect_store.repeats, control_tables.access_keys}
_PREFIX_BYTES = len(company_prefix(""))
#: The engine of each database by its name; in PostgreSQL they are one.
Engines = Mapping[str, sa.Engine]
#: Is told how many more rows are done.
Progress = Callable[[int], None]


def untold(rows: int) -> None:
    """The progress that nobody watches."""


@contextmanager
def snapshots(engines: Engines) -> Iterator[dict[str, sa.Connection]]:
    """A transaction on each database that sees what is there now, and nothing of what is written meanwhile."""
    with ExitStack() as stack:
        of_engine = {id(engine): stack.enter_context(engine.connect()) for engine in engines.values()}
        for connection in of_engine.values():
            unbound(connection)
            connection.execute(sa.select(epochs.c.epoch)).all()  # a snapshot begins with the first read
        yield {name: of_engine[id(engine)] for name, engine in engines.items()}


def export(
    engines: Engines, stream: IO[bytes], company: str | None, now: datetime, progress: Progress = untold
) -> Counter[str]:
    """Writes an archive of a company, or of all: rows per table. Raises ``NotFound`` where there is no such company.

    A company that is being erased is not exported.
    """
    with snapshots(engines) as connections:
        c = control_tables.companies.c
        chosen = sa.select(c.company).where(c.closing.is_not(True))
        if company is not None:
            chosen = chosen.where(c.company == company)
        companies = set(connections["control"].execute(chosen).scalars())
        if company is not None and not companies:
            raise NotFound("there is no such company")
        model = connections["memory"].execute(sa.select(memory_tables.embedding_model)).first()
        header = Header(
            created_at=microseconds(now),
            company=company,
            revisions={schema.name: schema.revision for schema in SCHEMAS},
            columns={table.name: [column.name for column in _told(table)] for _, table in _TABLES},
            model=None if model is None else (model.name, model.dimension),
        )
        writer = Writer(stream, header)
        wanted = _Wanted(companies, company)
        for database, table in _TABLES:
            for rows in _batches(wanted.rows(connections[database], table)):
                writer.add(table.name, rows)
                progress(len(rows))
        writer.close()
    return writer.counts


class _Wanted:
    """The companies of an export."""

    def __init__(self, companies: set[str], only: str | None) -> None:
        self._companies = companies
        self._only = only
        self._prefixes = {company_prefix(company) for company in companies}

    def rows(self, connection: sa.Connection, table: sa.Table) -> Iterator[Sequence[Any]]:
        """What the table has of them, in the order of its key."""
        query = sa.select(*_told(table)).order_by(*table.primary_key.columns)
        by_company = "company" in table.c
        if self._only is not None:
            if by_company:
                query = query.where(table.c.company == self._only)
            else:
                first = company_prefix(self._only)
                query = query.where(table.c.key >= first, table.c.key < first + b"\xff" * (KEY_BYTES - len(first) + 1))
        place = _told(table).index(table.c.company if by_company else table.c.key)
        for row in connection.execute(query, execution_options={"yield_per": 1000}):
            if row[place] in self._companies if by_company else row[place][:_PREFIX_BYTES] in self._prefixes:
                yield row


def _told(table: sa.Table) -> list[sa.Column[Any]]:
    """The columns that an archive holds."""
    return [column for column in table.columns if column.info != memory_tables.DERIVED]


def _batches(rows: Iterator[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    batch: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, (bytes, str)))
        if len(batch) == MAX_ROWS or size > MAX_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check(stream: IO[bytes]) -> tuple[Header, Counter[str]]:
    """Reads a whole archive and stores nothing: its header and its rows per table.

    Raises ``CorruptData`` where it is damaged, ``ConfigurationError`` where it is from other tables than these.
    """
    header = read_header(stream)
    stream.seek(0)
    here = {schema.name: schema.revision for schema in SCHEMAS}
    columns = {table.name: [column.name for column in _told(table)] for _, table in _TABLES}
    if header.revisions != here or header.columns != columns:
        raise ConfigurationError(
            "the archive is from another version of the tables; import it there, then run `muniment migrate`",
            found=header.revisions,
            wanted=here,
        )
    counts: Counter[str] = Counter()
    for found in read_rows(stream):
        counts[found.table] += len(found.rows)
    stream.seek(0)
    return header, counts


def load(engines: Engines, stream: IO[bytes], progress: Progress = lambda rows: None) -> Counter[str]:
    """Brings an archive's companies in: the rows per table that were not there yet.

    ``stream`` can be sought. Nothing is stored before all of it was read and compared with what is there: whatever is
    there already must be the same. So what broke off is finished by repeating, and to repeat what is done does nothing.
    Raises ``CorruptData``, ``ConfigurationError``, and ``StateConflict`` where a company is there with other data.
    """
    header, _ = check(stream)
    if header.model is not None:
        with engines["memory"].connect() as connection:
            if memory_store.model_dimension(connection) is not None:
                memory_store.claim_model(connection, *header.model)
    _compare(engines, stream)
    if header.model is not None:
        with writing(engines["memory"]).begin() as connection:
            memory_store.claim_model(connection, *header.model)
    stored: Counter[str] = Counter()
    for found in read_rows(stream):
        database, table = _BY_NAME[found.table]
        with writing(engines[database]).begin() as connection:
            unbound(connection)
            new = _missing(connection, table, found.rows)
            if new:
                connection.execute(table.insert(), new)
        stored[found.table] += len(new)
        progress(len(found.rows))
    return stored


def _compare(engines: Engines, stream: IO[bytes]) -> None:
    """Raises ``StateConflict`` where a company that is open here differs from the archive's."""
    missing: Counter[str] = Counter()
    for found in read_rows(stream):
        database, table = _BY_NAME[found.table]
        with engines[database].connect() as connection:
            new = _missing(connection, table, found.rows)
        if table not in _PASSING and "company" in table.c:
            missing.update(row["company"] for row in new)
    stream.seek(0)
    c = control_tables.companies.c
    names = sorted(missing)
    with engines["control"].connect() as connection:
        for start in range(0, len(names), 500):
            here = sa.select(c.company).where(c.company.in_(names[start : start + 500])).limit(1)
            company = connection.execute(here).scalar()
            if company is not None:
                raise StateConflict(
                    f"the company {company!r} is here already, with other data; nothing was stored", company=company
                )


def _missing(connection: sa.Connection, table: sa.Table, rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows that are not there, as what is inserted. Raises ``StateConflict`` where one is there, and another."""
    key = list(table.primary_key.columns)
    places = [_told(table).index(column) for column in key]
    there: dict[tuple[Any, ...], Sequence[Any]] = {}
    for start in range(0, len(rows), 100):
        keys = [tuple(row[place] for place in places) for row in rows[start : start + 100]]
        condition = key[0].in_([k[0] for k in keys]) if len(key) == 1 else sa.tuple_(*key).in_(keys)
        for found in connection.execute(sa.select(*_told(table)).where(condition)):
            there[tuple(found[place] for place in places)] = found
    names = [column.name for column in _told(table)]
    missing = []
    for row in rows:
        known = there.get(tuple(row[place] for place in places))
        if known is None:
            missing.append(dict(zip(names, row, strict=True)))
        elif list(known) != list(row):
            raise StateConflict(f"{table.name} has another row of the same key already; nothing was stored")
    return missing
