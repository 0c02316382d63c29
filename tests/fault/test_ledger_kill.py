"""kill -9 of a ledger's process, at named points and at random: no confirmation is lost, no key has two holders."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Confirm, Propose, Proposed, Renew, Token
from muniment.cluster.ledger_handle import LedgerHandle
from muniment.cluster.settings import Settings
from muniment.policies.errors import MunimentError, StaleReservation
from muniment.policies.fingerprint import effect_key, parse_key_paths
from tests.fault import seeds
from tests.fault.mortal_ledger import POINTS, MortalLedger

SECOND = 1_000_000
PATHS = parse_key_paths(["/what"])


@pytest.fixture
def ledger(ray_cluster: Settings, tmp_path: Path) -> Iterator[MortalLedger]:
    made = MortalLedger(ray_cluster.ray.namespace, tmp_path)
    yield made
    made.close()


async def propose(handle: LedgerHandle, what: str, run: str, wait: float = 0) -> Proposed:
    key = effect_key(company="acme", area="ops", agent="a", tool="mail", paths=PATHS, arguments={"what": what})
    decision = f"d_{uuid.uuid4().hex}"
    op = Propose(key, "acme", "ops", "a", "mail", run, "s", "key:1", decision, window=None, lease=600 * SECOND)
    return await handle.propose(op, wait)


def token_of(proposed: Proposed) -> Token:
    assert proposed.token is not None
    return Token.parse(proposed.token)


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_reserving(ledger: MortalLedger, point: str) -> None:
    async def main() -> None:
        handle = ledger.handle()
        epoch = await _ready(handle)
        ledger.kill_at("Propose", point)
        answers = await asyncio.gather(*(propose(handle, "x", f"r{i}") for i in range(20)))
        assert Counter(a.verdict for a in answers) == {"allow": 1, "pending": 19}
        assert not ledger.order.exists()
        assert (await handle.health())["epoch"] == epoch + 1
        winner = next(i for i, a in enumerate(answers) if a.verdict == "allow")
        for i in range(20):
            assert len(ledger.trail(f"r{i}")) == 1, "recorded once, however often it was sent"
        held = token_of(answers[winner])
        assert (await propose(handle, "x", "later")).verdict == "pending"
        assert (await handle.settle(Confirm("acme", *held, "key:1"))).state == "confirmed"
        assert (await propose(handle, "x", "later")).origin_run == f"r{winner}"
        assert ledger.verify() is None
        await handle.close()

    asyncio.run(main())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["Confirm", "Renew"])
def test_killed_while_confirming_or_renewing(ledger: MortalLedger, kind: str, point: str) -> None:
    async def main() -> None:
        handle = ledger.handle()
        held = token_of(await propose(handle, "x", "r0"))
        waiter = asyncio.create_task(propose(handle, "x", "waits", wait=300))
        ledger.kill_at(kind, point)
        if kind == "Renew":
            assert (await handle.settle(Renew("acme", *held, "key:1"))).state == "reserved"
        assert (await handle.settle(Confirm("acme", *held, "key:1"))).state == "confirmed"
        assert not ledger.order.exists()
        # The waiter of a ledger that died is tried again by the one that followed it.
        answer = await waiter
        assert (answer.verdict, answer.origin_run) == ("duplicate", "r0")
        assert (await propose(handle, "x", "later")).verdict == "duplicate"
        await handle.close()

    asyncio.run(main())


async def _ready(handle: LedgerHandle) -> int:
    """The epoch of the ledger, once it serves."""
    await propose(handle, "warm up", "warm up")
    return int((await handle.health())["epoch"])


def test_killed_at_random_under_load(ledger: MortalLedger) -> None:
    """Runs that contend for keys keep their own account of what was acknowledged."""
    chance = random.Random(seeds.seed())
    keys, holders, confirmed = 60, {}, {}

    async def run(handle: LedgerHandle, number: int) -> None:
        for i in chance.sample(range(keys), keys):
            what, name = f"x{i}", f"r{number}"
            answer = await propose(handle, what, name)
            if answer.verdict == "duplicate":
                assert confirmed.get(what, answer.origin_run) == answer.origin_run
                continue
            if answer.verdict == "pending":
                continue
            assert what not in confirmed, "a confirmed key was given away"
            assert what not in holders, "two runs hold a key"
            holders[what] = name
            await asyncio.sleep(0)
            await handle.settle(Confirm("acme", *token_of(answer), "key:1"))
            confirmed[what] = holders.pop(what)

    async def killer(runs: asyncio.Future[Any]) -> int:
        kills = 0
        while not runs.done() and kills < 4:
            kills += await ledger.kill()
            await asyncio.sleep(chance.uniform(0, 0.3))
        return kills

    async def main() -> None:
        handles = [ledger.handle() for _ in range(2)]
        runs = asyncio.gather(*(run(handles[n % 2], n) for n in range(12)))
        kills, _ = await asyncio.gather(killer(runs), runs)
        assert kills >= 1
        for i in range(keys):
            answer = await propose(handles[0], f"x{i}", "auditor")
            assert (answer.verdict, answer.origin_run) == ("duplicate", confirmed[f"x{i}"])
        assert ledger.verify() is None
        for handle in handles:
            await handle.close()

    asyncio.run(main())


def test_a_replaced_ledger_that_still_runs_is_fenced_and_its_callers_are_told(ledger: MortalLedger) -> None:
    async def main() -> None:
        handle = LedgerHandle(ledger.name, ledger.namespace, deadline_seconds=0.5)
        held = token_of(await propose(handle, "x", "r0"))
        successor = DedupeLedger(ledger.engine, "ledger-0")
        for work in (propose(handle, "y", "r1"), handle.settle(Confirm("acme", *held, "key:1"))):
            with pytest.raises(MunimentError) as caught:
                await work
            assert caught.value.retryable
            assert not isinstance(caught.value, StaleReservation)
        assert (await handle.health())["failure"]["code"] == "fenced"
        (settled,) = successor.execute([("c", Confirm("acme", *held, "key:1"))])
        assert not isinstance(settled, MunimentError)
        successor.close()
        await handle.close()

    asyncio.run(main())
