"""The one place that makes Ray actors of the plain classes in ``actors/`` and says with which options they run."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ray

from muniment.actors.embedding import (
    CPU_BATCH,
    GPU_BATCH,
    SentenceTransformerEmbedder,
    pick_device,
)
from muniment.actors.memory_shard import MemoryShard
from muniment.actors.metrics import Observe, unobserved
from muniment.actors.model_worker import MAX_WAIT_SECONDS, ModelWorker
from muniment.actors.store.engine import available, open_engine, writing
from muniment.actors.store.levels import Read, conflict_levels, wanted_levels
from muniment.actors.store.tenure import Role, begin, read_role
from muniment.actors.wire import pack, unpack
from muniment.cluster import telemetry
from muniment.cluster.handles import WorkerPool
from muniment.cluster.naming import actor_name
from muniment.cluster.ray_metrics import set_up
from muniment.cluster.roster import Members, Roster, Shards
from muniment.cluster.settings import Database, Settings, WorkerSettings
from muniment.cluster.shard_body import open_shard
from muniment.policies.errors import ConfigurationError, ModelUnavailable, MunimentError, NotFound, Unavailable
from muniment.policies.partitioning import Kind

if TYPE_CHECKING:
    from muniment.actors.onnx_models import Kind as ModelKind

Body = TypeVar("Body")
log = logging.getLogger(__name__)
#: The setting that says: no reranker.
NO_MODEL = "none"
#: Over the nodes, as evenly as they allow; the death of one then takes few Ray actors with it.
SPREAD = "SPREAD"


class _Actor(Generic[Body]):
    """Answers ``[verb, arguments, the callers' spans]`` with ``["ok", value]`` or ``["error", description]``.

    The body is opened in the background, because an exception from ``__init__`` would kill a restarting actor for
    good; calls wait for it, and where it cannot be opened they get the reason and the next call tries again. The verb
    ``ready`` does nothing else.
    """

    verbs: frozenset[str]
    part: str

    def __init__(self, settings: Settings, number: int) -> None:
        self._settings = settings
        self._number = number
        self._opening: asyncio.Future[Body] | None = None

    def open(self, observe: Observe) -> Body:
        """Makes the body; runs in a thread of its own and may block."""
        raise NotImplementedError

    def levels(self, body: Body) -> list[Read]:
        """What reads the gauges of the body."""
        return []

    def _configured(self) -> Body:
        meter = set_up(self._settings, f"{self.part}-{self._number}")
        body = self.open(meter)
        meter.watch(*self.levels(body))
        return body

    async def _body(self) -> Body:
        if self._opening is None:
            self._opening = asyncio.ensure_future(asyncio.to_thread(self._configured))
        opening = self._opening
        try:
            return opening.result() if opening.done() else await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None
            raise

    async def call(self, request: bytes) -> bytes:
        """See the class."""
        return await self._answer(*unpack(request))

    async def _answer(self, verb: str, arguments: dict[str, Any], carriers: list[telemetry.Carrier]) -> bytes:
        try:
            if verb == "ready":
                await self._body()
                return pack(["ok", None])
            if verb not in self.verbs:
                raise NotFound(f"{type(self).__name__} has no verb {verb!r}")
            with telemetry.span(f"{self.part}.{verb}", carriers), available():
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
    _preloading: asyncio.Task[None] | None = None

    def open(self, observe: Observe) -> MemoryShard:
        shard: MemoryShard = open_shard(self._settings, self._number, observe)
        return shard

    async def call_together(self, requests: bytes) -> bytes:
        """Answers recalls that travel together, each as ``call`` would; None for those that would hold the others up,
        and come alone then."""
        opening = self._opening
        asked = [unpack(request) for request in unpack(requests)]
        if opening is None or not opening.done() or opening.exception() is not None:
            return pack([None] * len(asked))
        at_once = [opening.result().answers_at_once(**arguments) for _, arguments, _ in asked]
        working = (self._answer(*one) for one, soon in zip(asked, at_once, strict=True) if soon)
        answers = iter(await asyncio.gather(*working))
        return pack([next(answers) if soon else None for soon in at_once])

    async def _body(self) -> MemoryShard:
        body = await super()._body()
        if self._preloading is None and self._settings.memory.preload:
            self._preloading = asyncio.create_task(body.load_largest())
        return body

    def levels(self, body: MemoryShard) -> list[Read]:
        engine = open_engine(self._settings.store_url("memory"))
        # What is open is the same whoever reads it: one shard tells of it.
        store = [conflict_levels(engine)] if self._number == 0 else []
        return [body.levels, wanted_levels(engine, "shard"), *store]


class WorkerActor(_Actor[ModelWorker]):
    """A ``ModelWorker`` with the models that the settings name; without a reranker where it cannot be loaded."""

    verbs = frozenset({"embed", "rerank", "describe", "load"})
    part = "worker"

    def open(self, observe: Observe) -> ModelWorker:
        return open_worker(self._settings.workers, observe, self._settings.limits.wait_seconds)

    def levels(self, body: ModelWorker) -> list[Read]:
        return [body.levels]


_CLASSES: dict[Kind, type] = {"shard": ShardActor, "worker": WorkerActor}


def open_worker(
    workers: WorkerSettings, observe: Observe = unobserved, wait_seconds: float = MAX_WAIT_SECONDS
) -> ModelWorker:
    """The body of a model worker with the models that the settings name; takes seconds, a first export some more.

    Without a reranker where it cannot be loaded, which the log says, and every answer. Raises ``ModelUnavailable``.
    """
    from muniment.actors.onnx_models import builds

    wanted: list[tuple[ModelKind, str]] = [("embedder", workers.model)]
    if workers.reranker != NO_MODEL:
        wanted.append(("reranker", workers.reranker))
    exported = workers.exported()
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
    return ModelWorker(
        embedder,
        reranker,
        reranker_name=workers.reranker,
        runtime=runtime,
        max_batch=batch,
        max_wait_seconds=wait_seconds,
        observe=observe,
    )


def _load(workers: WorkerSettings, kind: ModelKind, spec: str, exported: bool) -> tuple[Any, str]:
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
    """The way to the model workers."""
    roster = Roster(open_engine(settings.store_url("memory")), ("worker",))
    return WorkerPool(Members(roster, "worker", settings.ray.namespace))


def shard_of(settings: Settings) -> Shards:
    """The way from a company to its shard's verbs."""
    return Shards(Roster(open_engine(settings.store_url("memory")), ("shard",)), settings.ray.namespace)


def create_actor(settings: Settings, kind: Kind, number: int) -> None:
    """Makes a named actor where it is not there yet. It restarts until it is stopped."""
    name, namespace = actor_name(kind, number), settings.ray.namespace
    if kind == "ledger":
        from muniment.cluster.ledger_actor import create_ledger  # a shard's process makes none

        create_ledger(
            settings.store_url("effects"),
            number,
            namespace=namespace,
            name=name,
            resources=settings.ray.placement(),
            scheduling_strategy=SPREAD,
            settings=settings,
        )
        return
    ray.remote(_CLASSES[kind]).options(
        name=name,
        namespace=namespace,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        # What its process's death interrupts, and what comes before the next one is there, waits in Ray's queue: a call
        # that fails is told so only up to a second later. Of workers another one may answer at once.
        max_task_retries=1 if kind == "shard" else 0,
        max_concurrency=10_000,
        scheduling_strategy=SPREAD,
        num_cpus=0,
        num_gpus=settings.workers.gpus_per_worker if kind == "worker" else 0,
        resources=settings.ray.placement(),
    ).remote(settings, number)


def create_actors(settings: Settings) -> list[str]:
    """Makes the named actors that there are to be and that are not there; returns the names of all.

    How many there are to be, the settings say the first time and the store from then on. Raises ``ConfigurationError``
    where the store cannot be shared by so many.
    """
    sizes: dict[Database, dict[Kind, int]] = {
        "memory": {
            "worker": settings.workers.count,
            "shard": settings.memory.shards,
        },
        "effects": {"ledger": settings.effects.ledgers},
    }
    engines = {database: open_engine(settings.store_url(database)) for database in sizes}
    needed: list[Role] = []
    try:
        with available(), ExitStack() as stack:  # both are refused together, and then nothing is stored
            for database, kinds in sizes.items():
                connection = stack.enter_context(writing(engines[database]).begin())
                for kind, members in kinds.items():
                    begin(connection, kind, members)
                roles = [read_role(connection, kind) for kind in kinds]
                shared = connection.dialect.name != "sqlite"
                for role in roles:
                    if role.divided and not shared and role.needed != {0}:
                        raise ConfigurationError(f"SQLite allows one {role.kind}; store.url (PostgreSQL) allows more")
                needed += roles
    finally:
        for engine in engines.values():
            engine.dispose()
    made: list[str] = []
    for role in needed:
        for number in sorted(role.needed):
            create_actor(settings, role.kind, number)
            made.append(actor_name(role.kind, number))
    return made
