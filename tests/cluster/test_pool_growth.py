"""The pool of model workers, as Ray actors: it grows while work waits, shrinks again, and no call notices."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import ray

from muniment.actors.model_worker import Priority
from muniment.cluster import scaler as scaler_module
from muniment.cluster.actor_classes import create_actors, worker_pool
from muniment.cluster.scaler import Scaler
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings, load
from muniment.policies.errors import Overloaded
from muniment.policies.pool_size import PoolPolicy

NAMESPACE = "growth-test"


@pytest.fixture
def settings(ray_cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """One worker, two at the most; soon decided, whatever the machine."""
    quick = functools.partial(
        PoolPolicy, grow_above=0.05, grow_after=timedelta(0), shrink_after=timedelta(seconds=2), busy_at_most=2.0
    )
    monkeypatch.setattr(scaler_module, "PoolPolicy", quick)
    made = load(
        data_dir=tmp_path.resolve(),
        ray={"namespace": NAMESPACE},
        workers={"count": 1, "max_count": 2, "reranker": "none"},
    )
    prepare_stores(made, upgrade=False)
    yield made
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE:
            ray.kill(ray.get_actor(entry["name"], namespace=NAMESPACE))


def test_it_grows_while_work_waits_and_shrinks_again(settings: Settings) -> None:
    create_actors(settings)
    scaler = Scaler(settings)

    async def scenario() -> None:
        pool = worker_pool(settings)
        text = "a line of a log that takes the model a while to read " * 4
        expected = np.frombuffer(await pool.embed([text], Priority.QUERY), np.float32)
        scaling = asyncio.create_task(scaler._run())
        grown = False

        async def bulk() -> None:
            while not grown:
                try:
                    vectors = np.frombuffer(await pool.embed([text] * 128, Priority.INGEST), np.float32)
                except Overloaded:  # a slow machine
                    await asyncio.sleep(0.5)
                    continue
                np.testing.assert_allclose(vectors[: len(expected)], expected, atol=1e-3)

        work = [asyncio.create_task(bulk()) for _ in range(4)]
        while not grown:
            await asyncio.sleep(0.1)
            grown = scaler.worker_sizes() == (2, 2)
        await asyncio.gather(*work)
        assert scaler.running()["worker"] == {0, 1}
        while scaler.running()["worker"] != {0} or scaler.worker_sizes() != (1, 1):
            found = np.frombuffer(await pool.embed([text], Priority.QUERY), np.float32)
            np.testing.assert_allclose(found, expected, atol=1e-3)
        scaling.cancel()

    asyncio.run(scenario())
