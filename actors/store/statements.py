"""Statements that run so often that SQLAlchemy's part in them would be the larger one: their text, and their running.

They run on the driver's own cursor, inside the connection's transaction. What the driver raises becomes SQLAlchemy's
error of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from muniment.actors.store.engine import cursor_of, driver_errors

Row = Sequence[Any]


def mark(dialect: sa.Dialect) -> str:
    """What stands for a parameter."""
    return "?" if dialect.name == "sqlite" else "%s"


@lru_cache(maxsize=256)
def insert(table: sa.Table, mark: str) -> str:
    """Inserts a row, its values in the order of the table's columns."""
    names = [f'"{column.name}"' for column in table.columns]
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"


@lru_cache(maxsize=256)
def upsert(table: sa.Table, mark: str) -> str:
    """The same; a row with this primary key is replaced."""
    keys = ", ".join(f'"{column.name}"' for column in table.primary_key)
    others = [f'"{column.name}"' for column in table.columns if not column.primary_key]
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f"{insert(table, mark)} ON CONFLICT ({keys}) DO UPDATE SET {changes}"


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Inserts rows, each in the order of the table's columns."""
    _write(connection, insert(table, mark(connection.dialect)), rows)


def upsert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Inserts rows, or replaces those that have their primary keys."""
    _write(connection, upsert(table, mark(connection.dialect)), rows)


def _write(connection: sa.Connection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        with driver_errors(connection.dialect):
            cursor_of(connection).executemany(statement, rows)


def read_row(connection: sa.Connection, query: str, *parameters: Any) -> Row | None:
    """The first row that ``query`` finds, None where it finds none. Parameters stand in it as ``?``."""
    with driver_errors(connection.dialect):
        found = cursor_of(connection).execute(query.replace("?", mark(connection.dialect)), parameters)
        row: Row | None = found.fetchone()
    return row
