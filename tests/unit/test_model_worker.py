"""Batching across requests, priorities, bounds and failures of a model worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muniment.actors.embedding import SentenceTransformerEmbedder
from muniment.actors.model_worker import ModelWorker, Priority
from muniment.policies.errors import ModelUnavailable, Overloaded


class CountingModel:
    """Embeds a text as its length; can be held."""

    name, dimension = "counting", 2

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def embed(self, texts: Sequence[str]) -> Any:
        self.started.set()
        assert self.gate.wait(10)
        self.batches.append(list(texts))
        if "boom" in texts:
            raise ValueError("boom")
        return np.array([[len(t), 1] for t in texts], np.float32)

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Any:
        return [float(len(text)) for _, text in pairs]


class TimedModel(CountingModel):
    """Takes so many seconds an item, by its own clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.now = 0.0

    def embed(self, texts: Sequence[str]) -> Any:
        found = super().embed(texts)
        self.now += self.seconds * len(texts)
        return found


def rows(data: bytes) -> list[float]:
    return np.frombuffer(data, np.float32).reshape(-1, 2)[:, 0].tolist()


def still(model: CountingModel, **options: Any) -> ModelWorker:
    """A worker for which no time passes, so that how much it takes at once does not depend on the machine."""
    return ModelWorker(model, model, clock=lambda: 0.0, **options)


async def held(model: CountingModel, worker: ModelWorker) -> asyncio.Task[bytes]:
    """A request that the model is busy with until the gate opens."""
    model.gate.clear()
    task = asyncio.create_task(worker.embed(["first"]))
    await asyncio.to_thread(model.started.wait, 10)
    return task


def test_what_gathers_while_the_model_runs_becomes_one_batch_in_order() -> None:
    async def scenario() -> None:
        model = CountingModel()
        worker = still(model)
        first = await held(model, worker)
        tasks = [asyncio.create_task(worker.embed(["x" * n])) for n in range(1, 21)]
        await asyncio.sleep(0)
        model.gate.set()
        assert [rows(d) for d in await asyncio.gather(*tasks)] == [[float(n)] for n in range(1, 21)]
        await first
        assert [len(batch) for batch in model.batches] == [1, 20]

    asyncio.run(scenario())


def test_queries_go_before_bulk_ingest_and_batches_are_bounded() -> None:
    async def scenario() -> None:
        model = CountingModel()
        worker = still(model, max_batch=4)
        first = await held(model, worker)
        bulk = asyncio.create_task(worker.embed(["bulk"] * 10, Priority.INGEST))
        await asyncio.sleep(0)
        query = asyncio.create_task(worker.embed(["query"], Priority.QUERY))
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, bulk, query)
        assert model.batches == [["first"], ["query"], ["bulk"] * 4, ["bulk"] * 4, ["bulk"] * 2]

    asyncio.run(scenario())


def test_a_full_queue_is_refused_and_a_failure_reaches_all_its_callers() -> None:
    async def scenario() -> None:
        model = CountingModel()
        worker = still(model, max_queued_items=3)
        first = await held(model, worker)
        waiting = [asyncio.create_task(worker.embed([text])) for text in ("a", "boom")]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await worker.embed(["b", "c"])
        with pytest.raises(Overloaded):
            await worker.embed(["b", "c"], Priority.INGEST)
        model.gate.set()
        await first
        for failed in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failed, ValueError)
        assert rows(await worker.embed(["abc"])) == [3.0]
        assert await worker.embed([]) == b""

    asyncio.run(scenario())


def test_a_run_takes_what_fits_into_a_slice_of_time() -> None:
    async def scenario() -> None:
        model = TimedModel(0.01)  # five texts a slice
        worker = ModelWorker(model, None, clock=lambda: model.now)
        assert rows(await worker.embed(["first"])) == [5.0]
        first = await held(model, worker)
        bulk = asyncio.create_task(worker.embed([f"{n:02}" for n in range(7)], Priority.INGEST))
        await asyncio.sleep(0)
        model.gate.set()
        await first
        assert len(rows(await bulk)) == 7
        assert [len(batch) for batch in model.batches] == [1, 1, 5, 2]

    asyncio.run(scenario())


def test_what_would_wait_too_long_is_refused_and_told_when_to_come_back() -> None:
    async def scenario() -> None:
        model = TimedModel(2.0)
        worker = ModelWorker(model, model, clock=lambda: model.now)
        await worker.embed(["two seconds"])
        first = await held(model, worker)
        bulk = asyncio.create_task(worker.embed(["bulk"] * 9, Priority.INGEST))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await worker.embed(["more bulk"], Priority.INGEST)
        assert refused.value.fields["retry_after_seconds"] == 18
        model.seconds = 0.1
        query = asyncio.create_task(worker.embed(["bulk takes no place from queries"]))
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, bulk, query)

    asyncio.run(scenario())


def test_what_others_leave_no_turn_is_refused_and_nothing_is_left_of_it() -> None:
    async def scenario() -> None:
        model = CountingModel()
        now = 0.0
        worker = ModelWorker(model, model, max_batch=1, clock=lambda: now)
        first = await held(model, worker)
        bulk = asyncio.create_task(worker.embed(["bulk", "bulk"], Priority.INGEST))
        await asyncio.sleep(0)
        begun = asyncio.create_task(worker.embed(["begun"], Priority.INGEST, patient=True))
        await asyncio.sleep(0)
        now = 4.0
        queries = [asyncio.create_task(worker.embed([f"query {n}"])) for n in range(3)]
        young = asyncio.create_task(worker.embed(["young"], Priority.INGEST))
        await asyncio.sleep(0)
        now = 6.0
        model.gate.set()
        with pytest.raises(Overloaded) as refused:
            await bulk
        assert refused.value.fields["retry_after_seconds"] >= 1
        await asyncio.gather(first, *queries, begun, young)
        order = [text for batch in model.batches for text in batch]
        assert order == ["first", "query 0", "query 1", "query 2", "begun", "young"]
        assert (await worker.load())["waiting_seconds"] == 0
        assert sum(worker._queued.values()) == 0

    asyncio.run(scenario())


def test_reranking_is_left_out_sooner_than_a_query_is_refused() -> None:
    async def scenario() -> None:
        model = CountingModel()
        now = 0.0
        worker = ModelWorker(model, model, max_wait_seconds=4.0, clock=lambda: now)
        first = await held(model, worker)
        query = asyncio.create_task(worker.embed(["query"]))
        rerank = asyncio.create_task(worker.rerank("q", ["text"]))
        await asyncio.sleep(0)
        now = 3.0
        model.gate.set()
        with pytest.raises(Overloaded):
            await rerank
        await asyncio.gather(first, query)

    asyncio.run(scenario())


def test_it_says_how_much_work_waits_and_how_long_it_worked() -> None:
    async def scenario() -> None:
        model = TimedModel(0.01)
        worker = ModelWorker(model, model, clock=lambda: model.now)
        assert await worker.load() == {"waiting_seconds": 0.0, "busy_seconds": 0.0}
        await worker.embed(["ten milliseconds"])
        first = await held(model, worker)
        bulk = asyncio.create_task(worker.embed(["bulk"] * 30, Priority.INGEST))
        await asyncio.sleep(0)
        found = await worker.load()
        assert found == {"waiting_seconds": pytest.approx(0.3), "busy_seconds": pytest.approx(0.01)}
        model.gate.set()
        await asyncio.gather(first, bulk)
        assert (await worker.load())["waiting_seconds"] == 0

    asyncio.run(scenario())


def test_reranking_goes_before_bulk_ingest_and_after_queries() -> None:
    async def scenario() -> None:
        order: list[str] = []

        class Both(CountingModel):
            def embed(self, texts: Sequence[str]) -> Any:
                found = super().embed(texts)
                order.append(texts[0])
                return found

            def predict(self, pairs: Sequence[tuple[str, str]]) -> Any:
                order.append("rerank")
                return super().predict(pairs)

        model = Both()
        worker = still(model)
        first = await held(model, worker)
        later = [asyncio.create_task(worker.embed(["bulk"], Priority.INGEST))]
        await asyncio.sleep(0)
        later.append(asyncio.create_task(worker.rerank("q", ["text"])))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        later.append(asyncio.create_task(worker.embed(["query"])))
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, *later)
        assert order == ["first", "query", "rerank", "bulk"]

    asyncio.run(scenario())


def test_a_caller_that_went_away_costs_no_work() -> None:
    async def scenario() -> None:
        model = CountingModel()
        worker = still(model)
        first = await held(model, worker)
        gone = asyncio.create_task(worker.embed(["gone"]))
        await asyncio.sleep(0)
        gone.cancel()
        kept = asyncio.create_task(worker.embed(["kept"]))
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, kept)
        assert model.batches == [["first"], ["kept"]]

    asyncio.run(scenario())


def test_reranking_needs_a_reranker() -> None:
    async def scenario() -> None:
        model = CountingModel()
        assert await ModelWorker(model, model).rerank("q", ["a", "abc"]) == [1.0, 3.0]
        with pytest.raises(ModelUnavailable):
            await ModelWorker(model, None).rerank("q", ["a"])

    asyncio.run(scenario())


def test_the_bundled_model_is_the_published_one_and_embeds() -> None:
    embedder = SentenceTransformerEmbedder()
    vectors = embedder.embed(["a cat sits on the mat", "a kitten rests on a rug", "quarterly tax filing"])
    assert vectors.shape == (3, embedder.dimension) == (3, 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


def test_a_model_that_is_not_there_is_a_clear_error(tmp_path: Any) -> None:
    with pytest.raises(ModelUnavailable):
        SentenceTransformerEmbedder(str(tmp_path / "nowhere"))
