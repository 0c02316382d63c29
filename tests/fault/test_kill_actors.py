"""kill -9 of every kind of Ray actor, a full disk, a store that falls: what was acknowledged is there.

``FAULT_SEED`` repeats a run as far as chance goes, ``FAULT_ROUNDS`` makes it longer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from muniment.cluster import launcher
from tests.fault import seeds
from tests.fault.faults import KINDS, Fault, disk_full, disturbed, kill_of
from tests.fault.workload import DEADLINE_SECONDS, SOURCE, Account, Work
from tests.live import Service, start_service
from tests.stores import Postgres, postgres_server

#: Tiers so small that much is evicted while all this happens.
SMALL = {"MUNIMENT_MEMORY__L1_CAPACITY": "20", "MUNIMENT_MEMORY__L2_CAPACITY": "40"}


def disturb(service: Service, faults: list[Fault]) -> Work:
    seed = seeds.seed()
    work = Work(service, seed)
    asyncio.run(disturbed(work, faults, seeds.rounds(len(faults)), random.Random(seed)))
    return work


@pytest.mark.timeout(7200)
def test_what_was_acknowledged_survives_any_actor_and_a_full_disk(service: Service) -> None:
    disturb(service, [*map(kill_of, KINDS), disk_full])


@pytest.fixture
def durable() -> Iterator[Postgres]:
    with postgres_server(durable=True) as server:
        if server is None:
            pytest.skip("PostgreSQL is not installed here, or there is nobody who may run it")
        yield server


@pytest.fixture
def clustered(durable: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service on PostgreSQL with several of each actor, and small tiers."""
    several = {"MEMORY__SHARDS": "2", "EFFECTS__LEDGERS": "2"}
    for name, value in {**SMALL, **{f"MUNIMENT_{name}": value for name, value in several.items()}}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MUNIMENT_STORE__URL", durable.new_store())
    data_dir = tmp_path.resolve() / "clustered"
    try:
        yield start_service(data_dir)
    finally:
        launcher.stop(data_dir)


@pytest.mark.timeout(7200)
def test_what_was_acknowledged_survives_on_postgresql_also_its_own_fall(clustered: Service, durable: Postgres) -> None:
    async def fall(work: Work, chance: random.Random) -> None:
        print("the store falls", flush=True)
        await asyncio.to_thread(durable.stop)
        await asyncio.to_thread(durable.start)

    async def silence(work: Work, chance: random.Random) -> None:
        print("the store is silent", flush=True)
        durable.pause()
        try:
            await asyncio.sleep(chance.uniform(0, 3))
        finally:
            durable.resume()

    work = disturb(clustered, [kill_of("ShardActor"), fall, kill_of("LedgerActor"), silence])
    account = work.accounts[0]
    without_a_store(clustered, durable, account, next(iter(account.essential.values())))


def without_a_store(service: Service, server: Postgres, account: Account, told: str) -> None:
    """Over HTTP: recall goes on and says so, writes are refused clearly, and it heals by itself."""
    headers = {"Authorization": f"Bearer {account.keys['agent']}"}
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
