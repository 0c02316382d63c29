"""Another embedding model: what is re-embedded, what an interruption leaves, and when the store's model changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import sqlalchemy as sa

from muniment.actors import reindexing
from muniment.actors.reindexing import reindex
from muniment.actors.store import memory_store
from muniment.actors.store import memory_tables as t
from muniment.policies.errors import ConfigurationError, Fenced, StateConflict
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, Bench

FACTS = 50


class Letters:
    """A model that counts letters; ``seen``: the texts that it embedded."""

    def __init__(self, name: str = "letters", dimension: int = 5) -> None:
        self.name = name
        self.dimension = dimension
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.seen += texts
        return np.array([[text.count(letter) + 1 for letter in "aeiou"] for text in texts], np.float32)


class Interrupted(Exception):
    """Somebody pressed Ctrl-C."""


@pytest.fixture
def bench(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(reindexing, "BATCH", 8)
    made = Bench(stores, l1_capacity=10, l2_capacity=20)
    told = [{"text": f"fact {n} of unity"} for n in range(FACTS)]
    asyncio.run(made.tell(*told))
    asyncio.run(made.tell(*({"text": f"state {n}", "subject": "s", "field": "f", "value": n} for n in range(3))))
    yield made
    made.close()


def stored(bench: Bench) -> tuple[dict[str, bytes], str]:
    with bench.engine.connect() as connection:
        vectors = {row.fact_id: bytes(row.vector) for row in connection.execute(sa.select(t.vectors))}
        return vectors, connection.execute(sa.select(t.embedding_model.c.name)).scalar_one()


def stop_after(facts: int) -> reindexing.Progress:
    def progress(done: int, total: int) -> None:
        if done >= facts:
            raise Interrupted

    return progress


def test_what_an_interruption_leaves_is_not_made_again(bench: Bench) -> None:
    before = stored(bench)
    model = Letters()
    with pytest.raises(Interrupted):
        reindex(bench.engine, model, stop_after(16))
    assert stored(bench) == before  # still the old model's, and of use with it
    assert asyncio.run(bench.texts("fact 49 of unity"))
    first = set(model.seen)
    assert len(first) == 16
    model.seen.clear()
    seen: list[tuple[int, int]] = []
    total = reindex(bench.engine, model, lambda done, total: seen.append((done, total)))
    assert total == len(before[0])
    assert (seen[0], seen[-1]) == ((16, total), (total, total))
    assert len(model.seen) == total - 16
    assert first.isdisjoint(model.seen)
    vectors, name = stored(bench)
    assert (name, vectors.keys()) == ("letters", before[0].keys())
    assert {len(vector) for vector in vectors.values()} == {4 * 5}
    with bench.engine.connect() as connection:
        assert connection.execute(sa.select(t.staged_vectors)).all() == []


def test_what_was_begun_for_another_model_is_dropped(bench: Bench) -> None:
    with pytest.raises(Interrupted):
        reindex(bench.engine, Letters("other"), stop_after(16))
    model = Letters()
    assert reindex(bench.engine, model) == len(model.seen)
    assert stored(bench)[1] == "letters"


def test_a_fact_that_is_deleted_meanwhile_leaves_no_vector(bench: Bench) -> None:
    with pytest.raises(Interrupted):
        reindex(bench.engine, Letters(), stop_after(24))
    ids = sorted(stored(bench)[0])
    asyncio.run(bench.shard.retire("acme", id=ids[0], status="deleted", reason="wrong", actor=ANA, own_only=False))
    with bench.engine.connect() as connection:
        assert ids[0] not in connection.execute(sa.select(t.staged_vectors.c.fact_id)).scalars().all()
    reindex(bench.engine, Letters())
    assert sorted(stored(bench)[0]) == ids[1:]


def test_a_shard_that_runs_all_the_same_is_refused(bench: Bench) -> None:
    reindex(bench.engine, Letters())
    with pytest.raises(Fenced):
        asyncio.run(bench.tell({"text": "a late fact"}))
    bench.shard.close()
    bench.start()
    with pytest.raises(ConfigurationError, match="muniment reindex"):
        asyncio.run(bench.tell({"text": "a late fact"}))


def test_nothing_is_switched_where_a_vector_is_missing(bench: Bench) -> None:
    def lose_one(done: int, total: int) -> None:
        if done == total:
            with bench.engine.begin() as connection:
                first = sa.select(sa.func.min(t.staged_vectors.c.fact_id)).scalar_subquery()
                connection.execute(t.staged_vectors.delete().where(t.staged_vectors.c.fact_id == first))

    before = stored(bench)
    model = Letters()
    with pytest.raises(StateConflict, match="run it again"):
        reindex(bench.engine, model, lose_one)
    assert stored(bench) == before
    reindex(bench.engine, model)
    assert len(model.seen) == len(before[0]) + 1


def test_a_fact_that_is_stored_meanwhile_is_not_passed_over(bench: Bench) -> None:
    def tell_one(done: int, total: int) -> None:
        if done == total:
            asyncio.run(bench.tell({"text": "a late fact"}))

    model = Letters()
    reindex(bench.engine, model, tell_one)
    assert "a late fact" in model.seen


def test_another_model_is_refused_with_the_command_that_helps(bench: Bench) -> None:
    with bench.engine.begin() as connection:
        memory_store.claim_model(connection, "words")
        for name, dimension in (("letters", None), ("letters", 5), ("words", 7)):
            with pytest.raises(ConfigurationError, match="muniment reindex"):
                memory_store.claim_model(connection, name, dimension)
    reindex(bench.engine, Letters())
    with bench.engine.begin() as connection:
        memory_store.claim_model(connection, "letters", 5)
