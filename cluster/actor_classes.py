"""The one place that makes Ray actors of the plain classes in ``actors/`` and says with which options they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ray

from muniment.actors.embedding import (
    CPU_BATCH,
    GPU_BATCH,
    SentenceTransformerEmbedder,
    gpu_possible,
    pick_device,
)
from muniment.actors.memory_shard import MemoryShard
from muniment.actors.model_worker import ModelWorker
from muniment.actors.router import Router
from muniment.actors.store.engine import available
from muniment.actors.wire import pack, unpack
from muniment.cluster import telemetry
from muniment.cluster.handles import ActorHandle, Remote, WorkerPool
from muniment.cluster.ledger_actor import create_ledger
from muniment.cluster.naming import actor_name, actor_names
from muniment.cluster.settings import Settings, WorkerSettings
from muniment.policies.errors import ModelUnavailable, MunimentError, NotFound, Unavailable
from muniment.policies.partitioning import assign, partition_of

if TYPE_CHECKING:
    from muniment.actors.onnx_models import Kind

Body = TypeVar("Body")
log = logging.getLogger(__name__)
#: The setting that says: no reranker.
NO_MODEL = "none"
#: Over the nodes, as evenly as they allow; the death of one then takes few Ray actors with it.
SPREAD = "SPREAD"


class _Actor(Generic[Body]):
    """Answers ``[verb, arguments, carrier of the caller's span]`` with ``["ok", value]`` or ``["error", description]``.

    The body is opened in the background, because an exception from ``__init__`` would kill a restarting actor for
    good; calls wait for it, and where it cannot be opened they get the reason and the next call tries again.
    """

    verbs: frozenset[str]
    part: str

    def __init__(self, settings: Settings, number: int) -> None:
        self._settings = settings
        self._number = number
        self._opening: asyncio.Future[Body] | None = None

    def open(self) -> Body:
        """Makes the body; runs in a thread of its own and may block."""
        raise NotImplementedError

    def _configured(self) -> Body:
        telemetry.configure(self._settings.telemetry, f"{self.part}-{self._number}")
        return self.open()

    async def _body(self) -> Body:
        if self._opening is None:
            self._opening = asyncio.ensure_future(asyncio.to_thread(self._configured))
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None
            raise

    async def call(self, request: bytes) -> bytes:
        """See the class."""
        verb, arguments, carrier = unpack(request)
        try:
            if verb not in self.verbs:
                raise NotFound(f"{type(self).__name__} has no verb {verb!r}")
            with telemetry.span(f"{self.part}.{verb}", carrier), available():
                return pack(["ok", await getattr(await self._body(), verb)(**arguments)])
        except MunimentError as error:
            return pack(["error", error.to_wire()])
        except Exception:
            log.exception("%s: %s failed", type(self).__name__, verb)
            return pack(["error", Unavailable(f"{verb} failed inside; see the log").to_wire()])


class ShardActor(_Actor[MemoryShard]):
    """A ``MemoryShard`` over the memory store."""

    verbs = MemoryShard.VERBS
    part = "shard"

    def open(self) -> MemoryShard:
        from muniment.cluster.services import open_shard

        shard: MemoryShard = open_shard(self._settings, self._number)
        return shard


class RouterActor(_Actor[Router]):
    """A ``Router`` over this cluster's workers and shards."""

    verbs = Router.VERBS
    part = "router"

    def open(self) -> Router:
        return make_router(self._settings)


class WorkerActor(_Actor[ModelWorker]):
    """A ``ModelWorker`` with the models that the settings name; without a reranker where it cannot be loaded."""

    verbs = frozenset({"embed", "rerank", "describe"})
    part = "worker"

    def open(self) -> ModelWorker:
        return open_worker(self._settings.workers)


def open_worker(workers: WorkerSettings) -> ModelWorker:
    """The body of a model worker with the models that the settings name; takes seconds, a first export some more.

    Without a reranker where it cannot be loaded, which the log says, and every answer. Raises ``ModelUnavailable``.
    """
    from muniment.actors.onnx_models import builds

    on_cpu = workers.device == "cpu" or (workers.device == "auto" and not gpu_possible())
    wanted: list[tuple[Kind, str]] = [("embedder", workers.model)]
    if workers.reranker != NO_MODEL:
        wanted.append(("reranker", workers.reranker))
    exported = workers.runtime == "onnx" or (workers.runtime == "auto" and on_cpu)
    if exported:
        with suppress(ModelUnavailable):  # together at the price of one; what fails is tried, and told, by itself
            builds(wanted, workers.cache_dir)
    embedder, runtime = _load(workers, "embedder", workers.model, exported)
    reranker = None
    try:
        reranker = _load(workers, "reranker", workers.reranker, exported)[0] if len(wanted) > 1 else None
    except ModelUnavailable:
        log.exception("the reranker %r cannot be loaded; answers are marked degraded", workers.reranker)
    batch = GPU_BATCH if runtime.startswith("torch cuda") else CPU_BATCH
    return ModelWorker(embedder, reranker, reranker_name=workers.reranker, runtime=runtime, max_batch=batch)


def _load(workers: WorkerSettings, kind: Kind, spec: str, exported: bool) -> tuple[Any, str]:
    """The model and what runs it. Under ``auto``, torch runs what cannot be exported, and the log says why."""
    from muniment.actors.cross_encoder import load_cross_encoder
    from muniment.actors.onnx_models import OnnxEmbedder, OnnxReranker, build

    if exported:
        try:
            opened = OnnxEmbedder if kind == "embedder" else OnnxReranker
            return opened(build(kind, spec, workers.cache_dir), workers.threads), "onnx int8"
        except ModelUnavailable as error:
            if workers.runtime == "onnx":
                raise
            log.warning("torch runs the %s: %s", kind, error.detail)
    device = pick_device(workers.device, workers.threads)
    loaded = SentenceTransformerEmbedder(spec, device) if kind == "embedder" else load_cross_encoder(spec, device)
    return loaded, f"torch {device}"


def worker_pool(settings: Settings) -> WorkerPool:
    """Handles to all model workers."""
    names = actor_names("worker", settings.workers.count)
    return WorkerPool([ActorHandle(name, settings.ray.namespace) for name in names])


def shard_handles(settings: Settings) -> list[Any]:
    """The verbs of all shards, by number."""
    names = actor_names("shard", settings.memory.shards)
    return [Remote(ActorHandle(name, settings.ray.namespace)) for name in names]


def shard_of(settings: Settings) -> Callable[[str], Any]:
    """A function from a company to its shard's verbs."""
    shards = shard_handles(settings)
    assignment = assign(len(shards))
    return lambda company: shards[assignment[partition_of(company)]]


def make_router(settings: Settings) -> Router:
    """A router over the named actors; also usable in a process that is no actor."""
    return Router(worker_pool(settings), shard_of(settings))


def create_actors(settings: Settings) -> list[str]:
    """Makes the named actors that are not there yet; returns the names of all. They restart until they are stopped."""
    made: list[str] = []

    def make(kind: type, role: Any, count: int, **options: Any) -> None:
        for number in range(count):
            name = actor_name(role, number)
            ray.remote(kind).options(
                name=name,
                namespace=settings.ray.namespace,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=10_000,
                scheduling_strategy=SPREAD,
                **options,
            ).remote(settings, number)
            made.append(name)

    make(WorkerActor, "worker", settings.workers.count, num_cpus=0, num_gpus=settings.workers.gpus_per_worker)
    make(ShardActor, "shard", settings.memory.shards, num_cpus=0)
    make(RouterActor, "router", settings.routers.count, num_cpus=0)
    for number in range(settings.effects.ledgers):
        name = actor_name("ledger", number)
        url, namespace = settings.store_url("effects"), settings.ray.namespace
        create_ledger(url, number, namespace=namespace, name=name, scheduling_strategy=SPREAD)
        made.append(name)
    return made
