"""Real shards over a store that is filled beforehand, in a local Ray of this process; vectors are synthetic.

Nobody embeds a million texts for a benchmark of loading and recall: queries and facts get vectors out of one pool, by
their text. Facts are written by the store's own code, in the tiers that a shard would have put them in; a recall does
not ask whether there is such a company.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from muniment.actors import kept_features
from muniment.actors.ids import new_id
from muniment.actors.router import Router
from muniment.actors.store import memory_store
from muniment.actors.store.engine import open_engine, writing
from muniment.actors.store.memory_store import Stored
from muniment.cluster import launcher, processes
from muniment.cluster.actor_classes import create_actors, shard_of
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings
from muniment.policies.errors import ModelUnavailable
from muniment.policies.extraction import DEFAULT
from muniment.policies.model import Fact, Source, SourceKind, Tier
from tests.bench.logs import DEFAULT_LOG, read_lines
from tests.bench.memory import progress

DIMENSION: Final = 384
MODEL: Final = "synthetic"
_POOL: Final = 4_096
_AT_ONCE: Final = 20_000
_SOURCE: Final = Source(kind=SourceKind.SYSTEM_OF_RECORD, id="bench")


class Synthetic:
    """Stands in for the model workers."""

    def __init__(self) -> None:
        pool = np.random.default_rng(7).standard_normal((_POOL, DIMENSION)).astype(np.float32)
        pool /= np.linalg.norm(pool, axis=1, keepdims=True)
        self._pool = [row.tobytes() for row in pool]

    def vector(self, text: str) -> bytes:
        """The vector of a text, always the same."""
        return self._pool[zlib.crc32(text.encode()) % _POOL]

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        """See ``ModelWorker.embed``."""
        return b"".join(map(self.vector, texts))

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See ``ModelWorker.rerank``."""
        raise ModelUnavailable("none here")

    async def describe(self) -> dict[str, Any]:
        """See ``ModelWorker.describe``."""
        return {"embedder": MODEL, "dimension": DIMENSION, "reranker": None}


def fill(settings: Settings, companies: Sequence[str], facts: int, l1: int) -> list[str]:
    """Gives each company as many facts, lines of a log; the newest ``l1`` lie in L1. Returns texts to ask about."""
    synthetic, lines = Synthetic(), read_lines(DEFAULT_LOG)
    texts = [line if i < len(lines) else f"{line} #{i}" for i, line in zip(range(facts), _again(lines), strict=False)]
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found = [kept_features.to_store(kept_features.find(_fact(text, "", moment), DEFAULT), DEFAULT) for text in texts]
    engine = open_engine(settings.store_url("memory"))
    at_once = max(1, _AT_ONCE // max(1, facts))
    with progress("filling the store", len(companies)) as advance:
        for start in range(0, len(companies), at_once):
            stored = []
            for company in companies[start : start + at_once]:
                for i, text in enumerate(texts):
                    moment += timedelta(microseconds=1)
                    tier = Tier.L1 if i >= facts - l1 else Tier.L2
                    fact = _fact(text, company, moment)
                    stored.append(Stored(fact, tier, 0, synthetic.vector(text), found[i]))
            with writing(engine).begin() as connection:
                memory_store.claim_model(connection, MODEL, DIMENSION)
                memory_store.insert_facts(connection, stored)
            advance(min(at_once, len(companies) - start))
    engine.dispose()
    return texts


def _again(lines: Sequence[str]) -> Iterator[str]:
    while True:
        yield from lines


def _fact(text: str, company: str, moment: datetime) -> Fact:
    id = new_id("f", moment)
    return Fact(id=id, company=company, text=text, source=_SOURCE, writer="bench", recorded_at=moment, importance=0.5)


@contextmanager
def filled(
    groups: Sequence[tuple[Sequence[str], int]], url: str | None = None, **memory: Any
) -> Iterator[tuple[Settings, list[str]]]:
    """A local Ray with the named Ray actors over a store, in a folder that goes: its settings, and texts to ask about.

    ``groups``: companies, and how many facts each of them has; the first ones' texts are told. ``url``: an empty store;
    without one, SQLite in the folder. ``memory``: settings.
    """
    import ray

    before = dict(os.environ)
    with TemporaryDirectory(prefix="muniment-bench-", ignore_cleanup_errors=True) as folder:
        settings = Settings(data_dir=Path(folder).resolve(), store={"url": url}, memory=memory)
        prepare_stores(settings, upgrade=False)
        texts, *_ = [fill(settings, *group, settings.memory.l1_capacity) for group in groups]
        os.environ.update(launcher.environment(settings))
        try:
            launcher.start_ray(settings)
            create_actors(settings)
            yield settings, texts
        finally:
            ray.shutdown()
            processes.sweep(settings.data_dir)
            os.environ.clear()
            os.environ.update(before)


def router_of(settings: Settings) -> Router:
    """A router in this process over the shards."""
    return Router(Synthetic(), shard_of(settings))


def shard_pids(settings: Settings) -> set[int]:
    """The processes of the shards."""
    found = set()
    for pid in processes.processes_of(settings.data_dir):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ShardActor"):
                found.add(pid)
    return found


def cpu_seconds(pid: int) -> float:
    """The processor's time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """The memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
