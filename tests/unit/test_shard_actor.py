"""Recalls that travel to a shard in one call: each is answered as if it came alone, and none holds up the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from muniment.actors.wire import pack, unpack
from muniment.cluster.actor_classes import ShardActor
from muniment.cluster.settings import MemorySettings, Settings
from muniment.policies.errors import NotFound


class Body:
    """A shard that has every company loaded but one."""

    def answers_at_once(self, company: str, plan: Any) -> bool:
        return company != "cold"

    async def recall(self, company: str, plan: Any) -> dict[str, Any]:
        if company == "wrong":
            raise NotFound("no such company")
        return {"of": company}


def asked_together(actor: ShardActor, companies: list[str]) -> list[Any]:
    requests = [pack(["recall", {"company": company, "plan": {}}, [{}]]) for company in companies]

    async def ask() -> list[Any]:
        return unpack(await actor.call_together(pack(requests)))

    return [answer if answer is None else unpack(answer) for answer in asyncio.run(ask())]


def test_each_recall_of_a_batch_has_its_own_answer_and_a_slow_one_none(tmp_path: Path) -> None:
    actor = ShardActor(Settings(data_dir=tmp_path, memory=MemorySettings(preload=False)), 0)
    assert asked_together(actor, ["a", "b"]) == [None, None], "not while the shard is being opened"

    async def opened() -> None:
        actor._opening = asyncio.get_running_loop().create_future()
        actor._opening.set_result(Body())  # type: ignore[arg-type]

    asyncio.run(opened())
    answers = asked_together(actor, ["a", "cold", "wrong", "b"])
    assert answers[0] == ["ok", {"of": "a"}]
    assert answers[1] is None
    assert answers[2][0] == "error"
    assert answers[2][1]["code"] == "not_found"
    assert answers[3] == ["ok", {"of": "b"}]
