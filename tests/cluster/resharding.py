"""Shards and ledgers move on a Ray of several nodes while clients work: run by ``test_resharding``, in a process of its
own.

``python -m tests.cluster.resharding DATA_DIR STORE_URL SIZES SEED`` goes from 4 of each to each of SIZES (``7,3``) and
prints what happened as one line of JSON. Clients keep their own account of what they were told.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

from muniment.actors.ledger_ops import Confirm, Propose, Token
from muniment.actors.router import Router
from muniment.actors.store import effect_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.engine import open_engine
from muniment.cluster.actor_classes import create_actors
from muniment.cluster.handles import ActorHandle
from muniment.cluster.ledger_handle import Ledgers
from muniment.cluster.naming import actor_name
from muniment.cluster.roster import Roster, Shards
from muniment.cluster.scaler import Scaler
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings
from muniment.policies.errors import ModelUnavailable
from muniment.policies.fingerprint import effect_key, parse_key_paths
from muniment.policies.partitioning import Move, partition_of

DIMENSION = 16
COMPANIES = [f"company-{n}" for n in range(24)]
CLIENTS = 6
KEYS = 400
PATHS = parse_key_paths(["/n"])
SOURCE = {"kind": "counterparty", "id": "mail:1", "author": "ana"}
ACTOR = {"id": "ana", "groups": [], "may_claim_record": True}


class Words:
    """An embedder without a model: each text has a direction of its own."""

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        rows = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=DIMENSION) for text in texts]
        return b"".join((row / np.linalg.norm(row)).astype(np.float32).tobytes() for row in rows)

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        raise ModelUnavailable("none here")

    async def describe(self) -> dict[str, Any]:
        return {"embedder": "words", "dimension": DIMENSION, "reranker": None}


class World:
    """The clients, what they were told, and how long they waited for it."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.memory, self.effects = (open_engine(settings.store_url(name)) for name in ("memory", "effects"))
        self.shards = Shards(Roster(self.memory, ("shard",)), settings.ray.namespace)
        self.router = Router(Words(), self.shards)
        self.ledgers = Ledgers(Roster(self.effects, ("ledger",)), settings.ray.namespace)
        self.told: dict[str, dict[str, str]] = {company: {} for company in COMPANIES}
        self.confirmed: dict[int, str] = {}
        self.verdicts: Counter[str] = Counter()
        self.waited: list[tuple[str, float, float]] = []
        self.moves: list[tuple[Move, float, float]] = []
        self.done = 0
        self.stop = False

    async def client(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {number}")
        turn = 0
        while not self.stop:
            work = rng.choice((self.tell, self.tell, self.ask, self.act))
            company = rng.choice(COMPANIES)
            began = time.monotonic()
            await work(company, rng, f"{number}-{turn}")
            if work != self.act:
                self.waited.append((company, began, time.monotonic()))
            self.done += 1
            turn += 1

    async def tell(self, company: str, rng: random.Random, name: str) -> None:
        text = f"the code of depot {name} is {rng.randrange(10**6)}"
        fact = {"text": text, "writer": "ana", "importance": 0.9, "source": SOURCE}
        request = {"key": name, "hash": b"", "named": True}
        answer = await self.router.remember(company=company, facts=[fact], actor=ACTOR, request=request)
        (result,) = answer["results"]
        assert result["outcome"] == "stored"
        self.told[company][result["id"]] = text

    async def ask(self, company: str, rng: random.Random, name: str) -> None:
        if self.told[company]:
            text = rng.choice(list(self.told[company].values()))
            found = await self.router.recall(
                company=company, query=text, top_k=5, profile="default", user="ana", filters={}
            )
            assert found["route"]["degraded"] in (None, "no_reranker"), found["route"]
            assert text in [result["fact"]["text"] for result in found["results"]], "acknowledged, and not found"

    async def act(self, company: str, rng: random.Random, name: str) -> None:
        number, run = rng.randrange(KEYS), f"run-{name}"
        before = self.confirmed.get(number)
        key = effect_key(company="c", area="a", agent="b", tool="mail", paths=PATHS, arguments={"n": number})
        op = Propose(key, "c", "a", "b", "mail", run, "s", "key:1", f"d_{name}", lease=900_000_000)
        proposed = await self.ledgers.propose(op, 0)
        self.verdicts[proposed.verdict] += 1
        if proposed.token is not None:
            assert before is None, "a key that was confirmed was given out again"
            settled = await self.ledgers.settle(Confirm("c", *Token.parse(proposed.token), "key:1"))
            assert settled.state == "confirmed"
            assert number not in self.confirmed, "a key was confirmed twice"
            self.confirmed[number] = run
        elif before is not None:
            assert (proposed.verdict, proposed.origin_run) == ("duplicate", before)

    async def at_work(self, count: int) -> None:
        """Waits until so much more was done."""
        begun = self.done
        while self.done < begun + count:
            await asyncio.sleep(0.01)

    async def scale(self, members: int, crash_after: int) -> None:
        """To so many shards and ledgers; the mover dies after some moves, with a shard, and another one goes on.

        What the dead shard's callers wait for is not a pause of moving: the second mover begins when it is back.
        """
        scaler = Scaler(self.settings)
        await asyncio.to_thread(scaler.want, {"shard": members, "ledger": members})
        for attempt in range(2):
            scaler = Scaler(self.settings)
            moved = 0

            def note(kind: str, move: Move, seconds: float, counts: bool = attempt > 0) -> None:
                nonlocal moved
                moved += 1
                if kind == "shard" and counts:
                    self.moves.append((move, time.monotonic() - seconds, seconds))

            scaler.on_move = note
            work = asyncio.create_task(scaler.converge())
            while not work.done() and (attempt or moved < crash_after):
                await asyncio.sleep(0.005)
            if attempt == 0 and not work.done():
                victim = scaler.roles()["shard"].map.owners()[-1]
                work.cancel()
                ray.kill(
                    ray.get_actor(actor_name("shard", victim), namespace=self.settings.ray.namespace), no_restart=False
                )
                await ActorHandle(actor_name("shard", victim), self.settings.ray.namespace).call("stats")
                await self.at_work(5 * CLIENTS)
            await asyncio.gather(work, return_exceptions=attempt == 0)
        state = await asyncio.to_thread(scaler.state)
        assert state["done"], state

    def pauses(self) -> tuple[list[float], list[float]]:
        """The longest wait for a company of each partition while it moved, and all waits for other companies then."""
        own, others = [], []
        for move, began, seconds in self.moves:
            during = [w for w in self.waited if w[1] < began + seconds + 0.5 and w[2] > began]
            mine = [ended - start for company, start, ended in during if partition_of(company) == move.unit]
            if mine:
                own.append(max(mine))
            others += [ended - start for company, start, ended in during if partition_of(company) != move.unit]
        return own, others

    def settle(self) -> dict[str, Any]:
        """What is there afterwards is what was acknowledged, once; and the chains hold."""
        lost, twice = [], 0
        with self.memory.connect() as connection:
            for company, told in self.told.items():
                there = memory_store.get_facts(connection, company, list(told))
                lost += [id for id, text in told.items() if id not in there or there[id].text != text]
                texts = Counter(
                    fact.text for fact in memory_store.list_facts(connection, company, user="ana", limit=100_000)
                )
                twice += sum(count - 1 for count in texts.values())
            memory_chain = DecisionLog(t.decisions, t.decision_heads).verify(connection)
        with self.effects.connect() as connection:
            chain = effect_store.decision_log.verify(connection)
            entries = list(effect_store.decision_log.entries(connection, "c", limit=100_000))
        ids = Counter(entry["id"] for entry in entries)
        allowed = Counter(entry["inputs"]["key"] for entry in entries if entry["outcome"] == "allow")
        return {
            "told": sum(map(len, self.told.values())),
            "lost": lost,
            "stored_twice": twice,
            "confirmed": len(self.confirmed),
            "allowed_twice": [key for key, count in allowed.items() if count > 1],
            "decided_twice": [id for id, count in ids.items() if count > 1],
            "broken": [memory_chain[1], chain[1]],
        }


async def scenario(settings: Settings, sizes: list[int], seed: int) -> dict[str, Any]:
    world = World(settings, seed)
    rng = random.Random(seed)
    clients = [asyncio.create_task(world.client(number)) for number in range(CLIENTS)]
    took = []
    try:
        for members in sizes:
            await world.at_work(5 * CLIENTS)
            began = time.monotonic()
            scaling = asyncio.create_task(world.scale(members, crash_after=rng.randrange(2, 40)))
            await asyncio.wait([scaling, *clients], return_when=asyncio.FIRST_COMPLETED)
            for client in clients:
                if client.done():
                    client.result()
            await scaling
            took.append(round(time.monotonic() - began, 1))
        await world.at_work(5 * CLIENTS)
    finally:
        world.stop = True
    await asyncio.gather(*clients)
    own, others = world.pauses()
    verified = [await shard.verify() for shard in world.shards.members().values()]
    await world.ledgers.close()
    return {
        **world.settle(),
        "done": world.done,
        "verdicts": dict(world.verdicts),
        "moves": len(world.moves),
        "seconds": took,
        "wrong": [id for found in verified for id in found["wrong"]],
        "verified": sum(found["facts"] for found in verified),
        "pause_ms": spread(own),
        "others_ms": spread(others),
        "switch_ms": spread([seconds for _, _, seconds in world.moves]),
        "shards": sorted(world.shards.members()),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Middle, 95th percentile and largest, in milliseconds."""
    if not seconds:
        return {}
    low, high = np.percentile(seconds, [50, 95])
    return {name: round(1000 * value, 1) for name, value in (("p50", low), ("p95", high), ("max", max(seconds)))}


def main(data_dir: str, url: str, sizes: str, seed: str) -> None:
    settings = Settings(
        data_dir=Path(data_dir),
        store={"url": url},
        memory={"shards": 4},
        effects={"ledgers": 4},
        ray={"namespace": "resharding"},
    )
    prepare_stores(settings, upgrade=False)
    control = ControlStore(settings.store_url("control"))
    for company in COMPANIES:
        control.create_company(company, "operator")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 1024**2})
    try:
        cluster.add_node(num_cpus=1, object_store_memory=100 * 1024**2)
        ray.init(address=cluster.address, namespace="resharding", log_to_driver=False)
        create_actors(settings)
        print(json.dumps(asyncio.run(scenario(settings, [int(size) for size in sizes.split(",")], int(seed)))))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
