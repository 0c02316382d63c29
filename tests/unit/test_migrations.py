"""Revisions of the stores' tables: what a store is at, what is refused, and that revisions make what is declared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from muniment.actors.store import control_tables, effect_store, memory_tables
from muniment.actors.store import migrations as m
from muniment.actors.store.engine import Schema, create_schema, metadata, open_engine
from muniment.policies.errors import ConfigurationError
from tests.stores import Stores

SCHEMAS = [memory_tables.TABLES, effect_store.TABLES, control_tables.TABLES]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.name)
def test_the_revisions_make_the_tables_that_are_declared(stores: Stores, schema: Schema) -> None:
    engine = open_engine(stores.url(schema.name))
    with engine.begin() as connection:
        schema.version_table.create(connection)
        connection.execute(schema.version_table.insert().values(version_num="base"))
        m.migrate(connection, schema, "base")
    create_schema(engine, schema)
    names = {table.name for table in schema}
    options = {"include_name": lambda name, kind, _: kind != "table" or name in names, "compare_type": True}
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    assert [change for change in found if not _is_of_another_store(change, names)] == []
    assert m.script_of(schema).get_heads() == [schema.revision]
    engine.dispose()


def _is_of_another_store(change: object, names: set[str]) -> bool:
    kind, what = change[:2] if isinstance(change, tuple) else ("", None)
    table = getattr(what, "table", what)
    return kind in ("add_table", "add_index") and getattr(table, "name", None) not in names


def test_many_that_start_at_once_make_the_tables_once(stores: Stores) -> None:
    engines = [open_engine(stores.url("memory")) for _ in range(6)]
    with ThreadPoolExecutor(6) as starters:
        list(starters.map(lambda engine: create_schema(engine, memory_tables.TABLES), engines))
    with engines[0].connect() as connection:
        assert memory_tables.TABLES.found_in(connection) == memory_tables.TABLES.revision
    for engine in engines:
        engine.dispose()


def test_a_newer_store_is_refused(stores: Stores) -> None:
    engine = open_engine(stores.url("memory"))
    create_schema(engine, memory_tables.TABLES)
    with engine.begin() as connection:
        connection.execute(memory_tables.TABLES.version_table.update().values(version_num="9999"))
    with pytest.raises(ConfigurationError, match="newer"):
        create_schema(engine, memory_tables.TABLES, upgrade=True)
    engine.dispose()


def test_tables_of_somebody_else_are_left_alone(stores: Stores) -> None:
    engine = open_engine(stores.url("memory"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE facts (x INTEGER)")
    with pytest.raises(ConfigurationError, match="'facts'"):
        create_schema(engine, memory_tables.TABLES)
    engine.dispose()


def test_an_older_store_is_upgraded_when_it_may_be(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = {name!r}, {before!r}
def upgrade():
    {what}
"""
    folder = tmp_path / "revisions" / "notebook"
    folder.mkdir(parents=True)
    create = 'op.create_table("notes", sa.Column("id", sa.Integer, primary_key=True))'
    (folder / "m0001.py").write_text(revision.format(name="0001", before=None, what=create))
    add = 'op.add_column("notes", sa.Column("text", sa.Text))'
    (folder / "m0002.py").write_text(revision.format(name="0002", before="0001", what=add))
    monkeypatch.setattr(m, "__file__", str(folder.parent / "__init__.py"))
    notes = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("text", sa.Text))
    schema = Schema("notebook", "0002", (notes,))
    engine = open_engine(stores.url("memory"))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE notes (id INTEGER PRIMARY KEY)")
            connection.exec_driver_sql("INSERT INTO notes VALUES (7)")
            schema.version_table.create(connection)
            connection.execute(schema.version_table.insert().values(version_num="0001"))
        with pytest.raises(ConfigurationError, match="muniment migrate"):
            create_schema(engine, schema)
        create_schema(engine, schema, upgrade=True)
        create_schema(engine, schema)
        with engine.connect() as connection:
            assert connection.execute(sa.select(notes)).all() == [(7, None)]
    finally:
        metadata.remove(schema.version_table)
        engine.dispose()
