"""The way to a company's shard while it moves, and to as many model workers as are used, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.store.engine import create_schema, open_engine, writing
from muniment.actors.store.memory_tables import TABLES
from muniment.actors.store.tenure import begin, move, use
from muniment.actors.wire import unpack
from muniment.cluster import roster as module
from muniment.cluster.handles import Unreachable, WorkerPool
from muniment.cluster.roster import Members, Roster, Shards
from muniment.policies.errors import Moved, NotFound, Unavailable
from muniment.policies.partitioning import partition_of
from tests.stores import Stores

ACME = partition_of("acme")


class Member:
    """A shard or worker that answers with its number, or fails as often as it is told to."""

    def __init__(self, number: int) -> None:
        self.name = f"member-{number}"
        self.number = number
        self.in_flight = 0
        self.fails: list[Exception] = []
        self.asked: list[Any] = []

    async def attempt(self, request: bytes, deadline: float) -> Any:
        self.asked.append(unpack(request)[:2])
        if self.fails:
            raise self.fails.pop(0)
        return self.number

    async def attempt_together(self, requests: Sequence[bytes], deadline: float) -> list[Any]:
        return list(await asyncio.gather(*(self.attempt(one, deadline) for one in requests), return_exceptions=True))


@pytest.fixture
def engine(stores: Stores) -> Iterator[sa.Engine]:
    made = stores.hasten(open_engine(stores.url("memory")))
    create_schema(made, TABLES)
    with writing(made).begin() as connection:
        begin(connection, "shard", 1)
        begin(connection, "worker", 2)
    yield made
    made.dispose()


def shards(engine: sa.Engine, *members: Member) -> Shards:
    made = Shards(Roster(engine, ("shard",)), "n")
    made._members = dict(enumerate(members))  # type: ignore[assignment]
    return made


def moved(engine: sa.Engine, old: int, new: int) -> None:
    with writing(engine).begin() as connection:
        assert move(connection, "shard", ACME, old, new)


def test_who_is_refused_asks_the_store_and_goes_where_the_company_is(engine: sa.Engine) -> None:
    first, second = Member(0), Member(1)
    first.fails = [Moved("it went")]

    async def scenario() -> None:
        way = shards(engine, first, second)
        moved(engine, 0, 1)
        assert await way("acme").recall(company="acme", plan=1) == 1
        assert first.asked == second.asked == [["recall", {"company": "acme", "plan": 1}]]
        assert await way("acme").recall(company="acme", plan=2) == 1
        assert len(first.asked) == 1, "from now on it is known"

    asyncio.run(scenario())


def test_a_shard_that_ended_is_left(engine: sa.Engine) -> None:
    first, second = Member(0), Member(1)
    first.fails = [Unreachable("gone")] * 100

    async def scenario() -> None:
        way = shards(engine, first, second)
        moved(engine, 0, 1)
        assert await way("acme").stats(company="acme") == 1
        assert len(first.asked) == 1

    asyncio.run(scenario())


def test_a_restart_is_waited_for_and_no_longer_than_the_deadline(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    one = Member(0)
    one.fails = [Unreachable("restarts")] * 3

    async def scenario() -> None:
        assert await shards(engine, one)("acme").stats(company="acme") == 0
        assert len(one.asked) == 4
        monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)
        one.fails = [Moved("and nobody has it")] * 10_000
        with pytest.raises(Unavailable):
            await shards(engine, one)("acme").stats(company="acme")

    asyncio.run(scenario())


def test_while_the_store_is_away_what_was_known_holds(engine: sa.Engine) -> None:
    one = Member(0)
    one.fails = [Unreachable("restarts")]

    async def scenario() -> None:
        way = shards(engine, one)
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE roles")
        assert await way("acme").stats(company="acme") == 0

    asyncio.run(scenario())


def test_workers_are_those_that_are_used_now(engine: sa.Engine) -> None:
    async def scenario() -> None:
        roster = Roster(engine, ("worker",))
        members = Members(roster, "worker", "n")
        workers = [Member(number) for number in range(3)]
        members._handles = dict(enumerate(workers))  # type: ignore[assignment]
        workers[0].fails = [Unreachable("dead")]
        assert await WorkerPool(members).describe() == 1, "elsewhere"
        assert [handle.name for handle in members()] == ["member-0", "member-1"]
        with writing(engine).begin() as connection:
            use(connection, "worker", 3)
        await roster.refresh()
        assert len(members()) == 3
        with writing(engine).begin() as connection:
            use(connection, "worker", 1)
        await roster.refresh()
        assert [handle.name for handle in members()] == ["member-0"]

    asyncio.run(scenario())


def test_recalls_travel_together_and_what_would_hold_others_up_goes_alone(engine: sa.Engine) -> None:
    batches: list[list[str]] = []
    special: dict[str, Any] = {"cold": None, "wrong": NotFound("of this one alone")}

    class Together(Member):
        async def attempt_together(self, requests: Sequence[bytes], deadline: float) -> list[Any]:
            companies = [unpack(request)[1]["company"] for request in requests]
            batches.append(companies)
            await asyncio.sleep(0)
            return [special.get(company, self.number) for company in companies]

    one = Together(0)

    async def scenario() -> None:
        way = shards(engine, one)

        def ask(company: str) -> Awaitable[Any]:
            return way(company).recall(company=company)

        names = ["cold", "wrong", *(f"c{n}" for n in range(20))]
        found = await asyncio.gather(*map(ask, names), return_exceptions=True)
        assert isinstance(found.pop(1), NotFound)
        assert found == [0] * 21
        assert sorted(company for batch in batches for company in batch) == sorted(names)
        assert len(batches) < 6
        assert one.asked == [["recall", {"company": "cold"}]], "by itself"
        special["acme"] = Unreachable("replaced")
        asked = asyncio.ensure_future(ask("acme"))
        while batches[-1] != ["acme"]:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        del special["acme"]
        assert await asked == 0
        assert len(one.asked) == 1

    asyncio.run(scenario())
