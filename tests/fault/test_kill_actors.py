"""kill -9 of every kind of Ray actor while clients tell, ask, propose and confirm: what was acknowledged is there.

Callers wait through it: within their deadline nobody sees an error. ``FAULT_SEED`` repeats a run, ``FAULT_ROUNDS``
makes it longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from muniment.cluster import AsyncClient, launcher, processes
from tests.live import Service, muniment, start_service
from tests.stores import Postgres, postgres_server

KINDS = ("ShardActor", "LedgerActor", "RouterActor", "WorkerActor")
ROUNDS = int(os.environ.get("FAULT_ROUNDS", "0")) or len(KINDS)
CLIENTS = 4
KEYS = 12
#: One caller's patience; a model worker takes its time to come back on a busy machine.
DEADLINE_SECONDS = 240.0
SOURCE = {"kind": "counterparty", "id": "mail:1", "author": "ana"}


class Account:
    """What clients were told, kept by themselves."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.confirmed: dict[int, str] = {}
        self.verdicts: Counter[str] = Counter()
        self.acknowledged = 0
        self.stop = False


async def tell(client: AsyncClient, account: Account, rng: random.Random, name: str) -> None:
    text = f"the code of depot {name} is {rng.randrange(10**6)}"
    (result,) = (await client.remember([{"text": text, "importance": 0.9, "source": SOURCE}]))["results"]
    assert result["outcome"] == "stored"
    account.told[result["id"]] = text


async def ask(client: AsyncClient, account: Account, rng: random.Random, name: str) -> None:
    if account.told:
        text = rng.choice(list(account.told.values()))
        found = await client.recall(text, top_k=5)
        assert text in [result["fact"]["text"] for result in found["results"]], "acknowledged, and not found"


async def act(client: AsyncClient, account: Account, rng: random.Random, name: str) -> None:
    key, run = rng.randrange(KEYS), f"run-{name}"
    before = account.confirmed.get(key)
    scope = {"area": "ops", "agent": "bot", "tool": "mail.send", "arguments": {"to": key}}
    answer = await client.propose(**scope, run_id=run, step_id="s", wait_ms=0)
    account.verdicts[answer["verdict"]] += 1
    if answer["verdict"] == "allow":
        assert before is None, "a key that was confirmed was given out again"
        assert (await client.confirm(answer["reservation"]["token"]))["state"] == "confirmed"
        assert key not in account.confirmed, "a key was confirmed twice"
        account.confirmed[key] = run
    elif before is not None:
        assert (answer["verdict"], answer["origin"]["run_id"]) == ("duplicate", before)


async def work(url: str, key: str, account: Account, seed: int, number: int) -> None:
    rng = random.Random(f"{seed} {number}")
    async with AsyncClient(url, key=key, timeout_seconds=DEADLINE_SECONDS) as client:
        turn = 0
        while not account.stop:
            await rng.choice((tell, tell, ask, act))(client, account, rng, f"{number}-{turn}")
            account.acknowledged += 1
            turn += 1


def pids(data_dir: Path, kind: str) -> set[int]:
    found = set()
    for pid in processes.processes_of(data_dir):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::" + kind.encode()):
                found.add(pid)
    return found


async def until(holds: Callable[[], bool], workers: list[asyncio.Task[None]]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        for worker in workers:
            if worker.done():
                worker.result()
        assert time.monotonic() < deadline, "it does not go on"
        await asyncio.sleep(0.05)


async def disturb(
    service: Service, account: Account, rng: random.Random, workers: list[asyncio.Task[None]], faults: list[Any]
) -> None:
    """The faults in turn, each when the work goes on after the one before."""
    for number in range(ROUNDS):
        begun = account.acknowledged
        await until(lambda begun=begun: account.acknowledged >= begun + 2 * CLIENTS, workers)
        fault = faults[number % len(faults)] if number < len(faults) else rng.choice(faults)
        if callable(fault):
            await asyncio.to_thread(fault)
        else:
            before = pids(service.data_dir, fault)
            victim = rng.choice(sorted(before))
            print(f"kill -9 of {fault} {victim}")
            os.kill(victim, signal.SIGKILL)
            await until(lambda fault=fault, before=before: bool(pids(service.data_dir, fault) - before), workers)
    begun = account.acknowledged
    await until(lambda: account.acknowledged >= begun + 4 * CLIENTS, workers)


async def run(service: Service, company: str, seed: int, faults: list[Any]) -> Account:
    agent = service.key(company, "agent")
    with service.client(company=company) as operator:
        operator.classify("mail.send", key_paths=["/to"], window={"permanent": True}, lease_seconds=900)
    account, rng = Account(), random.Random(seed)
    workers = [asyncio.create_task(work(service.url, agent, account, seed, n)) for n in range(CLIENTS)]
    try:
        await disturb(service, account, rng, workers, faults)
    finally:
        account.stop = True
    await asyncio.gather(*workers)
    await settle(service, agent, account)
    return account


async def settle(service: Service, key: str, account: Account) -> None:
    """What is there afterwards is what was acknowledged, once."""
    async with AsyncClient(service.url, key=key, timeout_seconds=DEADLINE_SECONDS) as client:
        there: list[dict[str, Any]] = []
        page = await client.memories(limit=200)
        there += page["memories"]
        while page.get("next"):
            page = await client.memories(limit=200, cursor=page["next"])
            there += page["memories"]
        assert account.told.items() <= {fact["id"]: fact["text"] for fact in there}.items(), "acknowledged, and gone"
        twice = [text for text, times in Counter(fact["text"] for fact in there).items() if times > 1]
        assert twice == [], "stored twice"
        for number, origin in account.confirmed.items():
            scope = {"area": "ops", "agent": "bot", "tool": "mail.send", "arguments": {"to": number}}
            answer = await client.propose(**scope, run_id="afterwards", step_id="s", wait_ms=0)
            assert (answer["verdict"], answer["origin"]["run_id"]) == ("duplicate", origin)


def check(service: Service) -> None:
    """Chains, orphans, and the indexes of what is loaded."""
    verified = muniment("verify", "--json", "--data-dir", service.data_dir)
    report = json.loads(verified.stdout)
    assert (verified.returncode, report["problems"], report["indexes"]["wrong"]) == (0, [], [])
    assert report["indexes"]["facts"] > 0


def seed_of_run() -> int:
    seed = int(os.environ.get("FAULT_SEED", "0")) or random.randrange(1, 10**6)
    print(f"seed {seed}")
    return seed


@pytest.mark.timeout(1800)
def test_what_was_acknowledged_survives_any_actor(service: Service) -> None:
    seed = seed_of_run()
    account = asyncio.run(run(service, f"survivors-{seed}", seed, list(KINDS)))
    print(f"acknowledged {account.acknowledged}, {dict(account.verdicts)}")
    check(service)


@pytest.fixture
def durable() -> Iterator[Postgres]:
    with postgres_server(durable=True) as server:
        if server is None:
            pytest.skip("PostgreSQL is not installed here, or there is nobody who may run it")
        yield server


@pytest.fixture
def clustered(durable: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service on PostgreSQL with several of each actor."""
    monkeypatch.setenv("MUNIMENT_STORE__URL", durable.new_store())
    monkeypatch.setenv("MUNIMENT_MEMORY__SHARDS", "2")
    monkeypatch.setenv("MUNIMENT_EFFECTS__LEDGERS", "2")
    monkeypatch.setenv("MUNIMENT_ROUTERS__COUNT", "2")
    data_dir = tmp_path.resolve() / "clustered"
    try:
        yield start_service(data_dir)
    finally:
        launcher.stop(data_dir)


@pytest.mark.timeout(1800)
def test_what_was_acknowledged_survives_on_postgresql_also_its_own_fall(clustered: Service, durable: Postgres) -> None:
    def fall() -> None:
        print("the store falls")
        durable.stop()
        durable.start()

    seed = seed_of_run()
    account = asyncio.run(run(clustered, "survivors", seed, ["ShardActor", fall, "LedgerActor"]))
    print(f"acknowledged {account.acknowledged}, {dict(account.verdicts)}")
    check(clustered)
    without_a_store(clustered, durable, next(iter(account.told.values())))


def without_a_store(service: Service, server: Postgres, told: str) -> None:
    """Over HTTP: recall goes on and says so, writes are refused clearly, and it heals by itself."""
    headers = {"Authorization": f"Bearer {service.key('survivors', 'agent')}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=DEADLINE_SECONDS) as http:

        def recall() -> Any:
            return http.post("/v1/recall", json={"query": told, "top_k": 3}).raise_for_status().json()

        def remember() -> httpx.Response:
            return http.post("/v1/memories", json={"facts": [{"text": "who hears this?", "source": SOURCE}]})

        assert recall()["route"]["degraded"] is None
        server.stop()
        try:
            found = recall()
            assert found["route"]["degraded"] == "store_unreachable"
            assert told in [result["fact"]["text"] for result in found["results"]]
            refused = remember()
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert int(refused.headers["Retry-After"]) >= 1
            assert http.get("/v1/memories").status_code == 503
        finally:
            server.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while remember().status_code != 200 or recall()["route"]["degraded"] is not None:
            assert time.monotonic() < deadline, "it does not heal"
            time.sleep(0.2)
