"""What concurrent clients are answered by a ledger that is killed or replaced again and again is linearizable."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muniment.actors import ledger_ops as ops
from muniment.cluster.ledger_handle import LedgerHandle
from muniment.cluster.settings import Settings
from muniment.policies.errors import (
    DeadlineExceeded,
    MunimentError,
    NotFound,
    StaleReservation,
    StateConflict,
    Unavailable,
)
from muniment.policies.fingerprint import effect_key, parse_key_paths
from tests.fault import seeds
from tests.fault.key_model import REFUSED, STALE, Forget, Key, Propose, Settle, step
from tests.fault.linearizability import Call, unexplained
from tests.fault.mortal_ledger import POINTS, MortalLedger
from tests.fault.replaced_ledger import ReplacedLedger

COMPANY = "acme"
PATHS = parse_key_paths(["/what"])
KEYS = 5
RUNS = 10
TURNS = 10
KILLS = 4
#: Longer than any test: a lapse would be one more thing that may happen at any time.
LEASE = 86_400_000_000
Handle = LedgerHandle | ReplacedLedger
Doing = Callable[[Handle, bool], Awaitable[Any]]
_SETTLE = {"confirm": ops.Confirm, "release": ops.Release, "renew": ops.Renew}


class Recorder:
    """Calls the ledger and writes down what it answered to whom and when, per key."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = handles
        self.scope = uuid.uuid4().hex
        self._clock = itertools.count()
        self.histories: dict[int, list[Call]] = {key: [] for key in range(KEYS)}
        self.answered = 0
        self.lost = 0

    async def call(self, run: int, key: int, asked: Any, doing: Doing) -> Any:
        """The answer; while it is lost, the call is sent again, which is another call."""
        handle = self._handles[run % len(self._handles)]
        again = False
        while True:
            began = next(self._clock)
            try:
                answer = await doing(handle, again)
            except StaleReservation:
                answer = STALE
            except (NotFound, StateConflict):
                answer = REFUSED
            except (Unavailable, DeadlineExceeded):
                self.histories[key].append(Call(asked, None, began))
                self.lost += 1
                await serving(handle)
                again = True
                continue
            self.histories[key].append(Call(asked, answer, began, next(self._clock)))
            self.answered += 1
            return answer


async def serving(handle: Handle) -> None:
    """Until the ledger is there again."""
    while True:
        try:
            if (await handle.health())["failure"] is None:
                return
        except MunimentError:
            pass
        await asyncio.sleep(0.05)


def key_bytes(recorder: Recorder, key: int) -> bytes:
    """A key that no other history has."""
    what = f"{recorder.scope} {key}"
    return effect_key(company=COMPANY, area="ops", agent="a", tool="mail", paths=PATHS, arguments={"what": what})


async def propose(recorder: Recorder, run: int, key: int) -> ops.Token | None:
    token: list[ops.Token] = []
    decision = f"d_{uuid.uuid4().hex}"

    async def doing(handle: Handle, again: bool) -> Any:
        op = ops.Propose(
            key_bytes(recorder, key),
            COMPANY,
            "ops",
            "a",
            "mail",
            f"r{run}",
            "s",
            "key:1",
            decision,
            lease=LEASE,
            again=again,
        )
        found = await handle.propose(op, 0)
        if found.token is not None:
            token.append(ops.Token.parse(found.token))
            return ("allow", token[-1].fence)
        return ("pending",) if found.verdict == "pending" else ("duplicate", found.origin_run, found.origin_step)

    await recorder.call(run, key, Propose(f"r{run}", "s"), doing)
    return token[-1] if token else None


async def settle(recorder: Recorder, run: int, key: int, verb: str, token: ops.Token) -> Any:
    async def doing(handle: Handle, again: bool) -> Any:
        return ((await handle.settle(_SETTLE[verb](COMPANY, *token, "key:1"))).state,)

    return await recorder.call(run, key, Settle(verb, token.fence), doing)


async def forget(recorder: Recorder, run: int, key: int) -> None:
    decision = f"d_{uuid.uuid4().hex}"

    async def doing(handle: Handle, again: bool) -> Any:
        scope = (COMPANY, "ops", "a", "mail")
        await handle.forget(ops.Forget(key_bytes(recorder, key), *scope, "key:1", "wrong", decision, again=again))
        return ("forgotten",)

    await recorder.call(run, key, Forget(decision), doing)


async def work(recorder: Recorder, run: int, chance: random.Random) -> None:
    """One run: proposes, and settles what it got, sometimes with a token from before."""
    old: list[tuple[int, ops.Token]] = []
    for _ in range(TURNS):
        key = chance.randrange(KEYS)
        token = await propose(recorder, run, key)
        if token is not None:
            if chance.random() < 0.3:
                await settle(recorder, run, key, "renew", token)
            await settle(recorder, run, key, chance.choice(["confirm", "confirm", "release"]), token)
            old.append((key, token))
        elif chance.random() < 0.3:
            await forget(recorder, run, key)
        if old and chance.random() < 0.2:
            before, stale = chance.choice(old)
            await settle(recorder, run, before, chance.choice(["confirm", "release"]), stale)


async def kill(ledger: MortalLedger, recorder: Recorder, chance: random.Random, over: asyncio.Future[Any]) -> int:
    """Kills the ledger each time when some more was answered: at once, or at a named point of what comes next."""
    kills = 0
    while not over.done() and kills < KILLS:
        wanted = recorder.answered + chance.randrange(5, 30)
        while recorder.answered < wanted and not over.done():
            await asyncio.sleep(0.005)
        if chance.random() < 0.5:
            ledger.kill_at(chance.choice(["Propose", "Confirm", "Release", "Forget"]), chance.choice(POINTS))
            kills += 1
        else:
            kills += await ledger.kill()
    return kills


@pytest.fixture
def ledger(ray_cluster: Settings, tmp_path: Path) -> Iterator[MortalLedger]:
    made = MortalLedger(ray_cluster.ray.namespace, tmp_path)
    yield made
    made.close()


def check(recorder: Recorder, disturbances: int) -> None:
    print(f"{disturbances} times, {recorder.answered} answers, {recorder.lost} lost", flush=True)
    assert disturbances
    assert recorder.lost
    for key, history in recorder.histories.items():
        assert not unexplained(history, Key(), step), f"key {key}: {history}"


@pytest.mark.timeout(7200)
def test_every_key_is_linearizable_while_the_ledger_is_killed(ledger: MortalLedger) -> None:
    async def one(seed: int) -> None:
        chance = random.Random(seed)
        handles = [ledger.handle(deadline_seconds=0) for _ in range(3)]
        recorder = Recorder(handles)
        await serving(handles[0])
        runs = asyncio.gather(*(work(recorder, run, random.Random(f"{seed} {run}")) for run in range(RUNS)))
        kills, _ = await asyncio.gather(kill(ledger, recorder, chance, runs), runs)
        ledger.order.unlink(missing_ok=True)
        for handle in handles:
            await handle.close()
        check(recorder, kills)
        assert ledger.verify() is None

    for _ in range(seeds.rounds(1)):
        asyncio.run(one(seeds.seed()))


@pytest.mark.timeout(7200)
def test_every_key_is_linearizable_while_ledgers_are_replaced_and_the_old_ones_run_on(tmp_path: Path) -> None:
    async def one(seed: int, folder: Path) -> None:
        folder.mkdir()
        chance = random.Random(seed)
        ledger = ReplacedLedger(folder)
        recorder = Recorder([ledger])
        await serving(ledger)
        runs = asyncio.gather(*(work(recorder, run, random.Random(f"{seed} {run}")) for run in range(RUNS)))
        replaced = 0
        while not runs.done() and replaced < KILLS:
            wanted = recorder.answered + chance.randrange(5, 30)
            while recorder.answered < wanted and not runs.done():
                await asyncio.sleep(0)
            ledger.replace()
            replaced += 1
        await runs
        check(recorder, replaced)
        assert ledger.close() is None

    for number in range(seeds.rounds(3)):
        asyncio.run(one(seeds.seed(), tmp_path / str(number)))
