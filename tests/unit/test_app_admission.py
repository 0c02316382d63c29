"""A process takes in what it can do in time, and tells the rest when to come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from muniment.deploy.admission import Admission
from muniment.policies.admission import AdmissionPolicy
from muniment.policies.errors import NotFound, Overloaded
from tests.unit.http_world import PROPOSAL, World, is_problem

POLICY = AdmissionPolicy(always=2, wait_seconds=5)


def test_few_come_in_whatever_the_pace_and_more_where_it_is_fast() -> None:
    now = 0.0
    admission = Admission(POLICY, lambda: now)
    for _ in range(10):
        with admission.admitted():
            now += 0.2
    # Five a second, and five seconds: 25 may be under way.
    held = [admission.admitted() for _ in range(25)]
    for one in held:
        one.__enter__()
    with pytest.raises(Overloaded) as refused, admission.admitted():
        pass
    assert refused.value.fields["retry_after_seconds"] == 3
    held[0].__exit__(None, None, None)
    with admission.admitted():
        pass


def test_what_fails_leaves_its_place_and_says_nothing_of_the_pace() -> None:
    admission = Admission(POLICY, lambda: 0.0)
    for _ in range(50):
        with pytest.raises(NotFound), admission.admitted():
            raise NotFound("nothing")
    with admission.admitted(), admission.admitted(), pytest.raises(Overloaded), admission.admitted():
        pass


def test_who_is_too_many_gets_429_with_retry_after_and_effects_and_probes_go_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    always = AdmissionPolicy().always

    async def scenario() -> tuple[list[httpx.Response], list[httpx.Response], httpx.Response]:
        free = asyncio.Event()
        inside = 0

        async def held() -> dict[str, Any]:
            nonlocal inside
            inside += 1
            await free.wait()
            return {}

        world.memory.answer = held
        transport = httpx.ASGITransport(world.app)
        headers = {"Authorization": f"Bearer {world.key('agent')}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            ask = [asyncio.create_task(client.post("/v1/recall", json={"query": "x"})) for _ in range(always + 5)]
            while inside < always or sum(task.done() for task in ask) < 5:
                await asyncio.sleep(0)
            refused = [task.result() for task in ask if task.done()]
            meanwhile = [await client.post("/v1/effects/propose", json=PROPOSAL), await client.get("/healthz")]
            free.set()
            answered = [task.result() for task in await asyncio.wait_for(_all(ask), 30) if task.result() not in refused]
            afterwards = await client.post("/v1/recall", json={"query": "x"})
        assert [response.status_code for response in meanwhile] == [200, 200]
        return refused, answered, afterwards

    refused, answered, afterwards = asyncio.run(scenario())
    world.close()
    assert len(refused) == 5
    for response in refused:
        is_problem(response, 429, "overloaded")
        assert int(response.headers["retry-after"]) >= 1
    assert [response.status_code for response in answered] == [200] * always
    assert afterwards.status_code == 200


async def _all(tasks: list[asyncio.Task[httpx.Response]]) -> list[asyncio.Task[httpx.Response]]:
    await asyncio.wait(tasks)
    return tasks
