"""What a key that is bound to an area sees of others: nothing, whichever way it asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muniment.actors.ledger_ops import Settled, Token
from muniment.cluster.effect_service import EffectService
from muniment.cluster.schemas import (
    AuditRequest,
    CorrectRequest,
    FactsQuery,
    MemoriesQuery,
    RecallRequest,
    RememberRequest,
    ReservationRequest,
    SimulateRequest,
)
from muniment.policies.access import Principal
from muniment.policies.fingerprint import KEY_BYTES
from tests.stores import Stores
from tests.unit.service_world import ServiceWorld
from tests.unit.test_memory_shard import at, run

CRM = {"kind": "system_of_record", "id": "crm"}
LEDGER = {"kind": "system_of_record", "id": "finance-ledger", "author": "cfo"}


@pytest.fixture
def world(stores: Stores) -> Iterator[ServiceWorld]:
    world = ServiceWorld(stores)
    yield world
    world.close()


def told(field: str, value: str, area: str, source: Any = CRM, **more: Any) -> dict[str, Any]:
    slot = {"subject": "Aurora", "field": field, "value": value}
    return {"text": f"the {field} of Aurora is {value}", **slot, "area": area, "source": source, **more}


async def tell(world: ServiceWorld, *facts: dict[str, Any]) -> list[str]:
    answer = await world.memory.remember(world.principal(), RememberRequest.model_validate({"facts": facts}))
    return [result["id"] for result in answer["results"]]


def readers(world: ServiceWorld) -> dict[str | None, Principal]:
    """An unbound key, and one of each area."""
    return {area: world.principal(f"of-{area}", "curator", area=area) for area in (None, "sales", "finance")}


def test_evidence_from_another_area_is_not_shown(world: ServiceWorld) -> None:
    async def scenario() -> None:
        id, _ = await tell(world, told("terms", "30 days", "sales"), told("terms", "30 days", "finance", LEDGER))
        asked = RecallRequest(query="terms of Aurora")
        slot = FactsQuery(subject="Aurora", field="terms")
        for area, shown in ((None, ["finance-ledger"]), ("sales", [])):
            reader = readers(world)[area]
            [found] = (await world.memory.recall(reader, asked))["results"]
            one = await world.memory.get_memory(reader, id)
            current = (await world.memory.facts(reader, slot))["current"]
            for fact in (found["fact"], one, current):
                assert (fact["id"], [source["id"] for source in fact["evidence"]]) == (id, shown)

    run(scenario())


def test_a_key_sees_its_area_however_that_is_spelt(world: ServiceWorld) -> None:
    async def scenario() -> None:
        id, _ = await tell(world, told("terms", "30 days", "Sales"), told("terms", "30 days", "SALES", LEDGER))
        asked = RecallRequest.model_validate({"query": "terms of Aurora", "filters": {"area": "sAles"}})
        slot = FactsQuery(subject="Aurora", field="terms")
        reader = readers(world)["sales"]
        [found] = (await world.memory.recall(reader, asked))["results"]
        one = await world.memory.get_memory(reader, id)
        current = (await world.memory.facts(reader, slot))["current"]
        for fact in (found["fact"], one, current):
            assert (fact["id"], [source["id"] for source in fact["evidence"]]) == (id, ["finance-ledger"])

    run(scenario())


def test_the_audit_lists_conflicts_of_the_area_alone(world: ServiceWorld) -> None:
    async def scenario() -> None:
        await tell(world, told("contact", "Dana", "finance"), told("contact", "Lee", "finance", LEDGER))
        listed = {
            area: len((await world.conflicts_of.audit_conflicts(reader, AuditRequest()))["conflicts"])
            for area, reader in readers(world).items()
        }
        assert listed == {None: 1, "sales": 0, "finance": 1}

    run(scenario())


def test_a_simulation_tells_of_the_area_alone(world: ServiceWorld) -> None:
    async def scenario() -> None:
        summary = {"kind": "agent_summary", "id": "s"}
        await tell(world, told("contact", "Dana", "finance", summary, effective_at=at(-2).isoformat()))
        await tell(world, told("contact", "Lee", "finance", effective_at=at(-3).isoformat()))
        policy = {"ranks": [["agent_summary"], ["system_of_record"]]}
        asked = SimulateRequest.model_validate({"policy": policy})
        different = {
            area: (await world.conflicts_of.simulate_policy(reader, asked)) for area, reader in readers(world).items()
        }
        assert different["finance"] == different[None]
        assert different["finance"]["different"] == {"decisions": 1, "slots": 1}
        assert different["sales"]["different"] == {"decisions": 0, "slots": 0}
        assert different["finance"]["examined"] == {"decisions": 1, "slots": 1}
        assert different["sales"]["examined"] == {"decisions": 0, "slots": 0}
        assert (different["sales"]["decisions"], different["sales"]["slots"]) == ([], [])

    run(scenario())


def test_the_fields_most_overruled_are_those_that_the_reader_may_see(world: ServiceWorld) -> None:
    """One field however it is spelt; a user's own are nobody else's, and what has no field is none."""

    async def overruled(reader: Principal) -> dict[str, int]:
        found = (await world.conflicts_of.audit_conflicts(reader, AuditRequest()))["most_overruled"]
        return {entry["field"]: entry["times"] for entry in found}

    async def scenario() -> None:
        fields = [("Color", "sales"), ("color", "sales"), ("size", "finance")]
        for number, (field, area) in enumerate(fields):
            for value in (2 * number, 2 * number + 1):
                await tell(world, told(field, f"no. {value}", area, effective_at=at(value - 9).isoformat()))
        await tell(world, {"text": "a plain note", "area": "sales", "source": CRM})
        ana = world.principal("ana")
        mine = {"facts": [told("wish", "tea", "sales", scope="personal")]}
        wish = (await world.memory.remember(ana, RememberRequest.model_validate(mine)))["results"][0]["id"]
        change = {"reason": "wrong", "text": "a better note"}
        await world.memory.correct_memory(ana, wish, CorrectRequest(**change, value="coffee"))
        [note] = [f for f in (await world.memory.list_memories(ana, MemoriesQuery()))["memories"] if "field" not in f]
        await world.memory.correct_memory(ana, note["id"], CorrectRequest(**change))
        sales, finance = {"color": 3}, {"size": 1}
        for area, expected in ((None, sales | finance), ("sales", sales), ("finance", finance)):
            assert await overruled(readers(world)[area]) == expected
        assert await overruled(ana) == sales | finance | {"wish": 1}

    run(scenario())


def test_the_counts_are_those_of_the_area(world: ServiceWorld) -> None:
    async def scenario() -> None:
        await tell(world, told("terms", "30 days", "Sales"), told("contact", "Dana", "finance"))
        await tell(world, told("contact", "Lee", "finance", LEDGER))
        counts = {area: await world.records.stats(reader) for area, reader in readers(world).items()}
        assert {area: (c["facts"]["status"], c["open_conflicts"]) for area, c in counts.items()} == {
            None: ({"current": 2, "disputed": 1}, {"conflict": 1}),
            "sales": ({"current": 1}, {}),
            "finance": ({"current": 1, "disputed": 1}, {"conflict": 1}),
        }
        assert [counts[area]["facts"]["tier"] for area in (None, "sales")] == [{"L1": 2}, {"L1": 1}]

    run(scenario())


class Asked:
    """Ledgers that keep what they were asked."""

    def __init__(self) -> None:
        self.ops: list[Any] = []

    async def settle(self, op: Any) -> Settled:
        self.ops.append(op)
        return Settled("confirmed")


def test_a_ledger_is_told_what_the_key_that_settles_is_bound_to(world: ServiceWorld) -> None:
    ledgers = Asked()
    effects = EffectService(ledgers, None, None)  # type: ignore[arg-type]
    asked = ReservationRequest(token=Token(bytes(KEY_BYTES), 1, bytes(8)).encode())
    reader = world.principal("of-sales", "agent", area="sales", agent="mailer")
    for verb in (effects.confirm, effects.renew, effects.release):
        run(verb(reader, asked))
    assert [(op.area, op.agent) for op in ledgers.ops] == [("sales", "mailer")] * 3
