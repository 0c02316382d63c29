"""An open loop: what a stalled server does to those who wait is recorded, and nobody waits for somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muniment.cluster.transport import Answer
from muniment.cluster.verbs import Request
from muniment.policies.errors import DeadlineExceeded, Overloaded, Unavailable
from tests.load.arrivals import constant
from tests.load.checks import Acknowledged, Remembered
from tests.load.open_loop import drive
from tests.load.player import Player
from tests.load.recorder import Recorder
from tests.load.workload import Task


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next thing that is due: no test waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(scenario: Any) -> Any:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(scenario)


def time() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Answers one request after the other, each in 10 ms; from second 2 to second 4 it does nothing."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self.sent: list[Request] = []

    async def send(self, tenant: int, request: Request, seconds_left: float) -> Answer:
        self.sent.append(request)
        try:
            async with asyncio.timeout(seconds_left), self._one:
                if 2 <= time() < 4:
                    await asyncio.sleep(4 - time())
                await asyncio.sleep(0.01)
        except TimeoutError:
            raise DeadlineExceeded("late") from None
        return {"results": [], "route": {"degraded": None}}

    async def close(self) -> None: ...


def player(server: Any, recorder: Recorder, **options: Any) -> Player:
    return Player(server, recorder, Acknowledged(), ["a line of a log"], name="t", start=time(), clock=time, **options)


def test_a_stalled_server_makes_the_recorded_latencies_grow() -> None:
    async def scenario() -> Recorder:
        recorder = Recorder()
        schedule = ((due, Task(n, "recall", 0)) for n, due in enumerate(constant(20, 6)))
        await drive(schedule, player(Server(), recorder).play, clock=time)
        return recorder

    recorder = run(scenario())
    assert recorder.counts()["ok"] == 120
    rows = recorder.seconds()
    assert rows[1]["p99_ms"] < 20
    # The stall takes 2 s: 40 requests were due in it, and each waited from when it was due.
    assert rows[2]["p50_ms"] > 1_000
    assert rows[2]["p99_ms"] == pytest.approx(2_000, rel=0.02)
    assert [row["due"] for row in rows[:6]] == [20] * 6
    assert rows[2]["finished"] == rows[3]["finished"] == 0
    assert recorder.total().get_value_at_percentile(50) < 50_000
    assert recorder.total().get_value_at_percentile(90) > 1_000_000


def test_a_request_has_its_deadline_from_when_it_was_due() -> None:
    async def scenario() -> tuple[Recorder, Server]:
        recorder, server = Recorder(), Server()
        schedule = ((due, Task(n, "recall", 0)) for n, due in enumerate(constant(20, 6)))
        await drive(schedule, player(server, recorder, deadline_seconds=0.5).play, clock=time)
        return recorder, server

    recorder, _ = run(scenario())
    assert recorder.counts()["late"] >= 30
    assert recorder.counts()["ok"] + recorder.counts()["late"] == 120
    assert recorder.total().get_max_value() <= 510_000


def test_a_generator_that_was_late_counts_its_own_delay() -> None:
    async def scenario() -> Any:
        recorder = Recorder()

        def schedule() -> Any:
            for n, due in enumerate(constant(10, 1)):
                if n == 5:
                    asyncio.get_running_loop().now += 3  # type: ignore[attr-defined]
                yield due, Task(n, "recall", 0)

        driven = await drive(schedule(), player(Server(), recorder).play, clock=time)
        return recorder, driven

    recorder, driven = run(scenario())
    assert driven.started == 10
    assert driven.latest_ms > 2_500
    assert recorder.total().get_max_value() > 2_500_000


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Overloaded("full", retry_after_seconds=1), "refused"),
        (Overloaded("full"), "error"),
        (Unavailable("down"), "unavailable"),
        (DeadlineExceeded("late"), "late"),
    ],
)
def test_what_becomes_of_a_request_has_a_name(error: Exception, outcome: str) -> None:
    class Failing:
        async def send(self, *_: Any) -> Answer:
            raise error

    async def scenario() -> Recorder:
        recorder = Recorder()
        await player(Failing(), recorder).play(Task(0, "recall", 0), time())
        return recorder

    recorder = run(scenario())
    assert recorder.counts()[outcome] == 1
    assert recorder.rows()[-1]["p50_ms"] is None


def test_a_lost_fact_is_found_out() -> None:
    async def scenario() -> Any:
        async def send(tenant: int, request: Request) -> Answer:
            return {"text": "another", "intact": tenant == 0, "broken_at": {}}

        acknowledged = Acknowledged([Remembered(0, "f1", "told")])
        import random

        return await acknowledged.check_all(random.Random(0), send, tenants=2)

    found = run(scenario())
    assert found["looked_at"] == 1
    assert found["lost_or_wrong"] == 2
