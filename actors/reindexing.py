"""Re-embeds every stored fact with another model, beside the vectors in use, and then puts the new ones in their place.

Resumable: what is made is kept, by the name of its model, and made once. Until the last transaction the store is as it
was, and can be used with its old model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import sqlalchemy as sa

from muniment.actors.embedding import Embedder
from muniment.actors.store import memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.engine import epochs, unbound, writing
from muniment.policies.errors import StateConflict

#: Facts that are embedded and kept in one transaction: what an interruption loses.
BATCH: Final = 256
#: (facts done, facts in all)
Progress = Callable[[int, int], None]


def reindex(engine: sa.Engine, embedder: Embedder, progress: Progress = lambda done, total: None) -> int:
    """Gives every stored fact a vector of ``embedder``: how many facts there are. Nobody else may write meanwhile.

    Raises ``StateConflict`` where somebody did; what is done is kept.
    """
    with writing(engine).begin() as connection:
        unbound(connection)
        connection.execute(t.staged_vectors.delete().where(t.staged_vectors.c.model != embedder.name))
        total = _count(connection, t.vectors)
        done = _count(connection, t.staged_vectors)
    progress(done, total)
    last = ""
    while True:
        with engine.connect() as connection:
            missing = _missing(connection, last)
        if not missing:
            break
        last = missing[-1][0]
        _stage(engine, embedder, missing)
        done += len(missing)
        progress(done, total)
    _switch(engine, embedder)
    return total


def _count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def _missing(connection: sa.Connection, last: str) -> list[tuple[str, str]]:
    """(id, company) of the next facts without a new vector."""
    v, s = t.vectors.c, t.staged_vectors.c
    made = sa.exists().where(s.fact_id == v.fact_id)
    query = sa.select(v.fact_id, v.company).where(v.fact_id > last, ~made).order_by(v.fact_id).limit(BATCH)
    return [(row.fact_id, row.company) for row in connection.execute(query)]


def _stage(engine: sa.Engine, embedder: Embedder, missing: Sequence[tuple[str, str]]) -> None:
    ids = [id for id, _ in missing]
    with engine.connect() as connection:
        texts = memory_store.texts_of(connection, ids)
    rows = np.ascontiguousarray(embedder.embed([texts[id] for id in ids]), np.float32)
    made = [
        {"fact_id": id, "company": company, "model": embedder.name, "vector": row.tobytes()}
        for (id, company), row in zip(missing, rows, strict=True)
    ]
    with writing(engine).begin() as connection:
        connection.execute(t.staged_vectors.insert(), made)


def _switch(engine: sa.Engine, embedder: Embedder) -> None:
    """The new vectors take the place of the old ones, all at once, and the store's model is another."""
    v, s = t.vectors.c, t.staged_vectors.c
    new = sa.select(s.vector).where(s.fact_id == v.fact_id)
    with writing(engine).begin() as connection:
        unbound(connection)
        # A shard that runs all the same, on another machine, is refused from here on.
        connection.execute(epochs.update().where(epochs.c.role.startswith("shard-")).values(epoch=epochs.c.epoch + 1))
        left = connection.execute(sa.select(v.fact_id).where(~sa.exists().where(s.fact_id == v.fact_id)).limit(1))
        if left.first() is not None:
            raise StateConflict("facts were stored meanwhile; stop every service on this store and run it again")
        connection.execute(t.vectors.update().values(vector=new.scalar_subquery()))
        connection.execute(t.staged_vectors.delete())
        connection.execute(t.embedding_model.delete())
        memory_store.claim_model(connection, embedder.name, embedder.dimension)
