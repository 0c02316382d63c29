"""Model workers as Ray actors: the death of one while calls run costs another try elsewhere and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest
import ray

from muniment.actors.metrics import Observe
from muniment.actors.model_worker import Priority
from muniment.actors.store.engine import open_engine, writing
from muniment.actors.store.tenure import begin
from muniment.cluster.actor_classes import WorkerActor, worker_pool
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings, load

NAMES = ("worker-0", "worker-1")


class MortalWorker(WorkerActor):
    """Says in which process it lives."""

    verbs = WorkerActor.verbs | {"pid"}

    def open(self, observe: Observe) -> Any:
        body = super().open(observe)

        async def pid() -> int:
            return os.getpid()

        body.pid = pid  # type: ignore[attr-defined]
        return body


@pytest.fixture(scope="module")
def pool_settings(ray_cluster: Settings, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two workers without a reranker, in a namespace and with a store of their own."""
    settings = load(
        data_dir=tmp_path_factory.mktemp("workers"),
        ray={"namespace": "workers-test"},
        workers={"count": 2, "reranker": "none"},
    )
    prepare_stores(settings, upgrade=False)
    engine = open_engine(settings.store_url("memory"))
    with writing(engine).begin() as connection:
        begin(connection, "worker", len(NAMES))
    engine.dispose()
    actors = [
        ray.remote(MortalWorker)
        .options(name=name, namespace="workers-test", max_restarts=-1, num_cpus=0, max_concurrency=1_000)
        .remote(settings, number)
        for number, name in enumerate(NAMES)
    ]
    yield settings
    for actor in actors:
        ray.kill(actor)


def test_kill_9_of_a_worker_costs_a_try_elsewhere(pool_settings: Settings) -> None:
    async def scenario() -> None:
        pool = worker_pool(pool_settings)
        texts = [f"line {n} of the log" for n in range(40)]
        expected = [await pool.embed([text], Priority.QUERY) for text in texts]
        pids = [await handle.call("pid") for handle in pool._handles()]
        assert len(set(pids)) == 2

        async def ask(n: int) -> bytes:
            answer = b""
            for _ in range(5):
                answer = await pool.embed([texts[n]], Priority.QUERY)
            return answer

        bulk = asyncio.create_task(pool.embed(texts * 20, Priority.INGEST))
        asked = [asyncio.create_task(ask(n)) for n in range(len(texts))]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        os.kill(pids[0], signal.SIGKILL)
        answers = await asyncio.gather(*asked)
        for answer, alone in zip(answers, expected, strict=True):
            np.testing.assert_allclose(np.frombuffer(answer, np.float32), np.frombuffer(alone, np.float32), atol=1e-4)
        vectors = np.frombuffer(await bulk, np.float32).reshape(len(texts) * 20, -1)
        np.testing.assert_allclose(vectors[: len(texts)], vectors[-len(texts) :], atol=1e-4)
        reborn = await pool._handles()[0].call("pid")
        assert reborn not in pids

    asyncio.run(scenario())
