"""Who leaves memory, and that leaving loses nothing."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from muniment.actors.residency import Residency, weight
from tests.stores import Stores
from tests.unit.test_memory_shard import Bench


def residency(budget: int, idle: float = 0.0) -> tuple[Residency, list[float]]:
    now = [0.0]
    return Residency(budget, idle, lambda: now[0]), now


def test_the_least_recently_used_leave_first_and_no_more_than_must() -> None:
    held, _ = residency(100)
    for company in "abcd":
        held.used(company, 30)
    held.used("a", 30)
    assert held.leaving() == ["b"]
    held.gone("b")
    assert (held.leaving(), held.bytes) == ([], 90)
    held.used("c", 60)
    assert held.leaving() == ["d"]


def test_one_that_is_larger_than_the_budget_stays_while_it_is_used() -> None:
    held, _ = residency(100)
    held.used("small", 10)
    held.used("large", 500)
    assert held.leaving() == ["small"]
    held.gone("small")
    assert held.leaving() == []


def test_idle_ones_leave() -> None:
    held, now = residency(100, idle=60)
    held.used("a", 1)
    now[0] = 50
    held.used("b", 1)
    now[0] = 61
    held.used("c", 1)
    assert held.leaving() == ["a"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60))))
def test_after_leaving_the_budget_holds_and_the_sum_is_that_of_those_who_stay(uses: list[tuple[str, int]]) -> None:
    held, _ = residency(100)
    sizes: dict[str, int] = {}
    for company, size in uses:
        held.used(company, size)
        sizes[company] = size
        for left in held.leaving():
            held.gone(left)
            del sizes[left]
        assert held.bytes == sum(sizes.values()) <= 100
        assert company in sizes


def test_a_company_that_left_is_loaded_again_with_its_usage(stores: Stores) -> None:
    bench = Bench(stores, loaded_bytes=weight(4, 32))

    async def scenario() -> None:
        await bench.tell({"text": "the acme door"}, {"text": "the acme roof"})
        assert await bench.texts("door", top_k=1) == ["the acme door"]
        await bench.tell({"text": "the other door"}, {"text": "the other roof"}, company="other")
        while list(bench.shard._tenants.by_company) != ["other"]:
            await asyncio.sleep(0)
        assert await bench.texts("door", top_k=1) == ["the acme door"]
        usage = {r.fact.text: r.usage for r in bench.shard._tenants.by_company["acme"].residents.values()}
        assert usage == {"the acme door": 2, "the acme roof": 0}

    asyncio.run(asyncio.wait_for(scenario(), 60))
    bench.close()
