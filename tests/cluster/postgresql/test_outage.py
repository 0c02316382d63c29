"""The store goes away and comes back: loaded companies go on being recalled, and say so; writes fail; it heals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muniment.actors.store import reach
from muniment.cluster.admin_service import AdminService
from muniment.policies.access import Role
from muniment.policies.errors import StoreUnavailable, Unauthenticated
from tests.stores import Postgres, Stores, postgres_server
from tests.unit.test_memory_shard import Bench, contact

HEALING_SECONDS = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(durable=True) as made:
        if made is None:
            pytest.skip("PostgreSQL is not installed here, or there is nobody who may run it")
        yield made


@pytest.fixture
def bench(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    if not server.running:
        server.start()
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.5)
    made = Bench(Stores(tmp_path, server))
    yield made
    if server.running:
        server.resume()
    else:
        server.start()
    made.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + HEALING_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, "it does not heal"
        await asyncio.sleep(0.05)


def cut(server: Postgres, how: str) -> Callable[[], None]:
    if how == "stopped":
        server.stop()
        return server.start
    server.pause()
    return server.resume


@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_what_is_loaded_is_recalled_while_the_store_is_away(bench: Bench, server: Postgres, how: str) -> None:
    async def scenario() -> None:
        await bench.tell(contact("Carla"), {"text": "the door code is 7"})
        await bench.tell({"text": "other has a secret"}, company="other")
        assert (await bench.ask("Aurora"))["route"]["degraded"] == "no_reranker"
        mend = cut(server, how)
        found = await bench.ask("contact Aurora")
        assert found["route"]["degraded"] == "store_unreachable"
        assert "the contact of Aurora is Carla" in [r["fact"]["text"] for r in found["results"]]
        if how == "stopped":
            with pytest.raises(StoreUnavailable):
                await bench.tell({"text": "nobody will remember this"})
            assert (await bench.ask("contact Aurora"))["route"]["degraded"] == "store_unreachable"
        mend()

        async def healed() -> bool:
            return (await bench.ask("contact Aurora"))["route"]["degraded"] != "store_unreachable"

        await until(healed)
        await bench.tell({"text": "this will be remembered"})
        assert "this will be remembered" in await bench.texts("remembered")
        assert "nobody will remember this" not in await bench.texts("remember")

    asyncio.run(scenario())


def test_what_is_not_loaded_cannot_be_recalled(bench: Bench, server: Postgres) -> None:
    async def scenario() -> None:
        await bench.tell(contact("Carla"))
        bench.shard.close()
        bench.start()
        mend = cut(server, "stopped")
        with pytest.raises(StoreUnavailable):
            await bench.ask("contact Aurora")
        mend()

        async def answers() -> bool:
            try:
                return bool((await bench.ask("contact Aurora"))["results"])
            except StoreUnavailable:
                return False

        await until(answers)

    asyncio.run(scenario())


def test_a_commit_that_breaks_off_leaves_nothing_in_memory(bench: Bench, server: Postgres) -> None:
    """The store goes away after a write was decided in memory and before it was committed."""

    async def scenario() -> None:
        await bench.tell(contact("Carla"))
        decide = bench.shard._writer.remember
        mends: list[Callable[[], None]] = []

        def and_then_the_store_is_gone(*arguments: Any, **named: Any) -> Any:
            written = decide(*arguments, **named)
            mends.append(cut(server, "stopped"))
            return written

        bench.shard._writer.remember = and_then_the_store_is_gone
        with pytest.raises(StoreUnavailable):
            await bench.tell({"text": "Aurora moves to the harbour"})
        bench.shard._writer.remember = decide
        found = await bench.ask("contact Aurora")
        assert found["route"]["degraded"] == "store_unreachable"
        assert [r["fact"]["value"] for r in found["results"]] == ["Carla"]
        mends[0]()

        async def healed() -> bool:
            return (await bench.ask("contact Aurora"))["route"]["degraded"] != "store_unreachable"

        await until(healed)
        assert await bench.texts("Aurora harbour") == ["the contact of Aurora is Carla"]
        await bench.tell({"text": "Aurora moves to the harbour"})
        assert len(await bench.texts("Aurora harbour")) == 2

    asyncio.run(scenario())


def test_a_key_that_was_checked_opens_for_a_while(bench: Bench, server: Postgres) -> None:
    async def scenario() -> None:
        key, _ = bench.control.create_key("acme", "operator", roles=frozenset({Role.AGENT}))
        unseen, _ = bench.control.create_key("acme", "operator", roles=frozenset({Role.AGENT}))
        gone, grant = bench.control.create_key("acme", "operator", roles=frozenset({Role.AGENT}))
        patient, strict = AdminService(bench.control, offline_seconds=60), AdminService(bench.control)
        for admin in (patient, strict):
            for known in (key, gone):
                assert (await admin.authenticate(f"Bearer {known}")).company == "acme"
        bench.control.revoke_key("acme", grant.key_id, "operator")
        with pytest.raises(Unauthenticated):
            await patient.authenticate(f"Bearer {gone}")
        mend = cut(server, "stopped")
        assert (await patient.authenticate(f"Bearer {key}")).company == "acme"
        for admin, refused in ((patient, unseen), (patient, gone), (strict, key)):
            with pytest.raises(StoreUnavailable):
                await admin.authenticate(f"Bearer {refused}")
        mend()

        async def entered() -> bool:
            try:
                return (await patient.authenticate(f"Bearer {unseen}")).company == "acme"
            except StoreUnavailable:
                return False

        await until(entered)

    asyncio.run(scenario())
