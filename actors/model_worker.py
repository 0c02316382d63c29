"""A model worker: batches across requests for one bi-encoder and one cross-encoder.

Requests queue by priority and kind; one thread runs the models. Each run takes what has gathered, as much as fits into
a slice of time by the pace measured so far: so a lone request never waits, batches grow with the load and with the
device, and a query that arrives behind bulk ingest waits for one slice. Queries go before reranking, and that before
ingest.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np

from muniment.actors.embedding import Embedder
from muniment.actors.metrics import (
    MODEL_BUSY,
    MODEL_ITEMS,
    MODEL_SECONDS,
    QUEUE_LENGTH,
    REFUSED,
    Levels,
    Observe,
    unobserved,
)
from muniment.policies.errors import ModelUnavailable, Overloaded

SLICE_SECONDS: Final = 0.05
"""What one run of a model should take at most; a single item may take longer."""
MAX_WAIT_SECONDS: Final = 5.0
"""Work that would wait longer, or has, is refused: who asked would have given up, and it would be for nothing."""


class Priority(IntEnum):
    """Smaller runs first."""

    QUERY = 0
    RERANK = 1
    INGEST = 2


class Reranker(Protocol):
    """What a model worker needs of a cross-encoder: a logit a pair, higher is more relevant."""

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """``(n,)`` floats, in the order of ``pairs``."""
        ...


@dataclass(order=True, slots=True)
class _Job:
    """One request: ``items`` are handed to the model from ``taken`` on, ``rows`` have come back."""

    priority: int
    number: int
    kind: str = field(compare=False)
    items: list[Any] = field(compare=False)
    future: asyncio.Future[list[Any]] = field(compare=False)
    queued_at: float = field(compare=False)
    patient: bool = field(compare=False)
    taken: int = field(default=0, compare=False)
    rows: list[Any] = field(default_factory=list, compare=False)

    @property
    def left(self) -> int:
        """How many items no model has had yet."""
        return len(self.items) - self.taken


class _Pace:
    """How long an item of a kind takes, by what the last runs took."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def ran(self, items: int, seconds: float) -> None:
        """Takes a run into account."""
        found = seconds / items
        self.seconds = found if self.seconds is None else 0.7 * self.seconds + 0.3 * found

    def fits(self, most: int) -> int:
        """How many items a slice of time holds, at least one and at most ``most``; little while nothing is known."""
        if self.seconds is None:
            return min(most, 8)
        return max(1, min(most, int(SLICE_SECONDS / max(self.seconds, 1e-9))))


class ModelWorker:
    """The body of a model worker actor. Its methods run on one event loop; the models on one thread of their own."""

    def __init__(
        self,
        embedder: Embedder,
        reranker: Reranker | None,
        *,
        reranker_name: str | None = None,
        runtime: str = "torch",
        max_batch: int = 64,
        max_queued_items: int = 20_000,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
        observe: Observe = unobserved,
    ) -> None:
        self.embedder = embedder
        self.reranker = reranker
        self._reranker_name = reranker_name if reranker is not None else None
        self._runtime = runtime
        self._max_batch = max_batch
        self._max_queued = max_queued_items
        # Reranking comes after a wait for an embedding, and an answer can do without it, which it says.
        self._max_wait: dict[int, float] = dict.fromkeys(Priority, max_wait_seconds)
        self._max_wait[Priority.RERANK] /= 2
        self._jobs: list[_Job] = []
        self._queued: Counter[int] = Counter()
        self._paces = {"embed": _Pace(), "rerank": _Pace()}
        self._clock = clock
        self._observe = observe
        self._busy_seconds = 0.0
        self._numbers = itertools.count()
        self._pump: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def describe(self) -> dict[str, Any]:
        """The models in use: ``embedder``, ``dimension``, ``reranker`` (None where there is none), and ``runtime``."""
        return {
            "embedder": self.embedder.name,
            "dimension": self.embedder.dimension,
            "reranker": self._reranker_name,
            "runtime": self._runtime,
        }

    async def embed(self, texts: Sequence[str], priority: int = Priority.QUERY, patient: bool = False) -> bytes:
        """``(n, d)`` float32 in C order as bytes, L2-normalised. Raises ``Overloaded`` when the queue is full.

        ``patient``: a further part of what has begun, which waits for its turn as long as it takes.
        """
        return b"".join(await self._submit("embed", list(texts), priority, patient))

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """A logit for each text, higher is more relevant. Raises ``ModelUnavailable`` where there is no model."""
        if self.reranker is None:
            raise ModelUnavailable("no reranker is loaded")
        return await self._submit("rerank", [(query, text) for text in texts], Priority.RERANK)

    async def load(self) -> dict[str, float]:
        """``waiting_seconds``: of work that no model has had yet; ``busy_seconds``: that the models worked so far."""
        waiting = sum(job.left * (self._paces[job.kind].seconds or 0.0) for job in self._jobs)
        return {"waiting_seconds": waiting, "busy_seconds": self._busy_seconds}

    def levels(self) -> Levels:
        """How much waits."""
        for priority in Priority:
            yield QUEUE_LENGTH, self._queued[priority], {"queue": f"model_{priority.name.lower()}"}

    async def _submit(self, kind: str, items: list[Any], priority: int, patient: bool = False) -> list[Any]:
        if not items:
            return []
        self._admit(len(items), priority, patient)
        loop = asyncio.get_running_loop()
        job = _Job(priority, next(self._numbers), kind, items, loop.create_future(), self._clock(), patient)
        heapq.heappush(self._jobs, job)
        self._queued[priority] += len(items)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return await job.future

    def _admit(self, items: int, priority: int, patient: bool) -> None:
        """Refuses what would wait too long behind what goes before it. What is bulk takes no place from queries."""
        ahead = sum(count for other, count in self._queued.items() if other <= priority)
        slowest = max(pace.seconds or 0.0 for pace in self._paces.values())
        wait = ahead * slowest
        too_long = wait > self._max_wait[priority] and not patient
        if ahead and (ahead + items > self._max_queued or too_long):
            raise self._full(priority, wait)

    def _full(self, priority: int, wait: float) -> Overloaded:
        self._observe(REFUSED, 1, queue=f"model_{Priority(priority).name.lower()}")
        return Overloaded("the model worker's queue is full", retry_after_seconds=min(60, max(1, math.ceil(wait))))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs:
            self._refuse_starved()
            batch = self._next_batch()
            if not batch:
                continue
            kind = batch[0][0].kind
            items = [item for _, part in batch for item in part]
            run: Callable[[list[Any]], list[Any]] = self._embed if kind == "embed" else self._score
            started = self._clock()
            try:
                rows = await loop.run_in_executor(self._thread, run, items)
            except Exception as error:  # noqa: BLE001 - handed to every caller of the batch, none is left waiting
                for job, _ in batch:
                    self._fail(job, error)
                continue
            seconds = self._clock() - started
            self._busy_seconds += seconds
            self._paces[kind].ran(len(items), seconds)
            self._observe(MODEL_SECONDS, seconds, model=kind)
            self._observe(MODEL_BUSY, seconds, model=kind)
            self._observe(MODEL_ITEMS, len(items), model=kind)
            position = 0
            for job, part in batch:
                job.rows += rows[position : position + len(part)]
                position += len(part)
                if len(job.rows) == len(job.items) and not job.future.done():
                    job.future.set_result(job.rows)

    def _next_batch(self) -> list[tuple[_Job, list[Any]]]:
        """The first job and those that queue behind it with its kind and priority, up to what a slice of time holds;
        of a large job a part, the rest keeps its place."""
        batch: list[tuple[_Job, list[Any]]] = []
        room = 0
        while self._jobs:
            job = self._jobs[0]
            if job.future.done():  # its caller went away, or a part of it failed
                self._leave(job)
                continue
            if not batch:
                room = self._paces[job.kind].fits(self._max_batch)
            elif room == 0 or (job.kind, job.priority) != (batch[0][0].kind, batch[0][0].priority):
                break
            part = job.items[job.taken : job.taken + room]
            job.taken += len(part)
            room -= len(part)
            self._queued[job.priority] -= len(part)
            batch.append((job, part))
            if not job.left:
                heapq.heappop(self._jobs)
            if not room:
                break
        return batch

    def _refuse_starved(self) -> None:
        """What comes first leaves no turn to what comes last, for as long as there is too much of it."""
        now = self._clock()
        waiting = (job for job in self._jobs if not job.taken and not job.patient)
        starved = [job for job in waiting if now - job.queued_at > self._max_wait[job.priority]]
        for job in starved:
            self._queued[job.priority] -= job.left
            self._fail(job, self._full(job.priority, now - job.queued_at))
        if starved:
            gone = {job.number for job in starved}
            self._jobs = [job for job in self._jobs if job.number not in gone]
            heapq.heapify(self._jobs)

    def _leave(self, job: _Job) -> None:
        heapq.heappop(self._jobs)
        self._queued[job.priority] -= job.left

    def _fail(self, job: _Job, error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)

    def _embed(self, texts: list[str]) -> list[bytes]:
        return [row.tobytes() for row in np.ascontiguousarray(self.embedder.embed(texts), dtype=np.float32)]

    def _score(self, pairs: list[tuple[str, str]]) -> list[float]:
        assert self.reranker is not None
        return [float(score) for score in self.reranker.predict(pairs)]
