"""Putting a shard together in its own process, with no more imported than it needs: a restart waits for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muniment.actors.memory_shard import MemoryShard, ShardSettings
from muniment.actors.metrics import Observe, unobserved
from muniment.actors.store import memory_tables as tables
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import create_schema, open_engine
from muniment.actors.store.policy_book import PolicyBook
from muniment.cluster.settings import Settings

if TYPE_CHECKING:
    from muniment.actors.webhook import WebhookOptions


def open_shard(settings: Settings, number: int, observe: Observe = unobserved) -> MemoryShard:
    """The body of a shard, in its own process."""
    engine = open_engine(settings.store_url("memory"))
    create_schema(engine, tables.TABLES)
    memory = settings.memory
    return MemoryShard(
        engine,
        f"shard-{number}",
        PolicyBook(ControlStore(settings.store_url("control"))),
        ShardSettings(
            l1_capacity=memory.l1_capacity,
            l2_capacity=memory.l2_capacity,
            index=memory.index,
            loaded_bytes=memory.loaded_bytes,
            idle_seconds=memory.idle_seconds,
            webhooks=_webhooks(settings),
        ),
        observe=observe,
    )


def _webhooks(settings: Settings) -> WebhookOptions | None:
    """How owners are told outside, None where no secret is set."""
    webhooks = settings.webhooks
    if webhooks.secret is None:
        return None
    from muniment.actors.webhook import WebhookOptions

    return WebhookOptions(
        secret=webhooks.secret.get_secret_value().encode(),
        hosts=frozenset(host.lower() for host in webhooks.hosts),
        timeout_seconds=webhooks.timeout_seconds,
    )
