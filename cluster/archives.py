"""What is done with whole stores: export, import, verify. The services need not run, and may."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa

from muniment.actors.store import transfer, verify
from muniment.actors.store.engine import available, open_engine
from muniment.cluster import launcher
from muniment.cluster.roster import Roster, Shards
from muniment.cluster.services import prepare_stores, require_stores
from muniment.cluster.settings import Database, Settings
from muniment.policies.errors import InvalidInput


@contextmanager
def engines(settings: Settings) -> Iterator[dict[str, sa.Engine]]:
    """The engine of each database; the same one for all where there is one address."""
    prepare_stores(settings, upgrade=False)
    urls = {database: settings.store_url(database) for database in get_args(Database)}
    opened = {url: open_engine(url) for url in set(urls.values())}
    try:
        with available():
            yield {database: opened[url] for database, url in urls.items()}
    finally:
        for engine in opened.values():
            engine.dispose()


def export_to(
    settings: Settings, path: Path, company: str | None, progress: transfer.Progress = transfer.untold
) -> Counter[str]:
    """Writes an archive to ``path``, which nobody else may read, in place of what is there: rows per table."""
    require_stores(settings)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with (
            open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream,
            engines(settings) as all_,
        ):
            counts = transfer.export(all_, stream, company, datetime.now(UTC), progress)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return counts


def import_from(settings: Settings, path: Path, progress: transfer.Progress = transfer.untold) -> Counter[str]:
    """Brings in the companies of an archive: the rows per table that were new."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    with path.open("rb") as stream, engines(settings) as all_:
        return transfer.load(all_, stream, progress)


def verify_indexes(data_dir: Path) -> dict[str, Any]:
    """What the shards of the running service find in the indexes of what they have loaded."""
    settings = launcher.published_settings(launcher.attach(data_dir).namespace)

    async def ask() -> list[dict[str, Any]]:
        engine = open_engine(settings.store_url("memory"))
        shards = Shards(Roster(engine, ("shard",)), settings.ray.namespace).members()
        try:
            return list(await asyncio.gather(*(shard.verify() for shard in shards.values())))
        finally:
            engine.dispose()

    found = asyncio.run(ask())
    names = ("companies", "facts")
    counted: dict[str, Any] = {name: sum(answer[name] for answer in found) for name in names}
    return {**counted, "wrong": [id for answer in found for id in answer["wrong"]]}


def verify_stores(
    settings: Settings, company: str | None, progress: transfer.Progress = transfer.untold
) -> dict[str, Any]:
    """What ``actors.store.verify`` finds, as JSON."""
    require_stores(settings)
    with engines(settings) as all_:
        return verify.verify(all_, company, progress).to_dict()
