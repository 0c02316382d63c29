"""Gives a store that is not in use the vectors of the embedding model that the settings name."""

from __future__ import annotations

from dataclasses import dataclass

from muniment.actors.embedding import space_name
from muniment.actors.reindexing import Progress, reindex
from muniment.actors.store import memory_store
from muniment.actors.store.engine import available, open_engine
from muniment.cluster import launcher
from muniment.cluster.actor_classes import NO_MODEL, open_worker
from muniment.cluster.services import prepare_stores, require_stores
from muniment.cluster.settings import Settings


@dataclass(frozen=True, slots=True)
class Reindexed:
    """``before``: the model that the vectors were from, None where there were none. ``facts``: how many there are."""

    model: str
    before: str | None
    facts: int


def reindex_store(settings: Settings, progress: Progress) -> Reindexed:
    """Re-embeds every fact. What an interruption leaves is used by the next call.

    Raises ``NotFound`` where there is no store, ``StateConflict`` where a service runs on the data directory,
    ``ModelUnavailable``.
    """
    require_stores(settings)
    with launcher.stopped(settings.data_dir):
        prepare_stores(settings, upgrade=False)
        engine = open_engine(settings.store_url("memory"))
        try:
            with available():
                with engine.connect() as connection:
                    before = memory_store.model_name(connection)
                if before in (None, space_name(settings.workers.model)):
                    return Reindexed(space_name(settings.workers.model), before, 0)
                embedder = open_worker(settings.workers.model_copy(update={"reranker": NO_MODEL})).embedder
                return Reindexed(embedder.name, before, reindex(engine, embedder, progress))
        finally:
            engine.dispose()
