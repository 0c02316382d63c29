"""Choosing among model workers: least loaded, elsewhere when one is dead or full, queries together, bulk in parts."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from muniment.actors.model_worker import Priority
from muniment.actors.wire import unpack
from muniment.cluster import handles
from muniment.cluster.handles import Unreachable, WorkerPool
from muniment.policies.errors import Overloaded, Unavailable


class Worker:
    """Embeds a text as its length; may be dead or full."""

    def __init__(self, name: str, fails: Exception | None = None) -> None:
        self.name = name
        self.fails = fails
        self.in_flight = 0
        self.calls: list[list[str]] = []

    async def attempt(self, request: bytes, deadline: float) -> Any:
        arguments = unpack(request)[1]
        self.in_flight += 1
        try:
            await asyncio.sleep(0)
            if self.fails is not None:
                raise self.fails
            self.calls.append(arguments["texts"])
            await asyncio.sleep(0.001)
            return np.array([[len(text), 1] for text in arguments["texts"]], np.float32).tobytes()
        finally:
            self.in_flight -= 1


def lengths(data: bytes) -> list[float]:
    return np.frombuffer(data, np.float32).reshape(-1, 2)[:, 0].tolist()


def pool(*workers: Worker) -> WorkerPool:
    return WorkerPool(lambda: workers)  # type: ignore[arg-type]


def test_a_lone_query_leaves_at_once_and_those_that_come_meanwhile_travel_together() -> None:
    async def scenario() -> None:
        worker = Worker("worker-0")
        one = pool(worker)
        first = asyncio.create_task(one.embed(["first"], Priority.QUERY))
        while not worker.calls:
            await asyncio.sleep(0)
        others = [asyncio.create_task(one.embed(["x" * n], Priority.QUERY)) for n in range(1, 30)]
        assert lengths(await first) == [5.0]
        assert [lengths(data) for data in await asyncio.gather(*others)] == [[float(n)] for n in range(1, 30)]
        assert [len(call) for call in worker.calls] == [1, 29]

    asyncio.run(scenario())


def test_bulk_goes_in_parts_to_all_workers_and_comes_back_in_order() -> None:
    async def scenario() -> None:
        workers = [Worker("worker-0"), Worker("worker-1")]
        texts = ["x" * n for n in range(1, 301)]
        assert lengths(await pool(*workers).embed(texts, Priority.INGEST)) == [float(n) for n in range(1, 301)]
        assert all(worker.calls for worker in workers)
        assert max(len(call) for worker in workers for call in worker.calls) <= 64

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [Unreachable("worker-0"), Overloaded("full", retry_after_seconds=1)])
def test_a_dead_or_full_worker_costs_another_try_elsewhere(failure: Exception) -> None:
    async def scenario() -> None:
        bad, good = Worker("worker-0", failure), Worker("worker-1")
        both = pool(bad, good)
        assert lengths(await both.embed(["abc"], Priority.QUERY)) == [3.0]
        assert good.calls == [["abc"]]

    asyncio.run(scenario())


def test_when_all_are_full_or_dead_the_caller_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        full = [Worker(f"worker-{n}", Overloaded("full", retry_after_seconds=1)) for n in range(2)]
        with pytest.raises(Overloaded):
            await pool(*full).embed(["abc"], Priority.QUERY)
        half = [full[0], Worker("worker-1", Unreachable("worker-1"))]
        with pytest.raises(Overloaded):
            await pool(*half).embed(["abc"], Priority.QUERY)
        monkeypatch.setattr(handles, "DEADLINE_SECONDS", 0.3)
        with pytest.raises(Unavailable):
            await pool(Worker("worker-0", Unreachable("worker-0"))).embed(["abc"], Priority.QUERY)

    asyncio.run(scenario())


def test_bulk_waits_for_its_turn_so_long_and_what_has_begun_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handles, "MAX_WAIT_SECONDS", 0.05)

    class Slow(Worker):
        gate = asyncio.Event()

        async def attempt(self, request: bytes, deadline: float) -> Any:
            await self.gate.wait()
            return await super().attempt(request, deadline)

    async def scenario() -> None:
        worker = Slow("worker-0")
        one = pool(worker)
        large = asyncio.create_task(one.embed(["x"] * 640, Priority.INGEST))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await one.embed(["late"] * 200, Priority.INGEST)
        assert refused.value.fields["retry_after_seconds"] >= 1
        Slow.gate.set()
        assert lengths(await large) == [1.0] * 640
        assert all(text == "x" for call in worker.calls for text in call), "of what was refused nothing is done"
        assert lengths(await one.embed(["abc"], Priority.INGEST)) == [3.0]

    asyncio.run(scenario())
