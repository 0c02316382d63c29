"""Ledgers as real Ray actors, called by many clients at once: rule 7 through handles, waiting, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray

from muniment.actors.ledger_ops import Confirm, Propose, Proposed, Release, Settled, Token
from muniment.actors.store.effect_store import TABLES
from muniment.actors.store.engine import create_schema, open_engine, sqlite_url, writing
from muniment.actors.store.tenure import begin
from muniment.cluster.ledger_actor import create_ledger
from muniment.cluster.ledger_handle import LedgerHandle, Ledgers
from muniment.cluster.naming import actor_name
from muniment.cluster.roster import Roster
from muniment.cluster.settings import Settings
from muniment.policies.errors import DeadlineExceeded, StaleReservation, Unavailable
from muniment.policies.fingerprint import effect_key, key_partition, parse_key_paths

T = TypeVar("T")
PATHS = parse_key_paths(["/what"])
SECOND = 1_000_000
_names = itertools.count()


def proposal(what: str, run: str, step: str = "s", **changes: Any) -> Propose:
    key = effect_key(company="acme", area="ops", agent="a", tool="mail", paths=PATHS, arguments={"what": what})
    op = Propose(key, "acme", "ops", "a", "mail", run, step, "key:1", f"d_{uuid.uuid4().hex}", window=3600 * SECOND)
    return op._replace(**changes)


async def propose(handle: LedgerHandle, what: str, run: str, wait: float = 0, **changes: Any) -> Proposed:
    return await handle.propose(proposal(what, run, **changes), wait)


async def confirm(handle: LedgerHandle | Ledgers, proposed: Proposed) -> Settled:
    assert proposed.token is not None
    return await handle.settle(Confirm("acme", *Token.parse(proposed.token), "key:1"))


async def release(handle: LedgerHandle, proposed: Proposed) -> Settled:
    assert proposed.token is not None
    return await handle.settle(Release("acme", *Token.parse(proposed.token), "key:1"))


async def until(condition: Callable[[], Awaitable[T]], wanted: Callable[[T], bool], seconds: float = 60) -> T:
    """Asks until the answer is the wanted one."""
    async with asyncio.timeout(seconds):
        while not wanted(answer := await condition()):
            await asyncio.sleep(0.02)
    return answer


class Ledger:
    """One ledger of its own for a test, with any number of client processes' handles to it."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.name = f"test-ledger-{next(_names)}"
        self.namespace = settings.ray.namespace
        url = sqlite_url(directory / "effects.db")
        self.actor = create_ledger(url, 0, namespace=self.namespace, name=self.name)

    @asynccontextmanager
    async def handle(self) -> AsyncIterator[LedgerHandle]:
        handle = LedgerHandle(self.name, self.namespace)
        try:
            yield handle
        finally:
            await handle.close()

    async def waiting(self, clients: int) -> None:
        """Waits until so many clients have a poll parked."""

        async def parked() -> int:
            return int((await self.actor.health.remote())["parked"])

        await until(parked, lambda n: n == clients)


@pytest.fixture
def ledger(ray_cluster: Settings, tmp_path: Path) -> Any:
    made = Ledger(ray_cluster, tmp_path)
    yield made
    ray.kill(made.actor)


def test_of_a_hundred_clients_one_wins_two_hundred_times_over(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            for i in range(200):
                answers = await asyncio.gather(*(propose(handle, f"x{i}", f"r{c}") for c in range(100)))
                assert Counter(a.verdict for a in answers) == {"allow": 1, "pending": 99}
                winner = next(c for c, a in enumerate(answers) if a.verdict == "allow")
                assert (await confirm(handle, answers[winner])).state == "confirmed"
                others = [c for c in range(100) if c != winner]
                later = await asyncio.gather(*(propose(handle, f"x{i}", f"r{c}") for c in others))
                assert Counter((a.verdict, a.origin_run, a.origin_step) for a in later) == {
                    ("duplicate", f"r{winner}", "s"): 99
                }

    asyncio.run(main())


def test_clients_in_other_processes_meet_in_the_ledger(ledger: Ledger) -> None:
    @ray.remote(num_cpus=0)
    def client(name: str, namespace: str, number: int, rounds: int) -> list[str]:
        async def main() -> list[str]:
            handle = LedgerHandle(name, namespace)
            answers = [await propose(handle, f"y{i}", f"r{number}") for i in range(rounds)]
            await handle.close()
            return [answer.verdict for answer in answers]

        return asyncio.run(main())

    rounds = 20
    verdicts = ray.get([client.remote(ledger.name, ledger.namespace, n, rounds) for n in range(4)])
    for i in range(rounds):
        assert Counter(v[i] for v in verdicts) == {"allow": 1, "pending": 3}


def test_waiters_are_woken_by_a_confirm_and_learn_the_origin(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as one, ledger.handle() as two:
            held = await propose(one, "x", "r0")
            waiters = [asyncio.create_task(propose(h, "x", f"r{i}", wait=60)) for i, h in enumerate([one, two] * 10, 1)]
            await ledger.waiting(2)
            await confirm(two, held)
            answers = await asyncio.gather(*waiters)
            assert {(a.verdict, a.origin_run) for a in answers} == {("duplicate", "r0")}

    asyncio.run(main())


def test_a_release_lets_one_waiter_win_and_the_rest_go_on_waiting(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as one, ledger.handle() as two:
            held = await propose(one, "x", "r0")
            waiters = {asyncio.create_task(propose(h, "x", f"r{i}", wait=60)) for i, h in enumerate([one, two] * 5, 1)}
            await ledger.waiting(2)
            for left in range(9, -1, -1):
                await release(one, held)
                done, waiters = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
                (winner,) = done
                held = winner.result()
                assert held.verdict == "allow"
                assert len(waiters) == left

    asyncio.run(main())


def test_a_lapse_wakes_a_waiter(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            await propose(handle, "x", "r0", lease=SECOND)
            waiting = asyncio.create_task(propose(handle, "x", "r1", wait=60))
            assert (await waiting).verdict == "allow"

    asyncio.run(main())


def test_a_wait_that_is_over_is_pending_and_recorded_once(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            await propose(handle, "x", "r0")
            answer = await propose(handle, "x", "r1", wait=0.2)
            assert (answer.verdict, answer.reason) == ("pending", "held_by_another_run")
            at_once = await propose(handle, "x", "r0", wait=60, step_id="another")
            assert (at_once.verdict, at_once.reason) == ("pending", "held_by_another_step")

    asyncio.run(main())


def test_a_waiter_of_the_winning_run_does_not_wait_for_its_own_run(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            held = await propose(handle, "x", "r0")
            steps = [asyncio.create_task(propose(handle, "x", "r1", wait=60, step_id=s)) for s in "abc"]
            await ledger.waiting(1)
            await release(handle, held)
            answers = await asyncio.gather(*steps)
            assert sorted((a.verdict, a.reason) for a in answers) == [
                ("allow", "reserved"),
                ("pending", "held_by_another_step"),
                ("pending", "held_by_another_step"),
            ]

    asyncio.run(main())


def test_five_thousand_waiters_do_not_block_the_confirm_that_frees_them(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            held = await propose(handle, "x", "r0")
            waiters = [asyncio.create_task(propose(handle, "x", f"r{i}", wait=120)) for i in range(1, 5001)]
            await until(lambda: _places(handle), lambda n: n == 5000, seconds=120)
            await ledger.waiting(1)
            before = (await handle.health())["operations"]
            assert (await propose(handle, "y", "r0")).verdict == "allow"
            assert (await handle.health())["operations"] == before + 1
            assert (await confirm(handle, held)).state == "confirmed"
            answers = await asyncio.gather(*waiters)
            assert Counter((a.verdict, a.origin_run) for a in answers) == {("duplicate", "r0"): 5000}
            # Each tried once to wait, and once when it was told.
            assert (await handle.health())["operations"] <= before + 2 + 5001

    async def _places(handle: LedgerHandle) -> int:
        return handle.waiting

    asyncio.run(main())


def test_a_caller_that_goes_away_frees_its_place(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            held = await propose(handle, "x", "r0")
            gone = [asyncio.create_task(propose(handle, "x", f"gone{i}", wait=60)) for i in range(20)]
            await ledger.waiting(1)
            stays = asyncio.create_task(propose(handle, "x", "stays", wait=60))
            await until(lambda: _places(handle), lambda n: n == 21)
            for task in gone[:-1]:
                task.cancel()
            await release(handle, held)
            gone[-1].cancel()
            assert (await stays).verdict == "allow"
            assert handle.waiting == 0

    async def _places(handle: LedgerHandle) -> int:
        return handle.waiting

    asyncio.run(main())


def test_a_reservation_that_nobody_waited_for_is_given_back(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            # Some are cancelled before they leave, some under way, some after they were answered.
            for i in range(30):
                task = asyncio.create_task(propose(handle, f"x{i}", "gone"))
                for _ in range(i % 6):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                answer = await propose(handle, f"x{i}", "next", wait=30)
                assert answer.verdict == "allow"

    asyncio.run(main())


def test_a_retry_of_the_step_keeps_what_its_cancelled_call_won(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            for i in range(30):
                first = asyncio.create_task(propose(handle, f"x{i}", "r"))
                for _ in range(4):
                    await asyncio.sleep(0)
                first.cancel()
                retried = await propose(handle, f"x{i}", "r")
                assert retried.verdict == "allow"
                assert (await confirm(handle, retried)).state == "confirmed"

    asyncio.run(main())


def test_a_refusal_reaches_only_its_caller(ledger: Ledger) -> None:
    async def main() -> None:
        async with ledger.handle() as handle:
            held = await propose(handle, "x", "r0")
            await release(handle, held)
            answers = await asyncio.gather(
                confirm(handle, held), propose(handle, "y", "r0"), release(handle, held), return_exceptions=True
            )
            assert isinstance(answers[0], StaleReservation)
            assert answers[0].fields["state"] == "released"
            assert isinstance(answers[1], Proposed)
            assert isinstance(answers[2], Settled)

    asyncio.run(main())


def test_several_ledgers_share_the_keys(ray_cluster: Settings, tmp_path: Path) -> None:
    namespace = f"{ray_cluster.ray.namespace}-several"
    url = sqlite_url(tmp_path / "effects.db")
    engine = open_engine(url)
    create_schema(engine, TABLES)
    with writing(engine).begin() as connection:
        begin(connection, "ledger", 3)
    actors = [create_ledger(url, n, namespace=namespace, name=actor_name("ledger", n)) for n in range(3)]

    async def main() -> None:
        ledgers = Ledgers(Roster(engine, ("ledger",)), namespace)

        async def contend(i: int) -> int:
            asked = [proposal(f"x{i}", f"r{c}") for c in range(10)]
            answers = await asyncio.gather(*(ledgers.propose(op, 0) for op in asked))
            assert Counter(a.verdict for a in answers) == {"allow": 1, "pending": 9}
            await confirm(ledgers, next(a for a in answers if a.verdict == "allow"))
            later = await ledgers.propose(proposal(f"x{i}", "later"), 0)
            assert later.verdict == "duplicate"
            return ledgers.number_of(asked[0])

        used = await asyncio.gather(*(contend(i) for i in range(60)))
        assert set(used) == {0, 1, 2}
        assert (await ledgers.erase("acme"))["effects"] == 60
        assert (await ledgers.propose(proposal("x0", "r"), 0)).verdict == "allow"
        await ledgers.close()

    try:
        assert len({key_partition(proposal(f"x{i}", "r").key) for i in range(60)}) > 30
        asyncio.run(main())
    finally:
        for actor in actors:
            ray.kill(actor)


def test_a_ledger_that_is_not_there_is_unavailable(ray_cluster: Settings) -> None:
    async def main() -> None:
        handle = LedgerHandle("no-such-ledger", ray_cluster.ray.namespace, deadline_seconds=0.3)
        with pytest.raises(Unavailable) as caught:
            await propose(handle, "x", "r")
        assert not isinstance(caught.value, DeadlineExceeded)
        await handle.close()

    asyncio.run(main())
