"""A process takes in what it can do in time, and tells the rest when to come back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from muniment.deploy.admission import Admission
from muniment.policies.admission import AdmissionPolicy
from muniment.policies.errors import NotFound, Overloaded
from tests.unit.http_world import PROPOSAL, World, is_problem

POLICY = AdmissionPolicy(always=2, wait_seconds=5, assumed_per_second=10)


def held(admission: Admission, count: int) -> ExitStack:
    """So many requests under way."""
    stack = ExitStack()
    for _ in range(count):
        stack.enter_context(admission.admitted())
    return stack


def test_a_service_that_was_not_busy_lets_in_what_is_assumed_of_it() -> None:
    admission = Admission(POLICY, lambda: 0.0)
    with held(admission, 49), admission.admitted():
        pass
    with held(admission, 50), pytest.raises(Overloaded), admission.admitted():
        pass


def test_who_comes_in_follows_the_pace_of_a_busy_service() -> None:
    now = 0.0
    admission = Admission(POLICY, lambda: now)
    with held(admission, 40):
        for _ in range(4):  # in two seconds: two a second
            with admission.admitted():
                now += 0.4
        now = 2.1
        with pytest.raises(Overloaded) as refused, admission.admitted():
            pass
        assert refused.value.fields["retry_after_seconds"] == 10
    # And forty at once.
    now = 4.1
    with held(admission, 60), admission.admitted():
        pass


def test_what_fails_leaves_its_place_and_says_nothing_of_the_pace() -> None:
    admission = Admission(POLICY, lambda: 0.0)
    for _ in range(50):
        with pytest.raises(NotFound), admission.admitted():
            raise NotFound("nothing")
    with held(admission, 50), pytest.raises(Overloaded), admission.admitted():
        pass


def test_who_is_too_many_gets_429_with_retry_after_and_effects_and_probes_go_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    most = AdmissionPolicy().bound(None)

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
            ask = [asyncio.create_task(client.post("/v1/recall", json={"query": "x"})) for _ in range(most + 5)]
            while inside < most or sum(task.done() for task in ask) < 5:
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
    assert [response.status_code for response in answered] == [200] * most
    assert afterwards.status_code == 200


async def _all(tasks: list[asyncio.Task[httpx.Response]]) -> list[asyncio.Task[httpx.Response]]:
    await asyncio.wait(tasks)
    return tasks
