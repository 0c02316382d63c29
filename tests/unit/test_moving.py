"""What moves between shards and ledgers, without Ray: nobody writes to another's, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Token
from muniment.actors.memory_shard import MemoryShard
from muniment.actors.router import Router
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.engine import writing
from muniment.actors.store.outbox_store import OPENED, Message, add, due
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.store.tenure import Fence, begin, move, place_company, read_role
from muniment.policies.errors import Moved, NotFound, StateConflict
from muniment.policies.fingerprint import key_partition
from muniment.policies.partitioning import partition_of
from tests.stores import Stores
from tests.unit import test_dedupe_ledger, test_memory_shard
from tests.unit.test_dedupe_ledger import SECOND, key, token_of
from tests.unit.test_memory_shard import ANA, DIMENSION, Words, contact, run

ACME = partition_of("acme")


class Bench(test_memory_shard.Bench):
    """Two shards over one store; all partitions are the first one's."""

    def __init__(self, stores: Stores, **settings: Any) -> None:
        super().__init__(stores, **settings)
        with writing(self.engine).begin() as connection:
            begin(connection, "shard", 1)
        self.first, self.second = self.shard, self.open(1)

    def open(self, number: int) -> MemoryShard:
        return MemoryShard(
            self.engine, f"shard-{number}", PolicyBook(self.control), self.settings, clock=lambda: self.now
        )

    def move(self, unit: int | str, old: int, new: int) -> bool:
        with writing(self.engine).begin() as connection:
            return move(connection, "shard", unit, old, new)

    def at(self, shard: MemoryShard) -> None:
        self.shard, self.router = shard, Router(Words(), lambda _: shard)

    def close(self) -> None:
        other = self.second if self.shard is self.first else self.first
        other.close()
        super().close()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    made = Bench(stores)
    yield made
    made.close()


def test_a_shard_writes_only_what_is_its_own(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "the kettle is blue"})
        await bench.tell({"text": "elsewhere"}, company="other")
        bench.at(bench.second)
        with pytest.raises(Moved):
            await bench.tell({"text": "never"})
        with pytest.raises(Moved):
            await bench.ask("kettle")
        assert bench.move(ACME, 0, 1)
        assert await bench.texts("kettle blue") == ["the kettle is blue"]
        await bench.tell({"text": "the kettle is red"})
        bench.at(bench.first)
        with pytest.raises(Moved):
            await bench.tell({"text": "never"})
        with pytest.raises(Moved):
            await bench.ask("kettle")
        with pytest.raises(Moved):
            await bench.first.erase_company("acme")
        assert await bench.texts("elsewhere", company="other") == ["elsewhere"]
        assert (await bench.first.settle())["tenants_loaded"] == 1

    run(scenario())


def test_a_move_is_made_once_and_only_from_where_the_unit_is(bench: Bench) -> None:
    assert bench.move(ACME, 0, 1)
    assert not bench.move(ACME, 0, 1)
    assert not bench.move(ACME, 0, 2)
    with bench.engine.connect() as connection:
        assert read_role(connection, "shard").map.members[ACME] == 1
    with writing(bench.engine).begin() as connection, pytest.raises(NotFound):
        move(connection, "ledger", 0, 0, 1)


def test_what_went_and_came_back_unseen_is_read_again(bench: Bench) -> None:
    """The first shard hears of both moves at once: the company is its own, but not as it was."""

    async def scenario() -> None:
        await bench.tell(contact("Dana"))
        bench.move(ACME, 0, 1)
        bench.at(bench.second)
        await bench.tell(contact("Lee"), actor={**ANA, "id": "ana"})
        bench.move(ACME, 1, 0)
        bench.at(bench.first)
        await bench.tell({"text": "the printer is broken"})
        found = await bench.ask("the contact of Aurora")
        current = [r["fact"]["value"] for r in found["results"] if r["fact"].get("field") == "contact"]
        assert len(current) == 1

    run(scenario())


def test_what_was_read_ahead_is_brought_up_to_date(bench: Bench) -> None:
    async def scenario() -> None:
        results = await bench.tell(*({"text": f"number {n} of many"} for n in range(30)), contact("Dana"))
        found = await bench.first.loaded(ACME)
        assert found == {"companies": [["acme", DIMENSION]]}
        assert await bench.second.preload(found["companies"]) == {"read": 1}
        await bench.tell({"text": "told after it was read"}, contact("Lee"))
        gone = {"id": results[3]["id"], "status": "deleted", "reason": "r"}
        await bench.first.retire("acme", **gone, actor=ANA, own_only=False)
        bench.move(ACME, 0, 1)
        reads: list[str] = []
        whole = bench.second._tenants._loader.read
        bench.second._tenants._loader.read = lambda *a: reads.append("whole") or whole(*a)  # type: ignore[func-returns-value,method-assign]
        bench.at(bench.second)
        texts = await bench.texts("told after it was read", top_k=50)
        assert reads == [], "it was not read whole again"
        assert texts[0] == "told after it was read"
        assert "number 3 of many" not in texts
        assert "number 4 of many" in texts
        assert await bench.second.verify() == {"companies": 1, "facts": len(texts), "wrong": []}

    run(scenario())


def test_what_was_read_ahead_knows_of_evictions(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=10, l2_capacity=20)

    async def scenario() -> None:
        await bench.tell(*({"text": f"number {n} of many"} for n in range(20)))
        await bench.second.preload([("acme", DIMENSION)])
        for n in range(20, 45):
            await bench.tell({"text": f"number {n} of many"})
        bench.move(ACME, 0, 1)
        bench.at(bench.second)
        sizes = await bench.second.warm("acme", DIMENSION)
        assert sizes == await bench.second.warm("acme", DIMENSION)
        verified = await bench.second.verify()
        assert (verified["facts"], verified["wrong"]) == (sum(sizes.values()), [])
        await bench.tell({"text": "one more"})
        assert (await bench.second.verify())["wrong"] == []

    try:
        run(scenario())
    finally:
        bench.close()


def test_what_is_read_for_a_move_that_is_not_made_is_forgotten(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "the kettle is blue"})
        await bench.second.preload([("acme", DIMENSION)])
        assert await bench.second.preload([]) == {"read": 0}
        assert bench.second._tenants._loader.take_ahead("acme") is None

    run(scenario())


def test_a_company_that_lives_apart_leaves_the_others_of_its_partition(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "the kettle is blue"})
        with writing(bench.engine).begin() as connection:
            place_company(connection, "acme", apart=True)
        bench.at(bench.second)
        with pytest.raises(Moved):
            await bench.ask("kettle")
        assert bench.move("acme", 0, 1)
        assert await bench.texts("kettle") == ["the kettle is blue"]
        assert bench.first._fence.map.members[ACME] == 0
        assert bench.move("acme", 1, 0)
        bench.at(bench.first)
        assert await bench.texts("kettle") == ["the kettle is blue"]
        with bench.engine.connect() as connection:
            assert read_role(connection, "shard").map.apart == {}

    run(scenario())


def test_messages_to_owners_go_with_their_company(bench: Bench) -> None:
    def waiting(role: str) -> list[str]:
        with bench.engine.connect() as connection:
            return [message.company for message in due(connection, role, bench.now, 100)]

    with writing(bench.engine).begin() as connection:
        for company in ("acme", "other"):
            one = {"event": OPENED, "conflict_id": "c", "url": "http://x", "next_at": bench.now}
            add(connection, [Message(id=company, company=company, role="shard-0", **one)])
    bench.move(ACME, 0, 1)
    assert (waiting("shard-0"), waiting("shard-1")) == (["other"], ["acme"])


def test_chains_go_on_wherever_a_company_is(bench: Bench) -> None:
    async def scenario() -> None:
        for turn in range(4):
            bench.at((bench.first, bench.second)[turn % 2])
            await bench.tell(contact(f"Dana {turn}", day=turn))
            assert bench.move(ACME, turn % 2, 1 - turn % 2)
        with bench.engine.connect() as connection:
            count, broken = DecisionLog(t.decisions, t.decision_heads).verify(connection)
            streams = set(connection.execute(sa.select(t.decisions.c.stream)).scalars())
        assert (count, broken, streams) == (3, None, {"memory:acme"})

    run(scenario())


def test_a_shard_records_nothing_before_what_came_was_recorded(bench: Bench) -> None:
    """Its clock is behind the other's."""

    async def scenario() -> None:
        (told,) = await bench.tell({"text": "first"})
        bench.move(ACME, 0, 1)
        bench.now = test_memory_shard.at(-5)
        bench.at(bench.second)
        (after,) = await bench.tell({"text": "second"})
        assert after["id"] > told["id"]

    run(scenario())


def test_pinned_companies_are_loaded_first_and_stay(stores: Stores) -> None:
    bench = Bench(stores, loaded_bytes=1)

    async def scenario() -> None:
        for company in ("other", "acme"):
            await bench.tell({"text": "the kettle is blue"}, company=company)
        with writing(bench.engine).begin() as connection:
            place_company(connection, "acme", pinned=True)
        await bench.first.settle()
        for _ in range(3):
            await bench.ask("kettle", company="acme")
            await bench.ask("kettle", company="other")
            await bench.first.settle()
        assert "acme" in bench.first._tenants.by_company
        bench.first.close()
        bench.first = bench.open(0)
        bench.at(bench.first)
        await bench.first.load_largest()
        assert set(bench.first._tenants.by_company) == {"acme"}, "the budget is spent, but who is pinned is there"

    try:
        run(scenario())
    finally:
        bench.close()


def test_after_a_start_the_largest_are_loaded(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "one"}, company="other")
        await bench.tell({"text": "one"}, {"text": "two"})
        bench.first.close()
        bench.first = bench.open(0)
        bench.at(bench.first)
        await bench.first.load_largest()
        assert list(bench.first._tenants.by_company) == ["acme", "other"]
        await bench.second.load_largest()
        assert list(bench.second._tenants.by_company) == [], "it has none of them"

    run(scenario())


# --- ledgers


class Ledgers(test_dedupe_ledger.Bench):
    """Two ledgers over one store; the first has all keys."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        with writing(self.engine).begin() as connection:
            begin(connection, "ledger", 1)
        self.first, self.second = self.ledger, DedupeLedger(self.engine, "ledger-1", self._clock)

    def move(self, what: str, old: int, new: int) -> None:
        with writing(self.engine).begin() as connection:
            assert move(connection, "ledger", key_partition(key(what)), old, new)


@pytest.fixture
def ledgers(stores: Stores) -> Iterator[Ledgers]:
    made = Ledgers(stores)
    yield made
    made.first.close()
    made.second.close()


def test_a_ledger_decides_only_about_what_is_its_own(ledgers: Ledgers) -> None:
    held = ledgers.propose("r1")
    ledgers.ledger = ledgers.second
    assert isinstance(ledgers.propose("r2"), Moved)
    ledgers.move("x", 0, 1)
    assert ledgers.propose("r2").verdict == "pending"
    assert ledgers.confirm(token_of(held)).state == "confirmed"
    ledgers.ledger = ledgers.first
    assert isinstance(ledgers.propose("r3"), Moved)
    assert isinstance(ledgers.confirm(token_of(held)), Moved)
    ledgers.ledger = ledgers.second
    assert ledgers.propose("r3").verdict == "duplicate"
    assert ledgers.verify()[1] is None


def test_of_a_batch_only_what_went_is_refused(ledgers: Ledgers) -> None:
    other = next(f"y{n}" for n in range(100) if key_partition(key(f"y{n}")) != key_partition(key("x")))
    ledgers.move("x", 0, 1)
    went, stayed = ledgers.run(ledgers.proposal("r1"), ledgers.proposal("r1", what=other))
    assert isinstance(went, Moved)
    assert stayed.verdict == "allow"


def test_who_waits_for_a_key_that_goes_tries_again(ledgers: Ledgers) -> None:
    ledgers.propose("r1")
    assert ledgers.run(ledgers.proposal("r2", waits=True)) == [None]
    told: list[list[bytes]] = []
    ledgers.first.watch.park("c", told.append, ledgers.first.now())
    ledgers.move("x", 0, 1)
    assert told == []
    ledgers.run()
    assert told == [[key("x")]]


def test_a_ledger_never_acts_before_the_time_of_what_came(ledgers: Ledgers) -> None:
    """Its clock is behind the other's: neither tokens nor leases go back."""
    ledgers.wait(3600)
    before = ledgers.propose("r1")
    ledgers.release(token_of(before))
    ledgers.wait(-3600)
    ledgers.move("x", 0, 1)
    ledgers.ledger = ledgers.second
    after = ledgers.propose("r2")
    assert after.expires_at >= before.expires_at
    assert Token.parse(token_of(after)).fence > Token.parse(token_of(before)).fence
    assert ledgers.second.now() >= before.expires_at - 60 * SECOND


def test_what_nobody_divided_is_the_first_ones(stores: Stores) -> None:
    bench = test_dedupe_ledger.Bench(stores)
    assert Fence(bench.engine, "ledger-0").has_partition(7)
    assert not Fence(bench.engine, "ledger-1").has_partition(7)


def test_a_place_is_only_given_where_there_is_a_map(stores: Stores) -> None:
    bench = test_memory_shard.Bench(stores)
    with writing(bench.engine).begin() as connection, pytest.raises((NotFound, StateConflict)):
        place_company(connection, "acme", pinned=True)
    bench.close()


def test_moves_wait_for_the_transaction_under_way(ledgers: Ledgers) -> None:
    """A ledger that has passed its check keeps the key until it has committed."""
    if ledgers.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time anyway")

    async def scenario() -> None:
        with ledgers.first._transaction():
            moving = asyncio.create_task(asyncio.to_thread(ledgers.move, "x", 0, 1))
            with writing(ledgers.engine).begin() as connection:
                waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
                while not connection.execute(waiting).scalar():
                    await asyncio.sleep(0.01)
            assert not moving.done()
        await moving

    asyncio.run(scenario())
    assert isinstance(ledgers.propose("r1"), Moved)
