"""``with client.effect``: what is confirmed, released, left to lapse and renewed, for both kinds of caller."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from muniment.cluster.effect import Duplicate, Effect, EffectBlocked, EffectPending, Effects
from muniment.policies.errors import DeadlineExceeded, StaleReservation, Unavailable


class Service:
    """Answers proposals with what it is told to, and keeps what was asked."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = allow()
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.renewed = threading.Event()

    async def propose(self, **proposal: Any) -> dict[str, Any]:
        self.calls.append(("propose", proposal))
        return self.answer

    async def confirm(self, token: str, *, result_ref: str | None = None) -> dict[str, Any]:
        return self._settle("confirm", token, result_ref)

    async def renew(self, token: str) -> dict[str, Any]:
        self.renewed.set()
        return self._settle("renew", token)

    async def release(self, token: str, *, reason: str | None = None) -> dict[str, Any]:
        return self._settle("release", token, reason)

    def _settle(self, *call: Any) -> dict[str, Any]:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        return {}

    @property
    def asked(self) -> list[str]:
        return [call[0] for call in self.calls]


def allow(lease_seconds: float = 60) -> dict[str, Any]:
    reservation = {"token": "t", "expires_at": "2026-01-01T00:00:00Z", "lease_seconds": lease_seconds}
    return {"verdict": "allow", "reason": "reserved", "reservation": reservation}


DUPLICATE = {
    "verdict": "duplicate",
    "reason": "confirmed",
    "decision_id": "d_1",
    "origin": {"run_id": "r0", "step_id": "s0"},
    "run": {"duplicates": 3, "stop": True},
}


class SyncClient(Effects):
    def __init__(self, service: Service, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.service = service
        self._run = run

    def _effect_parts(self) -> Any:
        return self.service, self._run


class AsyncClient(Effects):
    def __init__(self, service: Service) -> None:
        self.service = service

    def _effect_parts(self) -> Any:
        return self.service, None


class Caller:
    """Runs a body inside an effect, in one of the two ways."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.service = Service()
        self._loop = loop
        run = lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()  # noqa: E731
        self.client: Any = SyncClient(self.service, run) if kind == "sync" else AsyncClient(self.service)

    def do(self, body: Callable[[Any], Any], **options: Any) -> Any:
        scope = {"area": "ops", "agent": "a", "tool": "mail", "arguments": {"to": "x"}, "run": "r", "step": "s"}
        effect = self.client.effect(**{**scope, **options})
        if self.kind == "sync":
            with effect as entered:
                return body(entered)

        async def main() -> Any:
            async with effect as entered:
                return await asyncio.to_thread(body, entered)

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Caller:
    return Caller(request.param, loop)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def body(_: Any) -> Any:
        raise error

    return body


def test_the_body_that_returns_is_confirmed(caller: Caller) -> None:
    def body(effect: Effect) -> str:
        assert effect.token == "t"
        effect.result_ref = "issue-7"
        return "done"

    assert caller.do(body, tainted=True, wait_ms=7) == "done"
    proposal = {
        "area": "ops",
        "agent": "a",
        "tool": "mail",
        "arguments": {"to": "x"},
        "run_id": "r",
        "step_id": "s",
        "tainted": True,
        "wait_ms": 7,
    }
    assert caller.service.calls == [("propose", proposal), ("confirm", "t", "issue-7")]


def test_the_body_that_raises_is_released(caller: Caller) -> None:
    with pytest.raises(ValueError, match="no such recipient"):
        caller.do(raising(ValueError("no such recipient")))
    assert caller.service.calls[1:] == [("release", "t", "ValueError: no such recipient")]


class ReadTimeout(Exception):  # as httpx and requests have them
    pass


class Unclear(Exception):
    pass


@pytest.mark.parametrize("error", [TimeoutError(), ReadTimeout(), DeadlineExceeded("late"), Unclear()])
def test_what_may_have_happened_is_left_to_lapse(caller: Caller, error: Exception) -> None:
    with pytest.raises(type(error)):
        caller.do(raising(error), ambiguous=(Unclear,))
    assert caller.service.asked == ["propose"]


def test_a_cancelled_or_interrupted_body_is_left_to_lapse(loop: asyncio.AbstractEventLoop) -> None:
    caller = Caller("async", loop)

    async def cancelled() -> None:
        async def work() -> None:
            async with caller.client.effect(area="o", agent="a", tool="t", arguments={}, run="r", step="s"):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        while not caller.service.calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert caller.service.asked == ["propose"]
    interrupted = Caller("sync", loop)
    with pytest.raises(KeyboardInterrupt):
        interrupted.do(raising(KeyboardInterrupt()))
    assert interrupted.service.asked == ["propose"]


def test_a_duplicate_is_raised_or_returned(caller: Caller) -> None:
    caller.service.answer = DUPLICATE
    with pytest.raises(Duplicate) as caught:
        caller.do(raising(AssertionError("the body must not run")))
    assert caught.value.origin == {"run_id": "r0", "step_id": "s0"}
    assert caught.value.stop
    returned = caller.do(lambda entered: entered, on_duplicate="return")
    assert isinstance(returned, Duplicate)
    assert caller.service.asked == ["propose", "propose"]


@pytest.mark.parametrize(("verdict", "error"), [("pending", EffectPending), ("block", EffectBlocked)])
def test_other_verdicts_are_raised(caller: Caller, verdict: str, error: type[Exception]) -> None:
    caller.service.answer = {"verdict": verdict, "reason": "why"}
    with pytest.raises(error):
        caller.do(raising(AssertionError("the body must not run")))
    assert caller.service.asked == ["propose"]


def test_a_tool_without_a_key_just_runs(caller: Caller) -> None:
    caller.service.answer = {"verdict": "allow", "reason": "unclassified"}
    assert caller.do(lambda effect: effect.token) is None
    with pytest.raises(ValueError, match="x"):
        caller.do(raising(ValueError("x")))
    assert caller.service.asked == ["propose", "propose"]


def test_the_lease_is_renewed_while_the_body_runs_and_not_after(caller: Caller) -> None:
    caller.service.answer = allow(lease_seconds=0.03)

    def body(_: Effect) -> None:
        for _i in range(3):
            caller.service.renewed.clear()
            assert caller.service.renewed.wait(30)

    caller.do(body)
    assert caller.service.asked.count("renew") >= 3
    assert caller.service.asked[-1] == "confirm"


def test_a_lost_lease_is_seen_in_the_body_and_at_the_end(caller: Caller) -> None:
    caller.service.answer = allow(lease_seconds=0.03)
    caller.service.error = StaleReservation("taken", state="reserved", holder={"run_id": "r2"})

    def body(effect: Effect) -> None:
        assert caller.service.renewed.wait(30)
        while effect.lost is None:
            pass

    with pytest.raises(StaleReservation):
        caller.do(body)
    assert caller.service.asked == ["propose", "renew", "confirm"]


def test_a_renewal_that_does_not_get_through_is_tried_again(caller: Caller) -> None:
    caller.service.answer = allow(lease_seconds=0.03)
    caller.service.error = Unavailable("down")

    def body(_: Effect) -> None:
        for _i in range(2):
            caller.service.renewed.clear()
            assert caller.service.renewed.wait(30)
        caller.service.error = None

    caller.do(body)
    assert caller.service.asked[-1] == "confirm"


def test_a_lost_confirmation_and_a_lost_release(caller: Caller) -> None:
    caller.service.error = Unavailable("down")
    with pytest.raises(Unavailable):
        caller.do(lambda _: None)
    with pytest.raises(ValueError, match="the body's own"):
        caller.do(raising(ValueError("the body's own")))
    assert caller.service.asked == ["propose", "confirm", "propose", "release"]


def test_the_decorator(loop: asyncio.AbstractEventLoop) -> None:
    caller = Caller("sync", loop)

    @caller.client.governed(area="ops", agent="a", tool="mail", key_arguments=["to", "subject"], on_duplicate="return")
    def send(to: str, body: str, subject: str = "hello") -> str:
        return f"{to} {subject} {body}"

    assert send("x", body="b", run="r", step="s") == "x hello b"
    assert caller.service.calls[0][1]["arguments"] == {"to": "x", "subject": "hello"}
    caller.service.answer = DUPLICATE
    assert isinstance(send("x", "b", run="r", step="s2"), Duplicate)
    assert caller.service.asked == ["propose", "confirm", "propose"]
    with pytest.raises(TypeError, match="nobody"):
        caller.client.governed(area="o", agent="a", tool="t", key_arguments=["nobody"])(lambda to: to)


def test_the_decorator_of_a_coroutine_function(loop: asyncio.AbstractEventLoop) -> None:
    caller = Caller("async", loop)

    @caller.client.governed(area="ops", agent="a", tool="mail", key_arguments=["to"])
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        return to

    assert asyncio.run(send("x", run="r", step="s")) == "x"
    assert caller.service.asked == ["propose", "confirm"]
    caller.service.answer = DUPLICATE
    with pytest.raises(Duplicate):
        asyncio.run(send("x", run="r", step="s"))


def test_an_asynchronous_client_needs_async_with(loop: asyncio.AbstractEventLoop) -> None:
    caller = Caller("async", loop)
    effect = caller.client.effect(area="o", agent="a", tool="t", arguments={}, run="r", step="s")
    with pytest.raises(TypeError, match="async with"), effect:
        pass
    assert caller.service.calls == []


def test_errors_survive_pickle() -> None:
    error = pickle.loads(pickle.dumps(Duplicate("d", **DUPLICATE)))
    assert (type(error), error.origin) == (Duplicate, {"run_id": "r0", "step_id": "s0"})
