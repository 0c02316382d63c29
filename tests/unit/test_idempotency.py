"""A write with an idempotency key: the same body gets the same answer, whatever happened since; another one is 409."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muniment.actors.store import memory_tables
from muniment.cluster.schemas import ConflictsQuery, ExpireRequest, RememberRequest, ResolutionRequest
from muniment.policies.errors import AlreadyRuled, IdempotencyMismatch
from tests.stores import Stores
from tests.unit.service_world import ServiceWorld
from tests.unit.test_memory_shard import run

CRM = {"kind": "system_of_record", "id": "crm"}


@pytest.fixture
def world(stores: Stores) -> Iterator[ServiceWorld]:
    world = ServiceWorld(stores)
    yield world
    world.close()


def batch(text: str, **more: Any) -> RememberRequest:
    return RememberRequest.model_validate({"facts": [{"text": text, "source": CRM}], **more})


def test_expiring_again_is_answered_also_after_the_fact_was_deleted(world: ServiceWorld) -> None:
    async def scenario() -> None:
        root = world.principal()
        [result] = (await world.memory.remember(root, batch("the kettle is blue")))["results"]
        request = ExpireRequest(reason="sold", idempotency_key="k")
        first = await world.memory.expire_memory(root, result["id"], request)
        await world.memory.delete_memory(root, result["id"])
        assert await world.memory.expire_memory(root, result["id"], request) == first
        with pytest.raises(IdempotencyMismatch):
            await world.memory.expire_memory(root, result["id"], request.model_copy(update={"reason": "lost"}))

    run(scenario())


def test_a_batch_of_which_everything_was_rejected_has_its_key(world: ServiceWorld) -> None:
    async def scenario() -> None:
        bot = world.principal("bot", "agent", source_kinds=frozenset())
        first = await world.memory.remember(bot, batch("the kettle is blue", idempotency_key="k"))
        assert [result["outcome"] for result in first["results"]] == ["rejected"]
        assert await world.memory.remember(bot, batch("the kettle is blue", idempotency_key="k")) == first
        other = batch("the kettle is red", idempotency_key="k")
        for teller in (bot, world.principal("bot")):  # also where it may say so by now
            with pytest.raises(IdempotencyMismatch):
                await world.memory.remember(teller, other)
        # Nothing was loaded for it before anybody knew how long a vector is.
        root = world.principal()
        [result] = (await world.memory.remember(root, batch("the kettle is blue", idempotency_key="k")))["results"]
        assert result["outcome"] == "stored"

    run(scenario())


@pytest.mark.parametrize("ruling", [{"decision": "new_value", "value": "mauve"}, {"decision": "accept_challenger"}])
def test_a_ruling_sent_again_shows_its_fact_as_it_was_and_nothing_of_a_deleted_one(
    world: ServiceWorld, ruling: dict[str, Any]
) -> None:
    async def scenario() -> None:
        root = world.principal()
        ana = world.principal("ana", "owner", "admin")
        for color in ("green", "mauve"):
            slot = {"subject": "kettle", "field": "color", "value": color, "tags": [color], "metadata": {color: 1}}
            fact = {"text": f"it is {color}", "source": CRM, **slot}
            await world.memory.remember(root, RememberRequest.model_validate({"facts": [fact]}))
        [conflict] = (await world.conflicts_of.list_conflicts(ana, ConflictsQuery()))["conflicts"]
        request = ResolutionRequest.model_validate({**ruling, "idempotency_key": "k"})
        first = await world.conflicts_of.resolve_conflict(ana, conflict["id"], request)
        id = first["current"]["id"]
        assert (await world.conflicts_of.resolve_conflict(ana, conflict["id"], request)) == first
        await world.memory.expire_memory(root, id, ExpireRequest(reason="painted"))
        assert (await world.conflicts_of.resolve_conflict(ana, conflict["id"], request)) == first
        await world.memory.delete_memory(root, id)
        if ruling["decision"] == "new_value":  # what was held said the same, of its own
            await world.memory.delete_memory(root, conflict["challenger"]["id"])
        again = await world.conflicts_of.resolve_conflict(ana, conflict["id"], request)
        assert again == {name: value for name, value in first.items() if name != "current"}
        with pytest.raises(AlreadyRuled) as raised:
            await world.conflicts_of.resolve_conflict(ana, conflict["id"], request.without_key())
        listed = await world.conflicts_of.list_conflicts(ana, ConflictsQuery(status="resolved"))
        for told in (raised.value.fields, listed):
            assert "mauve" not in str(told)
        with world.engine.connect() as connection:
            tables = [t for t in memory_tables.TABLES if t.name in ("facts", "conflicts", "requests")]
            rows = [str(row) for table in tables for row in connection.execute(table.select())]
        assert not [row for row in rows if "mauve" in row]

    run(scenario())
