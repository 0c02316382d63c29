"""What became of a fact, page by page; and what a slot's history shows where it is long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muniment.cluster.endpoints import BY_VERB
from muniment.cluster.schemas import ExpireRequest, FactsQuery, HistoryQuery, RememberRequest
from muniment.policies.errors import InvalidInput
from tests.stores import Stores
from tests.unit.service_world import ServiceWorld
from tests.unit.test_memory_shard import at, run

CRM = {"kind": "system_of_record", "id": "crm"}


@pytest.fixture
def world(stores: Stores) -> Iterator[ServiceWorld]:
    world = ServiceWorld(stores)
    yield world
    world.close()


def contact(value: str, **more: Any) -> dict[str, Any]:
    slot = {"subject": "Aurora", "field": "contact", "value": value}
    return {"text": f"the contact of Aurora is {value}", **slot, "source": CRM, **more}


async def tell(world: ServiceWorld, *facts: dict[str, Any]) -> list[str]:
    answer = await world.memory.remember(world.principal(), RememberRequest.model_validate({"facts": facts}))
    return [result["id"] for result in answer["results"]]


def test_a_history_is_read_page_by_page(world: ServiceWorld) -> None:
    async def scenario() -> None:
        root = world.principal()
        id, *_ = await tell(world, *(contact(f"person {n}") for n in range(8)))
        await tell(world, {"text": "the kettle is blue", "source": CRM})
        whole = await world.memory.memory_history(root, id, HistoryQuery())
        assert [entry["kind"] for entry in whole["history"]] == ["recorded", *["conflict"] * 7]
        assert "next" not in whole
        for limit in (1, 3, 8):
            query, entries = HistoryQuery(limit=limit), []
            while True:
                page = await world.memory.memory_history(root, id, query)
                entries += page["history"]
                assert len(page["history"]) <= limit
                if "next" not in page:
                    break
                query = HistoryQuery(limit=limit, cursor=page["next"])
            assert entries == whole["history"]
        with pytest.raises(InvalidInput):
            await world.memory.memory_history(root, id, HistoryQuery(cursor="nowhere"))

    run(scenario())


def test_the_history_of_a_fact_takes_the_bounds_of_lists() -> None:
    model = BY_VERB["history"].model
    assert model is HistoryQuery
    assert model.model_validate({"limit": "200"}).model_dump() == {"limit": 200, "cursor": None}
    with pytest.raises(ValueError, match="limit"):
        model.model_validate({"limit": "201"})


def test_what_is_in_force_is_in_a_long_history(world: ServiceWorld) -> None:
    async def scenario() -> None:
        [first] = await tell(world, contact("Dana", effective_at=at(-1).isoformat()))
        earlier = [contact(f"person {n}", effective_at=at(-2).isoformat()) for n in range(210)]
        ids = await tell(world, *earlier)
        answer = await world.memory.facts(world.principal(), FactsQuery(subject="Aurora", field="contact"))
        assert answer["current"]["id"] == first
        assert [fact["id"] for fact in answer["history"]] == [first, *ids[-200:]]

    run(scenario())


def test_a_users_own_fact_tells_its_user_that_it_was_ended(world: ServiceWorld) -> None:
    async def scenario() -> None:
        ana = world.principal("ana", user="ana")
        facts = [contact("Dana", scope="personal", user="ana")]
        told = await world.memory.remember(ana, RememberRequest.model_validate({"facts": facts}))
        id = told["results"][0]["id"]
        await world.memory.expire_memory(ana, id, ExpireRequest(reason="moved away"))
        history = (await world.memory.memory_history(ana, id, HistoryQuery()))["history"]
        assert [entry["kind"] for entry in history] == ["recorded", "retirement"]
        assert history[-1]["reason"] == "moved away"

    run(scenario())
