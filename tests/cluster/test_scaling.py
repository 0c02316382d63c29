"""The size of a running service, by the command line and the API: what SQLite allows, while clients work."""

from __future__ import annotations

import asyncio
import json

import pytest

from muniment.cluster import AsyncClient
from muniment.policies.errors import Forbidden, InvalidInput, NotFound, StateConflict
from tests.live import Service, muniment

SOURCE = {"kind": "counterparty", "id": "mail:1"}


def scaled(service: Service, *options: str) -> dict[str, dict[str, int]]:
    done = muniment("scale", *options, "--json", "--data-dir", service.data_dir)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_workers_come_and_go_while_clients_work(service: Service) -> None:
    agent = service.key("sizes", "agent")

    async def work(number: int, stop: asyncio.Event) -> int:
        turn = 0
        async with AsyncClient(service.url, key=agent, timeout_seconds=120) as client:
            while not stop.is_set():
                text = f"depot {number} has {turn} crates"
                (told,) = (await client.remember([{"text": text, "source": SOURCE}]))["results"]
                assert told["outcome"] == "stored"
                found = await client.recall(text, top_k=3)
                assert text in [result["fact"]["text"] for result in found["results"]]
                turn += 1
        return turn

    async def scenario() -> list[int]:
        stop = asyncio.Event()
        clients = [asyncio.create_task(work(number, stop)) for number in range(3)]
        try:
            grown = await asyncio.to_thread(scaled, service, "--workers", "2")
            assert (grown["workers"], grown["done"]) == ({"wanted": 2, "running": 2}, True)
            shrunk = await asyncio.to_thread(scaled, service, "--workers", "1")
            assert (shrunk["workers"], shrunk["done"]) == ({"wanted": 1, "running": 1}, True)
        finally:
            stop.set()
        return await asyncio.gather(*clients)

    assert min(asyncio.run(scenario())) > 0


def test_without_options_it_says_how_it_is(service: Service) -> None:
    state = scaled(service)
    one = {"wanted": 1, "running": 1}
    assert state == {
        "shards": {**one, "to_move": 0},
        "ledgers": {**one, "to_move": 0},
        "workers": one,
        "own_shards": [],
        "pinned": [],
        "done": True,
    }
    assert "workers" in muniment("scale", "--data-dir", service.data_dir).stdout


def test_what_sqlite_does_not_allow_is_one_clear_line(service: Service) -> None:
    service.key("sizes", "agent")
    for command in (("scale", "--shards", "2"), ("scale", "--ledgers", "2"), ("place", "sizes", "--own-shard")):
        done = muniment(*command, "--data-dir", service.data_dir)
        assert done.returncode == 1
        assert done.stderr == "muniment: SQLite allows one shard and one ledger; store.url (PostgreSQL) allows more\n"
    with service.client() as operator, pytest.raises(StateConflict):
        operator.scale(shards=2)


def test_a_company_is_pinned_and_let_go(service: Service) -> None:
    service.key("sizes", "agent")
    done = muniment("place", "sizes", "--pinned", "--json", "--data-dir", service.data_dir)
    assert json.loads(done.stdout) == {"company": "sizes", "pinned": True, "own_shard": False}
    with service.client() as operator:
        assert operator.scaling()["pinned"] == ["sizes"]
        operator.place("sizes", pinned=False)
        assert operator.scaling()["pinned"] == []
        operator.place("sizes", pinned=True)
        operator.delete_company("sizes")
        assert operator.scaling()["pinned"] == [], "what is erased has no place"
        with pytest.raises(NotFound):
            operator.place("sizes", pinned=True)
        with pytest.raises(InvalidInput):
            operator.scale(shards=0)


def test_only_the_operator_may(service: Service) -> None:
    with service.client(service.key("sizes", "admin")) as admin:
        for asked in (admin.scaling, lambda: admin.scale(workers=2), lambda: admin.place("sizes", pinned=True)):
            with pytest.raises(Forbidden):
                asked()
