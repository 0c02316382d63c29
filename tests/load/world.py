"""A service under load: started for it on one node or on several, with tenants that have something to recall."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muniment.cluster import launcher, processes
from muniment.cluster.settings import load
from tests.bench.logs import DEFAULT_LOG, read_lines
from tests.bench.service import Service, service
from tests.load import workload
from tests.load.checks import Acknowledged
from tests.load.open_loop import Driven, drive
from tests.load.player import REQUESTS, Player
from tests.load.recorder import Recorder
from tests.load.targets import OverHttp, Target, ThroughHandles, make_tenants
from tests.load.watch import Watch
from tests.stores import postgres_server

#: Small tiers, so that they are full early and memory has no reason to grow after that.
SMALL_TIERS = {"MUNIMENT_MEMORY__L1_CAPACITY": "50", "MUNIMENT_MEMORY__L2_CAPACITY": "200"}
FULL_TIERS = 300
#: Facts of one request before the load: more would keep the next tenant's waiting until they are refused.
_TOLD_AT_ONCE = 100
_SPREAD = {
    "MUNIMENT_MEMORY__SHARDS": "4",
    "MUNIMENT_EFFECTS__LEDGERS": "2",
    "MUNIMENT_WORKERS__COUNT": "2",
}


class NoPostgres(Exception):
    """Several nodes need a store that all of them reach, and PostgreSQL is not installed here."""


@contextmanager
def one_node() -> Iterator[Service]:
    """A service with a local Ray and SQLite."""
    with service(SMALL_TIERS) as running:
        yield running


@contextmanager
def several_nodes(count: int) -> Iterator[Service]:
    """A service in a Ray cluster of ``count`` nodes on this machine, over PostgreSQL. Raises ``NoPostgres``."""
    from ray.cluster_utils import Cluster

    with postgres_server(durable=True) as store, TemporaryDirectory(prefix="mn-", ignore_cleanup_errors=True) as folder:
        if store is None:
            raise NoPostgres("PostgreSQL is not installed here, or there is nobody who may run it")
        settings = load(data_dir=Path(folder).resolve() / "service")
        # The cluster is not the service's own: what starts or stops on the service's folder must leave it alone.
        cluster_dir = settings.data_dir.parent / "cluster"
        os.environ.update({**launcher.environment(settings), **processes.marks(cluster_dir)})
        launcher._import_ray()
        bounds = {"num_cpus": 2, "object_store_memory": 100 * 1024**2}
        cluster = Cluster(initialize_head=True, head_node_args=bounds)
        try:
            for _ in range(count - 1):
                cluster.add_node(**bounds)
            variables = {
                **SMALL_TIERS,
                **_SPREAD,
                "MUNIMENT_RAY__ADDRESS": cluster.address,
                "MUNIMENT_STORE__URL": store.url(),
            }
            with service(variables, settings.data_dir) as running:
                yield replace(running, process_dirs=(running.data_dir, cluster_dir))
        finally:
            cluster.shutdown()
            processes.sweep(cluster_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What load is put on, whatever the mode."""

    via: str = "http"
    nodes: int = 1
    tenants: int = 20
    exponent: float = 1.0
    mix: Mapping[str, float] = field(default_factory=lambda: workload.MIX)
    deadline_seconds: float = 10.0
    checked: float = 0.05
    seed: int = 42
    prefill: int = 100


@dataclass(slots=True)
class Phase:
    """One run of arrivals and what came of it."""

    recorder: Recorder
    driven: Driven
    watch: Watch
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Rates, counts and percentiles."""
        counts = self.recorder.counts()
        due = sum(counts.values())
        everything = self.recorder.rows()[-1]
        return {
            "offered_per_s": due / self.seconds,
            "answered_per_s": counts["ok"] / self.seconds,
            **counts,
            **{name: everything[name] for name in ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")},
            "degraded": dict(self.recorder.degraded),
            "errors": dict(self.recorder.errors.most_common(10)),
            "generator_late_ms": self.driven.latest_ms,
            "most_outstanding": self.driven.most_outstanding,
            "memory_mb": max(self.watch.totals()[1], default=0.0),
        }


class World:
    """A service, its tenants, and everything that it acknowledged."""

    def __init__(self, running: Service, target: Target, options: Options) -> None:
        self.running, self.target, self.options = running, target, options
        self.acknowledged = Acknowledged()
        self.lines = read_lines(DEFAULT_LOG)
        self._tasks = workload.tasks(options.seed, options.tenants, options.exponent, options.mix)
        self._phases = 0

    async def prefill(self) -> None:
        """Tells every tenant some lines of a log, so that there is something to recall."""
        room = asyncio.Semaphore(2)

        async def tell(tenant: int) -> None:
            facts = [workload.loose_fact(self.lines, n) for n in range(self.options.prefill)]
            async with room:
                for start in range(0, len(facts), _TOLD_AT_ONCE):
                    await self.target.send(tenant, REQUESTS.remember(facts[start : start + _TOLD_AT_ONCE]), 300)

        await asyncio.gather(*(tell(tenant) for tenant in range(self.options.tenants)))

    async def phase(self, arrivals: Iterable[float], seconds: float, kill_every: float | None = None) -> Phase:
        """Puts the arrivals on the service, and waits for what they started. Kills happen in the first half."""
        self._phases += 1
        start = time.perf_counter()
        recorder, watch = Recorder(), Watch(self.running.process_dirs, start, time.perf_counter)
        player = Player(
            self.target,
            recorder,
            self.acknowledged,
            self.lines,
            name=f"{self.options.seed}-{self._phases}",
            start=start,
            clock=time.perf_counter,
            deadline_seconds=self.options.deadline_seconds,
            checked=self.options.checked,
            seed=self.options.seed + self._phases,
        )
        beside = [asyncio.create_task(watch.sample_every(2.0))]
        if kill_every is not None:
            beside.append(asyncio.create_task(watch.kill_every(kill_every, seconds / 2)))
        try:
            driven = await drive(zip(arrivals, self._tasks, strict=False), player.play)
        finally:
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        return Phase(recorder, driven, watch, seconds)

    async def check(self) -> dict[str, Any]:
        """Whether what was acknowledged is there, all of it or a sample."""
        import random

        async def send(tenant: int, request: Any) -> Any:
            return await self.target.send(tenant, request, 60)

        return await self.acknowledged.check_all(random.Random(self.options.seed), send, self.options.tenants)


@asynccontextmanager
async def world(running: Service, options: Options) -> AsyncIterator[World]:
    """The service with tenants, warm."""
    tenants = await make_tenants(running.url, running.operator_key, options.tenants)
    target: Target = (
        OverHttp(running.url, tenants.keys) if options.via == "http" else ThroughHandles(running.data_dir, tenants.keys)
    )
    try:
        made = World(running, target, options)
        await made.prefill()
        await made.phase(islice((n * 0.1 for n in range(100)), 50), 5.0)
        made.acknowledged.wrong.clear()
        yield made
    finally:
        await target.close()
