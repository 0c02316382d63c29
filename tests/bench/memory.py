"""The memory under a benchmark: a small interface, met by the real actors' bodies in one process.

What is left out is Ray's transport (about a millisecond a call) and HTTP; everything that decides an answer is here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from muniment.actors.cross_encoder import BUNDLED
from muniment.actors.embedding import Embedder, Vectors
from muniment.actors.memory_shard import MemoryShard, ShardSettings
from muniment.actors.model_worker import ModelWorker
from muniment.actors.router import Router
from muniment.actors.store import memory_store, memory_tables
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import create_schema, open_engine, sqlite_url
from muniment.actors.store.policy_book import PolicyBook
from muniment.cluster.actor_classes import open_worker
from muniment.cluster.settings import Runtime, WorkerSettings
from muniment.policies.retention import RetentionMode, RetentionSettings
from muniment.policies.routing import PROFILES, Fusion, Gate, RecallProfile
from tests.bench.report import stderr

COMPANY: Final = "bench"
MODES: Final = ("full", "oracle", "no_ce", "no_gate", "lru")
"""The paper's ablations: everything; nothing ever forgotten; no cross-encoder; L1 only; forgetting by last use alone
(and without the cross-encoder, as in the paper)."""
NO_RERANKER: Final = "none"
_BATCH: Final = 200
_WRITER: Final = {"id": "bench", "groups": [], "may_claim_record": True}


@dataclass(frozen=True, slots=True)
class BenchFact:
    """A fact to remember. ``effective_at``: aware."""

    text: str
    importance: float = 0.5
    effective_at: datetime | None = None


class BenchMemory(Protocol):
    """What a benchmark needs of a memory."""

    async def remember(self, facts: Sequence[BenchFact]) -> list[str]:
        """Stores facts and returns their ids, in order."""
        ...

    async def recall(self, query: str, top_k: int) -> list[str]:
        """The ids of the best facts, best first."""
        ...


class PreparedEmbedder:
    """A bi-encoder that embeds a benchmark's facts once for all runs. Queries are embedded each time they are asked."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, np.ndarray] = {}
        self.name = embedder.name
        self.dimension = embedder.dimension

    def prepare(self, texts: Iterable[str]) -> None:
        """Embeds ``texts``, with a progress bar; those prepared for an earlier set are dropped."""
        wanted = dict.fromkeys(texts)
        self._known = {text: row for text, row in self._known.items() if text in wanted}
        missing = [text for text in wanted if text not in self._known]
        with progress("embedding", len(missing)) as advance:
            for start in range(0, len(missing), _BATCH):
                part = missing[start : start + _BATCH]
                self._known.update(zip(part, self._embedder.embed(part), strict=True))
                advance(len(part))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See ``muniment.actors.embedding.Embedder``."""
        if all(text in self._known for text in texts):
            return np.stack([self._known[text] for text in texts])
        return self._embedder.embed(texts)


@dataclass(frozen=True, slots=True)
class Models:
    """The models that all runs of a benchmark share. ``reranker`` is None where none is wanted."""

    embedder: PreparedEmbedder
    reranker: Any | None
    reranker_name: str


def load_models(reranker: str = BUNDLED, runtime: Runtime = "auto") -> Models:
    """The models as the workers run them, on one thread. ``reranker``: ``none`` for none."""
    workers = WorkerSettings(reranker=reranker, runtime=runtime, threads=1)
    worker = open_worker(workers)
    return Models(PreparedEmbedder(worker.embedder), worker.reranker, reranker)


class ActorMemory:
    """``BenchMemory`` over the bodies of a memory shard, a router and a model worker, with an SQLite store."""

    def __init__(self, router: Router, shard: MemoryShard, engine: Any, profile: str) -> None:
        self._router = router
        self._shard = shard
        self._engine = engine
        self._profile = profile

    @classmethod
    @asynccontextmanager
    async def open(cls, models: Models, profile: RecallProfile, settings: ShardSettings) -> AsyncIterator[ActorMemory]:
        """An empty memory in a folder that goes when it closes."""
        with TemporaryDirectory(prefix="muniment-bench-") as folder:
            engine = open_engine(sqlite_url(Path(folder) / "memory.db"))
            create_schema(engine, memory_tables.TABLES)
            control = ControlStore(sqlite_url(Path(folder) / "control.db"))
            control.create_company(COMPANY, "bench")
            shard = MemoryShard(engine, "shard-0", PolicyBook(control), settings)
            worker = ModelWorker(models.embedder, models.reranker, reranker_name=models.reranker_name)
            router = Router(worker, lambda _: shard, profiles={"bench": profile})
            try:
                yield cls(router, shard, engine, "bench")
            finally:
                shard.close()
                engine.dispose()
                control.close()

    async def remember(self, facts: Sequence[BenchFact]) -> list[str]:
        """See ``BenchMemory``."""
        ids: list[str] = []
        for start in range(0, len(facts), _BATCH):
            batch = [_record(fact) for fact in facts[start : start + _BATCH]]
            answer = await self._router.remember(COMPANY, batch, actor=_WRITER)
            ids += [result["id"] for result in answer["results"]]
        return ids

    async def recall(self, query: str, top_k: int) -> list[str]:
        """See ``BenchMemory``."""
        answer = await self._router.recall(COMPANY, query, top_k, self._profile, None, {})
        return [result["fact"]["id"] for result in answer["results"]]

    def stored(self) -> dict[str, int]:
        """How many facts each tier holds."""
        tiers = list(self._tiers().values())
        return {name: tiers.count(name) for name in ("L1", "L2")}

    def kept(self) -> set[str]:
        """The ids of the facts that are in a tier."""
        return set(self._tiers())

    def _tiers(self) -> dict[str, str]:
        with self._engine.connect() as connection:
            stored = memory_store.indexed_facts(connection, COMPANY)
            return {one.fact.id: one.tier.value for one in stored if one.tier is not None}


def _record(fact: BenchFact) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": fact.text,
        "source": {"kind": "system_of_record", "id": "bench"},
        "writer": "bench",
        "importance": fact.importance,
    }
    if fact.effective_at is not None:
        record["effective_at"] = fact.effective_at
    return record


def profile_for(mode: str, profile: str) -> RecallProfile:
    """The recall profile ``profile`` as ``mode`` changes it."""
    base = PROFILES[profile]
    changes: dict[str, dict[str, Any]] = {
        "full": {},
        "oracle": {"gate": Gate.DISABLED, "l1_k": base.l2_k},
        "no_ce": {"rerank": False},
        "no_gate": {"gate": Gate.DISABLED},
        "lru": {"rerank": False},
    }
    return base.model_copy(update=changes[mode])


def shard_settings(mode: str, profile: str, l1: int, l2: int, facts: int) -> ShardSettings:
    """Capacities and retention of ``mode``; the oracle's L1 holds everything."""
    retention = RetentionMode.PAPER if PROFILES[profile].fusion is Fusion.PAPER else RetentionMode.IMPORTANCE
    if mode == "lru":
        retention = RetentionMode.LRU
    return ShardSettings(
        l1_capacity=max(l1, facts) if mode == "oracle" else l1,
        l2_capacity=l2,
        retention=RetentionSettings(mode=retention),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What one query brought: the ids answered and the time it took."""

    ids: list[str]
    milliseconds: float


async def ask(memory: BenchMemory, queries: Sequence[str], top_k: int, what: str) -> list[Asked]:
    """Asks one query after the other, as a single caller would."""
    answers = []
    with progress(what, len(queries)) as advance:
        for query in queries:
            started = time.perf_counter()
            ids = await memory.recall(query, top_k)
            answers.append(Asked(ids, (time.perf_counter() - started) * 1000))
            advance(1)
    return answers


def reciprocal_rank(ids: Sequence[str], wanted: set[str]) -> float:
    """1 / the rank of the first wanted id, 0 where there is none."""
    return next((1 / rank for rank, id in enumerate(ids, 1) if id in wanted), 0.0)


def median_ms(asked: Iterable[Asked]) -> float:
    """The median time of a recall."""
    return round(float(np.median([one.milliseconds for one in asked])), 3)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields the function that advances it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def run(main: Callable[[], Any]) -> Any:
    """Runs the benchmark's coroutine."""
    return asyncio.run(main())
