"""A model worker: batches across requests for one bi-encoder and one cross-encoder.

Requests queue by kind and priority; one thread runs the models, and each run takes what has gathered, so that the
batch grows with the load and a lone request never waits. Queries and reranking go before bulk ingest.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from muniment.actors.embedding import Embedder
from muniment.policies.errors import ModelUnavailable, Overloaded


class Priority(IntEnum):
    """Smaller runs first."""

    QUERY = 0
    INGEST = 1


class Reranker(Protocol):
    """What a model worker needs of a cross-encoder: a logit a pair, higher is more relevant."""

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """``(n,)`` floats, in the order of ``pairs``."""
        ...


@dataclass(order=True, slots=True)
class _Job:
    priority: int
    number: int
    kind: str = field(compare=False)
    items: list[Any] = field(compare=False)
    future: asyncio.Future[Any] = field(compare=False)


class ModelWorker:
    """The body of a model worker actor. Its methods run on one event loop; the models on one thread of their own."""

    def __init__(
        self,
        embedder: Embedder,
        reranker: Reranker | None,
        *,
        reranker_name: str | None = None,
        max_batch: int = 64,
        max_queued_items: int = 20_000,
    ) -> None:
        self._embedder = embedder
        self._reranker = reranker
        self._reranker_name = reranker_name if reranker is not None else None
        self._max_batch = max_batch
        self._max_queued = max_queued_items
        self._jobs: list[_Job] = []
        self._queued = 0
        self._numbers = itertools.count()
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def describe(self) -> dict[str, Any]:
        """The models in use: ``embedder``, ``dimension``, ``reranker`` (None where there is none)."""
        return {
            "embedder": self._embedder.name,
            "dimension": self._embedder.dimension,
            "reranker": self._reranker_name,
        }

    async def embed(self, texts: Sequence[str], priority: int = Priority.QUERY) -> bytes:
        """``(n, d)`` float32 in C order as bytes, L2-normalised. Raises ``Overloaded`` when the queue is full."""
        rows = await self._submit("embed", list(texts), priority)
        return b"".join(rows)

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """A logit for each text, higher is more relevant. Raises ``ModelUnavailable`` where there is no model."""
        if self._reranker is None:
            raise ModelUnavailable("no reranker is loaded")
        scores: list[float] = await self._submit("rerank", [(query, text) for text in texts], Priority.QUERY)
        return scores

    async def _submit(self, kind: str, items: list[Any], priority: int) -> list[Any]:
        if not items:
            return []
        if self._queued + len(items) > self._max_queued:
            raise Overloaded("the model worker's queue is full", retry_after_seconds=1)
        loop = asyncio.get_running_loop()
        jobs = []
        for start in range(0, len(items), self._max_batch):
            part = items[start : start + self._max_batch]
            job = _Job(priority, next(self._numbers), kind, part, loop.create_future())
            heapq.heappush(self._jobs, job)
            self._queued += len(part)
            jobs.append(job)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return [row for part in await asyncio.gather(*(job.future for job in jobs)) for row in part]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs:
            batch = self._next_batch()
            items = [item for job in batch for item in job.items]
            run: Callable[[list[Any]], list[Any]] = self._embed if batch and batch[0].kind == "embed" else self._score
            try:
                rows = await loop.run_in_executor(self._thread, run, items) if items else []
            except Exception as error:  # noqa: BLE001 - handed to every caller of the batch, none is left waiting
                for job in batch:
                    if not job.future.done():
                        job.future.set_exception(error)
                continue
            position = 0
            for job in batch:
                if not job.future.done():
                    job.future.set_result(rows[position : position + len(job.items)])
                position += len(job.items)

    def _next_batch(self) -> list[_Job]:
        """The first job and those that queue behind it with its kind and priority, up to the batch size."""
        batch: list[_Job] = []
        size = 0
        while self._jobs:
            job = self._jobs[0]
            same = not batch or (job.kind == batch[0].kind and job.priority == batch[0].priority)
            if not same or (batch and size + len(job.items) > self._max_batch):
                break
            heapq.heappop(self._jobs)
            self._queued -= len(job.items)
            if job.future.cancelled():
                continue
            batch.append(job)
            size += len(job.items)
        return batch

    def _embed(self, texts: list[str]) -> list[bytes]:
        return [row.tobytes() for row in np.ascontiguousarray(self._embedder.embed(texts), dtype=np.float32)]

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        assert self._reranker is not None
        return [float(score) for score in self._reranker.predict(pairs)]
