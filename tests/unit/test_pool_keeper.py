"""The pool grows while work waits and shrinks when it idles, one at a time, also while workers come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from muniment.cluster.pool_keeper import PoolKeeper
from muniment.policies.errors import Unavailable
from muniment.policies.partitioning import Kind
from muniment.policies.pool_size import PoolPolicy

POLICY = PoolPolicy(least=1, most=3, grow_after=timedelta(seconds=3), shrink_after=timedelta(seconds=10))


class Pool:
    """Workers whose work is given, and a clock; a size that was wanted is used some looks later."""

    def __init__(self, waiting: Callable[[int], float], delay: int = 2) -> None:
        self.wanted = self.used = 1
        self.waiting = waiting
        self.busy: dict[int, float] = {}
        self.now = 0.0
        self.asked: list[tuple[float, int]] = []
        self.dead: set[int] = set()
        self._delay, self._left = delay, 0

    def worker_sizes(self) -> tuple[int, int]:
        if self.wanted != self.used:
            self._left -= 1
            if self._left <= 0:
                self.used = self.wanted
        return self.wanted, self.used

    def want(self, wanted: dict[Kind, int]) -> None:
        count = wanted["worker"]
        self.asked.append((self.now, count))
        self.wanted, self._left = count, self._delay

    async def load(self, number: int) -> dict[str, float]:
        if number in self.dead:
            raise Unavailable("it restarts")
        waiting = self.waiting(number)
        self.busy[number] = self.busy.get(number, 0.0) + (1.0 if waiting else 0.0)
        return {"waiting_seconds": waiting, "busy_seconds": self.busy[number]}


def run(pool: Pool, seconds: int, keeper: PoolKeeper | None = None) -> PoolKeeper:
    made = keeper or PoolKeeper(POLICY, pool, pool.load, lambda: pool.now)

    async def scenario() -> None:
        for _ in range(seconds):
            await made.look()
            pool.now += 1

    asyncio.run(scenario())
    return made


def test_it_grows_to_its_bound_while_work_waits_and_shrinks_again() -> None:
    pool = Pool(lambda number: 2.0)
    keeper = run(pool, 40)
    assert [size for _, size in pool.asked] == [2, 3]
    assert pool.used == 3
    pool.waiting = lambda number: 0.0
    run(pool, 60, keeper)
    assert [size for _, size in pool.asked] == [2, 3, 2, 1]


def test_each_size_is_judged_by_what_was_seen_of_it() -> None:
    pool = Pool(lambda number: 2.0, delay=5)
    run(pool, 30)
    (first, _), (second, _) = pool.asked
    assert first == 3
    assert second - first >= 5 + 3


def test_a_burst_changes_nothing() -> None:
    pool = Pool(lambda number: 2.0 if pool.now % 5 < 2 else 0.0)
    run(pool, 60)
    assert pool.asked == []


def test_a_worker_that_restarts_is_passed_over() -> None:
    pool = Pool(lambda number: 2.0)
    pool.wanted = pool.used = 2
    pool.dead = {0}
    run(pool, 10)
    assert [size for _, size in pool.asked] == [3]


def test_a_size_that_somebody_asked_for_is_brought_within_the_bounds() -> None:
    pool = Pool(lambda number: 0.0)
    pool.wanted = pool.used = 5
    run(pool, 8)
    assert pool.asked[0][1] == 3
