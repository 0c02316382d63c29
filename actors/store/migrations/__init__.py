"""Changes of the tables over time: one folder of Alembic revisions per database, ``0001`` first.

A revision is written once and never changed. To change a table: change it where it is declared, add a revision that
does the same to a store that is there, and name it in the table's ``Schema``; a test compares the two.
"""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError

from muniment.actors.store.engine import Schema
from muniment.policies.errors import ConfigurationError

log = logging.getLogger(__name__)


def script_of(schema: Schema) -> ScriptDirectory:
    """The revisions of a database."""
    folder = Path(__file__).parent
    return ScriptDirectory(str(folder), version_locations=[str(folder / schema.name)])


def migrate(connection: sa.Connection, schema: Schema, found: str, upgrade: bool = True) -> None:
    """Brings a store from revision ``found`` to the one this program reads, inside the caller's transaction.

    Raises ``ConfigurationError`` where the store is newer than this program, or older and not ``upgrade``.
    """
    script = script_of(schema)
    try:
        steps = list(script.revision_map.iterate_revisions(schema.revision, found))
    except RevisionError:
        raise ConfigurationError(
            f"the {schema.name} store has revision {found}, which is newer than this program's {schema.revision}; "
            "run the program that wrote it",
            found=found,
            wanted=schema.revision,
        ) from None
    if not upgrade:
        raise ConfigurationError(
            f"the {schema.name} store has revision {found}, this program reads {schema.revision}; "
            "run `muniment migrate`, or set store.upgrade_at_start",
            found=found,
            wanted=schema.revision,
        )
    context = MigrationContext.configure(connection, opts={"version_table": schema.version_table.name})
    with Operations.context(context):
        for step in reversed(steps):
            script.get_revision(step.revision).module.upgrade()
    connection.execute(schema.version_table.update().values(version_num=schema.revision))
    log.warning("the %s store was brought from revision %s to %s", schema.name, found, schema.revision)
