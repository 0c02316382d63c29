"""An old Ray actor that goes on running after it was replaced writes nothing, and its callers are sent on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import sqlalchemy as sa

from muniment.actors.ledger_ops import Propose
from muniment.actors.store import memory_tables as t
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import open_engine
from muniment.actors.wire import pack, unpack
from muniment.cluster.actor_classes import ShardActor
from muniment.cluster.handles import ActorHandle
from muniment.cluster.ledger_actor import create_ledger
from muniment.cluster.ledger_handle import LedgerHandle
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings
from muniment.policies.errors import Fenced, MunimentError

ACTOR = {"id": "ana", "groups": [], "may_claim_record": True}
VECTOR = np.ones(4, np.float32).tobytes()


class Shard(ShardActor):
    """A shard that says which process it is."""

    async def pid(self) -> int:
        return os.getpid()


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, ray_cluster: Settings, tmp_path: Path) -> Iterator[Settings]:
    url = request.getfixturevalue("postgres").new_store() if request.param == "postgresql" else None
    made = Settings(data_dir=tmp_path, ray={"namespace": tmp_path.name}, store={"url": url})
    prepare_stores(made, upgrade=False)
    control = ControlStore(made.store_url("control"))
    control.create_company("acme", "operator")
    control.close()
    yield made
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == made.ray.namespace:
            ray.kill(ray.get_actor(entry["name"], namespace=entry["namespace"]))


def shard(settings: Settings, name: str | None) -> Any:
    options: dict[str, Any] = {} if name is None else {"name": name, "namespace": settings.ray.namespace}
    return ray.remote(Shard).options(num_cpus=0, max_concurrency=100, **options).remote(settings, 0)


def telling(text: str) -> dict[str, Any]:
    fact = {"text": text, "writer": "ana", "importance": 0.5, "source": {"kind": "system_of_record", "id": "crm"}}
    request = {"key": text, "hash": b"", "named": False}
    return {"company": "acme", "facts": [fact], "vectors": VECTOR, "actor": ACTOR, "model": "m", "request": request}


def call(actor: Any, verb: str, /, **arguments: Any) -> Any:
    kind, value = unpack(ray.get(actor.call.remote(pack([verb, arguments, []])), timeout=60))
    if kind == "error":
        raise MunimentError.from_wire(value)
    return value


def texts(settings: Settings) -> list[str]:
    engine = open_engine(settings.store_url("memory"))
    with engine.connect() as connection:
        found = [unpack(row.body)["text"] for row in connection.execute(sa.select(t.facts).order_by(t.facts.c.id))]
    engine.dispose()
    return found


def test_a_replaced_shard_writes_nothing_and_its_callers_are_sent_on(settings: Settings) -> None:
    old = shard(settings, None)
    call(old, "remember", **telling("first"))
    new = shard(settings, "shard-0")
    call(new, "remember", **telling("second"))
    with pytest.raises(Fenced):
        call(old, "remember", **telling("never"))
    with pytest.raises(Fenced):
        call(old, "warm", company="acme", dimension=4)
    handle = ActorHandle("shard-0", settings.ray.namespace)
    handle._actor = old
    asyncio.run(handle.call("remember", **telling("third")))
    assert texts(settings) == ["first", "second", "third"]
    ray.kill(old)


def test_a_shard_that_was_paused_wakes_up_fenced(settings: Settings) -> None:
    """As a node that hung: its process stands still, another takes over, and then it goes on with what it had."""
    old = shard(settings, None)
    call(old, "remember", **telling("first"))
    pid = ray.get(old.pid.remote(), timeout=60)
    os.kill(pid, signal.SIGSTOP)
    try:
        late = old.call.remote(pack(["remember", telling("never"), []]))
        new = shard(settings, "shard-0")
        call(new, "remember", **telling("second"))
    finally:
        os.kill(pid, signal.SIGCONT)
    kind, error = unpack(ray.get(late, timeout=60))
    assert (kind, error["code"]) == ("error", "fenced")
    assert texts(settings) == ["first", "second"]
    ray.kill(old)


def test_an_idle_shard_learns_that_it_was_replaced(settings: Settings) -> None:
    old = shard(settings, None)
    call(old, "remember", **telling("first"))
    call(shard(settings, "shard-0"), "stats")

    async def until_fenced() -> None:
        while True:
            try:
                await asyncio.to_thread(call, old, "warm", company="acme", dimension=4)
            except Fenced:
                return
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(until_fenced(), 30))
    ray.kill(old)


def test_a_replaced_ledger_decides_nothing_and_its_callers_are_sent_on(settings: Settings) -> None:
    url, namespace = settings.store_url("effects"), settings.ray.namespace
    old = create_ledger(url, 0, namespace=namespace, name="old")

    async def scenario() -> None:
        handle = LedgerHandle("ledger-0", namespace)
        handle._actor = old
        first = await handle.propose(proposal("a", "run-1"), 0)
        create_ledger(url, 0, namespace=namespace, name="ledger-0")
        while ray.get(ray.get_actor("ledger-0", namespace=namespace).health.remote())["failure"]:
            await asyncio.sleep(0.05)
        second = await handle.propose(proposal("a", "run-2"), 0)
        assert handle._actor != old
        assert (first.verdict, second.verdict) == ("allow", "pending")
        await handle.close()

    asyncio.run(scenario())


def proposal(key: str, run: str) -> Propose:
    return Propose(
        key=key.encode().ljust(41, b"\0"),
        company="acme",
        area="ops",
        agent="triage",
        tool="mail",
        run_id=run,
        step_id="s",
        actor="key:1",
        decision_id=f"d_{run}",
    )
