"""A write with an idempotency key: the same body gets the same answer, whatever happened since; another one is 409."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from muniment.cluster.schemas import ExpireRequest, RememberRequest
from muniment.policies.errors import IdempotencyMismatch
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
