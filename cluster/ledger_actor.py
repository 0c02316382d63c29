"""The ledger as a Ray actor: polls have a concurrency group, and so a thread and an event loop, of their own, so that
parked ones never keep an operation out. Operations are in Ray's default group, whose event loop is the ledger's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_loop import LedgerLoop
from muniment.actors.ledger_ops import Result, pack_results, unpack_ops
from muniment.actors.metrics import unobserved
from muniment.actors.store.engine import open_engine
from muniment.actors.store.levels import reservation_levels, wanted_levels
from muniment.actors.wire import pack
from muniment.cluster import telemetry
from muniment.cluster.naming import actor_name
from muniment.cluster.ray_metrics import RayMeter, set_up
from muniment.cluster.settings import Settings
from muniment.policies.errors import MunimentError

#: A poll is answered after this long at the latest, with nothing if there is nothing.
POLL_SECONDS = 20.0
_OPERATIONS_AT_ONCE = 1_000
_GROUPS = {"polls": 10_000, "health": 8}


class LedgerActor:
    """A ledger that answers calls of client processes. Every answer comes after the commit that it tells of."""

    def __init__(self, url: str, number: int, settings: Settings | None = None) -> None:
        """``settings``: where to tell of itself; None: nowhere."""
        role = actor_name("ledger", number)
        observe = unobserved if settings is None else set_up(settings, role)
        self._loop = LedgerLoop(lambda: self._open(url, role), observe=observe)
        if isinstance(observe, RayMeter):
            engine = open_engine(url)
            # What runs hold is the same whoever reads it: one ledger tells of it.
            store = [reservation_levels(engine)] if number == 0 else []
            observe.watch(self._loop.levels, wanted_levels(engine, "ledger"), *store)

    def _open(self, url: str, role: str) -> DedupeLedger:
        return DedupeLedger(open_engine(url), role)

    async def operate(self, client: str, data: bytes) -> bytes:
        """A batch of packed operations; answers their packed results, or the one error of all."""
        ops, carriers = unpack_ops(data)
        started = time.time_ns()
        results: list[Result] | MunimentError
        try:
            results = await self._loop.operate(client, ops)
        except MunimentError as error:
            results = error
        for place, carrier in enumerate(carriers):
            if carrier is not None:
                outcome = results if isinstance(results, MunimentError) else results[place]
                telemetry.record(f"ledger.{type(ops[place]).__name__.lower()}", carrier, started, outcome)
        return pack_results(results, self._loop.epoch)

    @ray.method(concurrency_group="polls")
    async def poll(self, client: str) -> bytes:
        """Waits until keys that ``client`` waits for stop being held: ``[epoch, keys]``, perhaps none; or an error."""
        polling = asyncio.run_coroutine_threadsafe(self._loop.poll(client, POLL_SECONDS), self._loop.event_loop)
        try:
            keys = await asyncio.wrap_future(polling)
        except MunimentError as error:
            return pack([self._loop.epoch, error.to_wire()])
        return pack([self._loop.epoch, keys])

    @ray.method(concurrency_group="health")
    async def health(self) -> dict[str, Any]:
        """``epoch``, ``failure`` (None while serving), ``parked`` polls, ``groups`` and ``operations`` done."""
        failure = self._loop.failure
        return {
            "epoch": self._loop.epoch,
            "failure": failure.to_wire() if failure else None,
            "parked": self._loop.parked,
            "groups": self._loop.groups,
            "operations": self._loop.operations,
        }


def create_ledger(
    url: str,
    number: int,
    *,
    namespace: str,
    name: str,
    num_cpus: float = 0,
    resources: dict[str, float] | None = None,
    scheduling_strategy: Any = None,
    actor_class: type = LedgerActor,
    settings: Settings | None = None,
) -> Any:
    """The handle of the named ledger, made where there is none. It restarts for ever; no call is sent twice by Ray.

    ``url``: the effects' store. ``settings``: where it tells of itself. The caller waits for ``health`` where it needs
    the ledger to be serving.
    """
    ray_remote: Any = ray.remote
    remote = ray_remote(concurrency_groups=_GROUPS)(actor_class)
    return remote.options(
        name=name,
        namespace=namespace,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=num_cpus,
        resources=resources,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=_OPERATIONS_AT_ONCE,
        scheduling_strategy=scheduling_strategy,
    ).remote(url, number, settings)
