"""Putting the services together in a process that can reach the cluster: the HTTP replicas, and clients inside Ray."""

from __future__ import annotations

from muniment.actors.embedding import space_name
from muniment.actors.metrics import Observe
from muniment.actors.router import Router
from muniment.actors.store import control_tables, effect_store, memory_store
from muniment.actors.store import memory_tables as tables
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.control_tables import control_decisions, control_heads
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.engine import Schema, available, create_schema, open_engine
from muniment.actors.store.policy_book import PolicyBook
from muniment.cluster.admin_service import AdminService
from muniment.cluster.conflict_service import ConflictService
from muniment.cluster.effect_service import EffectService, StoredClassifications
from muniment.cluster.endpoints import Services
from muniment.cluster.handles import WorkerPool
from muniment.cluster.ledger_handle import Ledgers
from muniment.cluster.memory_service import MemoryService
from muniment.cluster.record_service import RecordService
from muniment.cluster.roster import Members, Roster, Shards
from muniment.cluster.scale_service import ScaleService
from muniment.cluster.scaler import Scaler
from muniment.cluster.settings import Database, Settings
from muniment.policies.errors import NotFound


def open_services(settings: Settings, observe: Observe) -> Services:
    """The services over the named actors and the stores. The process must be connected to Ray.

    ``observe``: takes the numbers of this process's router.
    """
    namespace = settings.ray.namespace
    control = ControlStore(settings.store_url("control"))
    memory = open_engine(settings.store_url("memory"))
    create_schema(memory, tables.TABLES)
    effects = open_engine(settings.store_url("effects"))
    create_schema(effects, effect_store.TABLES)
    policies = PolicyBook(control)
    roster = Roster(memory, ("shard", "worker"))
    workers = WorkerPool(Members(roster, "worker", namespace))
    shards = Shards(roster, namespace)
    router = Router(workers, shards, settings.recall.profiles(), observe)
    ledgers = Ledgers(Roster(effects, ("ledger",)), namespace)
    memory_service = MemoryService(router, shards, memory, policies)
    effect_service = EffectService(ledgers, effects, StoredClassifications(control))

    scale_service = ScaleService(Scaler(settings), control)

    return Services(
        memory=memory_service,
        conflicts=ConflictService(router, shards, memory, policies),
        records=RecordService(
            [
                (memory, DecisionLog(tables.decisions, tables.decision_heads)),
                (effects, DecisionLog(effect_store.decisions, effect_store.decision_heads)),
                (control.engine, DecisionLog(control_decisions, control_heads)),
            ],
            memory,
            policies,
            shards,
            workers,
            ledgers.health,
        ),
        effects=effect_service,
        admin=AdminService(
            control,
            [memory_service, effect_service, scale_service],
            auth_enabled=settings.auth.enabled,
            offline_seconds=settings.auth.offline_seconds,
        ),
        scale=scale_service,
    )


def check_model(settings: Settings) -> None:
    """Raises ``ConfigurationError`` where the stored vectors are from another embedding model than the settings'."""
    engine = open_engine(settings.store_url("memory"))
    try:
        with available(), engine.connect() as connection:
            memory_store.claim_model(connection, space_name(settings.workers.model))
    finally:
        engine.dispose()


def require_stores(settings: Settings) -> None:
    """Raises ``NotFound`` where the stores would be files that are not there: the folder's name is mistyped."""
    if settings.store.url is None and not (settings.data_dir / "memory.db").is_file():
        raise NotFound(f"there is no store in {settings.data_dir}")


def prepare_stores(settings: Settings, upgrade: bool) -> None:
    """Makes the tables of all stores, or brings those of an older version to this one where ``upgrade`` says so.

    Raises ``ConfigurationError`` where they cannot be used as they are, ``StoreUnavailable`` where they are away.
    """
    databases: tuple[tuple[Database, Schema], ...] = (
        ("memory", tables.TABLES),
        ("effects", effect_store.TABLES),
        ("control", control_tables.TABLES),
    )
    for database, schema in databases:
        engine = open_engine(settings.store_url(database))
        try:
            with available():
                create_schema(engine, schema, upgrade)
        finally:
            engine.dispose()
