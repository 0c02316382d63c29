"""A Ray of several nodes on this machine, one of which dies: run by ``test_nodes``, in a process of its own.

``python -m tests.cluster.node_death DATA_DIR STORE_URL`` prints what happened as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray._private.state import actors
from ray.cluster_utils import Cluster

from muniment.actors.ledger_ops import Confirm, Propose, Token
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import open_engine
from muniment.cluster.actor_classes import create_actors, shard_of
from muniment.cluster.ledger_handle import Ledgers
from muniment.cluster.roster import Roster
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings
from muniment.policies.fingerprint import effect_key, parse_key_paths

VECTOR = np.ones(4, np.float32).tobytes()
COMPANIES = [f"company-{n}" for n in range(12)]
PATHS = parse_key_paths(["/n"])


def places(settings: Settings) -> dict[str, str]:
    """The node of each named shard and ledger that lives."""
    return {
        entry["Name"]: entry["Address"]["NodeID"]
        for entry in actors().values()
        if entry["State"] == "ALIVE" and entry["Name"].startswith(("shard-", "ledger-"))
    }


async def tell(settings: Settings, company: str, text: str) -> str:
    fact = {"text": text, "writer": "ana", "importance": 0.5, "source": {"kind": "system_of_record", "id": "crm"}}
    answer = await shard_of(settings)(company).remember(
        company=company,
        facts=[fact],
        vectors=VECTOR,
        actor={"id": "ana", "groups": [], "may_claim_record": True},
        model="m",
        request={"key": text, "hash": b"", "named": False},
    )
    return str(answer["results"][0]["id"])


async def sizes(settings: Settings) -> int:
    found = [await shard_of(settings)(company).warm(company=company, dimension=4) for company in COMPANIES]
    return sum(sum(size.values()) for size in found)


def proposal(number: int, run: str) -> Propose:
    key = effect_key(company="c", area="a", agent="b", tool="mail", paths=PATHS, arguments={"n": number})
    return Propose(key, "c", "a", "b", "mail", run, "s", "key:1", f"d_{run}_{number}")


async def act(settings: Settings, run: str) -> list[Any]:
    roster = Roster(open_engine(settings.store_url("effects")), ("ledger",))
    ledgers = Ledgers(roster, settings.ray.namespace, deadline_seconds=120)
    found = []
    for number in range(8):
        op = proposal(number, run)
        answer = await ledgers.propose(op, 0)
        if answer.token is not None:
            await ledgers.settle(Confirm("c", *Token.parse(answer.token), "key:1"))
        found.append([answer.verdict, answer.origin_run])
    await ledgers.close()
    return found


async def scenario(settings: Settings, cluster: Cluster, nodes: list[Any]) -> dict[str, Any]:
    for company in COMPANIES:
        await tell(settings, company, f"first of {company}")
    first = await act(settings, "first")
    before = places(settings)
    victim = next(node for node in nodes if node.node_id in before.values())
    moved = sorted(name for name, node in before.items() if node == victim.node_id)
    killed_at = time.monotonic()
    cluster.remove_node(victim, allow_graceful=False)
    await asyncio.gather(*(tell(settings, company, f"second of {company}") for company in COMPANIES))
    seconds = time.monotonic() - killed_at
    second = await act(settings, "second")
    # A shard that nobody asked for since may still be starting.
    deadline = time.monotonic() + 120
    while True:
        after = places(settings)
        dead = [name for name in moved if after.get(name) in (None, victim.node_id)]
        if not dead or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    return {
        "nodes": len(set(before.values())),
        "moved": moved,
        "stayed_dead": dead,
        "facts": await sizes(settings),
        "first": first,
        "second": second,
        "seconds": round(seconds, 1),
    }


def main(data_dir: str, url: str) -> None:
    settings = Settings(
        data_dir=Path(data_dir),
        store={"url": url},
        memory={"shards": 4},
        effects={"ledgers": 2},
        ray={"namespace": "nodes"},
    )
    prepare_stores(settings, upgrade=False)
    control = ControlStore(settings.store_url("control"))
    for company in COMPANIES:
        control.create_company(company, "operator")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 1024**2})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 1024**2) for _ in range(2)]
        ray.init(address=cluster.address, namespace="nodes", log_to_driver=False)
        create_actors(settings)
        print(json.dumps(asyncio.run(scenario(settings, cluster, nodes))))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
