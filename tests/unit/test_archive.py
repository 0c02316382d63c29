"""Export, import and verify over real stores: everything moves, nothing damaged is taken, nothing is stored twice."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Confirm, Propose, Token
from muniment.actors.store import archive, effect_store, transfer
from muniment.actors.store import memory_tables as t
from muniment.actors.store.engine import create_schema, open_engine
from muniment.actors.store.verify import verify
from muniment.policies.access import Role
from muniment.policies.errors import CorruptData, NotFound, StateConflict
from muniment.policies.fingerprint import effect_key, parse_key_paths
from muniment.policies.model import Tier
from tests.stores import Stores
from tests.unit.test_memory_shard import Bench, contact

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HEADER = archive.Header(created_at=1, company=None, revisions={"memory": "1"}, columns={"a": ["x", "y"]}, model=None)


class World:
    """All three stores, with a shard and a ledger over them."""

    def __init__(self, stores: Stores, damaged: bool = False) -> None:
        self._damaged = damaged
        self.bench = Bench(stores)
        effects = self.bench.engine
        if stores.url("effects") != stores.url("memory"):
            effects = stores.hasten(open_engine(stores.url("effects")))
        self.engines = {"memory": self.bench.engine, "effects": effects, "control": self.bench.control.engine}
        create_schema(effects, effect_store.TABLES)

    def fill(self) -> None:
        """Two companies with facts, a conflict, a deletion, effects, keys and a policy."""
        bench = self.bench

        async def scenario() -> None:
            for company in ("acme", "other"):
                bench.control.create_key(company, "operator", roles=frozenset({Role.AGENT}))
                facts = [{"text": f"thing {n} of {company}"} for n in range(30)]
                told = await bench.tell(*facts, contact("Carla"), contact("Dana"), company=company)
                await bench.shard.retire(
                    company=company,
                    id=told[0]["id"],
                    status="deleted",
                    reason="asked",
                    actor={"id": "ana", "groups": [], "may_claim_record": True},
                    own_only=False,
                    request={"key": "once", "hash": b"", "named": True},
                )

        asyncio.run(scenario())
        bench.policy(fields={})
        ledger = DedupeLedger(self.engines["effects"], "ledger-0")
        for number, company in enumerate(["acme", "acme", "other"]):
            (answer,) = ledger.execute([("c", proposal(company, number))])
            if number != 1:
                ledger.execute([("c", Confirm(company, *Token.parse(answer.token), "key:1"))])
        ledger.close()

    def archive(self, company: str | None = None) -> bytes:
        stream = io.BytesIO()
        transfer.export(self.engines, stream, company, NOW)
        return stream.getvalue()

    def load(self, data: bytes) -> Any:
        return transfer.load(self.engines, io.BytesIO(data))

    def close(self) -> None:
        if self._damaged:
            self.bench.shard.close()
        else:
            self.bench.close()
        self.engines["effects"].dispose()


def proposal(company: str, number: int) -> Propose:
    paths = parse_key_paths(["/to"])
    key = effect_key(company=company, area="a", agent="b", tool="mail", paths=paths, arguments={"to": number})
    what = {"area": "a", "agent": "b", "tool": "mail", "step_id": "s", "actor": "key:1"}
    return Propose(key=key, company=company, run_id=f"r{number}", decision_id=f"d_{company}{number}", **what)


class Worlds:
    """Makes worlds on stores of their own."""

    def __init__(self, folder: Path, stores: Stores) -> None:
        self._folder = folder
        self._stores = stores
        self.made: list[World] = []

    def new(self, damaged: bool = False) -> World:
        folder = self._folder / str(len(self.made))
        folder.mkdir()
        self.made.append(World(self._stores.another(folder), damaged))
        return self.made[-1]


@pytest.fixture
def worlds(tmp_path: Path, stores: Stores) -> Iterator[Worlds]:
    made = Worlds(tmp_path, stores)
    yield made
    for world in made.made:
        world.close()


@pytest.fixture
def full(worlds: Worlds) -> World:
    world = worlds.new()
    world.fill()
    return world


@pytest.fixture
def empty(worlds: Worlds) -> World:
    """Without the companies that a bench makes."""
    world = worlds.new()
    for company in ("acme", "other"):
        world.bench.control.close_company(company)
        world.bench.control.erase_company(company, "operator")
    return world


def test_all_that_companies_have_moves(full: World, empty: World) -> None:
    data = full.archive()
    stored = empty.load(data)
    assert stored["companies"] == 2
    assert stored["facts"] == 62 + 2
    assert empty.archive()[100:] == data[100:]
    assert verify(empty.engines).to_dict()["intact"]

    async def scenario() -> None:
        for company in ("acme", "other"):
            assert f"thing 7 of {company}" in await empty.bench.texts("thing 7", company=company)
        assert (await empty.bench.shard.verify()) == {"companies": 2, "facts": 60, "wrong": []}

    asyncio.run(scenario())
    ledger = DedupeLedger(empty.engines["effects"], "ledger-0")
    (again,) = ledger.execute([("c", proposal("acme", 0)._replace(run_id="later"))])
    assert (again.verdict, again.origin_run) == ("duplicate", "r0")
    ledger.close()


def test_one_company_moves_alone(full: World, empty: World) -> None:
    data = full.archive("acme")
    assert b"of other" not in data
    stored = empty.load(data)
    assert (stored["companies"], stored["effect_keys"]) == (1, 2)
    assert not empty.bench.control.has_company("other")
    assert verify(empty.engines).to_dict()["intact"]
    with pytest.raises(NotFound):
        full.archive("nobody")


def test_to_import_again_does_nothing_and_what_broke_off_goes_on(full: World, empty: World) -> None:
    data = full.archive()

    class BrokenOff(Exception):
        pass

    def break_off(rows: int) -> None:
        raise BrokenOff

    with pytest.raises(BrokenOff):
        transfer.load(empty.engines, io.BytesIO(data), break_off)
    assert not empty.bench.control.has_company("acme")
    first = empty.load(data)
    assert first["companies"] == 2
    assert not any(empty.load(data).values())
    assert empty.archive()[100:] == data[100:]


def test_a_company_that_went_its_own_way_is_not_overwritten(full: World, empty: World) -> None:
    before = full.archive()
    empty.load(before)
    asyncio.run(empty.bench.tell({"text": "news"}, contact("Eva")))
    now = empty.archive()
    assert not any(empty.load(before).values())
    asyncio.run(full.bench.tell({"text": "told after the first archive"}))
    with pytest.raises(StateConflict):
        empty.load(full.archive())
    assert empty.archive() == now


def test_an_archive_is_of_one_moment(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that are told while an archive is written are in it altogether or not at all."""
    add = archive.Writer.add
    told: list[bool] = []

    def tell_meanwhile(self: archive.Writer, table: str, rows: Any) -> None:
        if not told:
            told.append(True)
            asyncio.run(full.bench.tell({"text": "too late"}, contact("Eva")))
        add(self, table, rows)

    before = full.archive()
    monkeypatch.setattr(archive.Writer, "add", tell_meanwhile)
    assert full.archive() == before
    assert full.archive() != before


def test_a_damaged_archive_is_refused_before_anything_is_stored(full: World, empty: World) -> None:
    data = full.archive()
    nothing = empty.archive()
    for where in (0.0, 0.1, 0.5, 0.9, 1.0):
        place = min(int(len(data) * where), len(data) - 1)
        for damaged in (
            data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
            data[:place],
            data + data[: 1 + place],
            data[:place] + data[max(0, place - 40) : place + 1] + data[place:],
        ):
            with pytest.raises(CorruptData):
                empty.load(damaged)
    assert empty.archive() == nothing
    with empty.engines["memory"].connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(t.facts)).scalar() == 0


CELLS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=9))


@given(st.lists(st.lists(st.tuples(CELLS, st.text(max_size=9)), max_size=3), max_size=3), st.data())
def test_what_was_written_is_read_and_any_change_is_found(batches: list[Any], data: st.DataObject) -> None:
    stream = io.BytesIO()
    writer = archive.Writer(stream, HEADER)
    for rows in batches:
        writer.add("a", rows)
    writer.close()
    written = stream.getvalue()
    found = list(archive.read_rows(io.BytesIO(written)))
    assert [[tuple(row) for row in rows.rows] for rows in found] == [list(rows) for rows in batches]
    place = data.draw(st.integers(0, len(written) - 1))
    changed = data.draw(
        st.one_of(
            st.just(written[:place]),
            st.integers(1, 255).map(lambda x: written[:place] + bytes([written[place] ^ x]) + written[place + 1 :]),
            st.binary(min_size=1, max_size=9).map(lambda more: written + more),
        )
    )
    with pytest.raises(CorruptData):
        list(archive.read_rows(io.BytesIO(changed)))


#: Each on top of those before it.
DAMAGES = {
    "broken chain": "UPDATE memory_decisions SET body = hash WHERE seq = 1",
    "a reservation has no end or no holder": "UPDATE effect_keys SET ends_at = NULL WHERE state = 'reserved'",
    "a fact that is not current is in a tier": "UPDATE facts SET tier = 'L1' WHERE status = 'deleted'",
    "a fact's columns say something else than the fact": "UPDATE facts SET review_at = 1 WHERE tier = 'L1'",
    "an open conflict's challenger is not there": "DELETE FROM facts WHERE status = 'disputed'",
    "a vector has no fact": "DELETE FROM facts WHERE status = 'current' AND slot IS NULL",
    "a fact has no vector": "DELETE FROM fact_vectors",
    "facts of a company that is not there": "UPDATE facts SET company = 'ghost'",
    "a fact cannot be read": "UPDATE facts SET body = (SELECT hash FROM memory_decisions ORDER BY seq LIMIT 1)",
}


def test_verify_names_what_is_wrong(worlds: Worlds) -> None:
    world = worlds.new(damaged=True)
    world.fill()
    before = verify(world.engines).to_dict()
    assert (before["intact"], before["wrong"]) == (True, {})
    for problem, damage in DAMAGES.items():
        with world.engines["effects" if "effect_keys" in damage else "memory"].begin() as connection:
            connection.exec_driver_sql(damage)
        after = verify(world.engines).to_dict()
        assert not after["intact"]
        assert after["wrong"].get(problem, 0) > before["wrong"].get(problem, 0), problem
        before = after


def test_verify_compares_the_indexes_with_the_store(full: World) -> None:
    async def scenario() -> None:
        await full.bench.ask("thing")
        with full.engines["memory"].connect() as connection:
            lost = connection.execute(sa.select(t.facts.c.id).where(t.facts.c.tier == "L1").limit(1)).scalar_one()
        assert (await full.bench.shard.verify())["wrong"] == []
        full.bench.shard._tenants.by_company["acme"].spaces[Tier.L1].remove([lost])
        assert (await full.bench.shard.verify())["wrong"] == [lost]

    asyncio.run(scenario())
