"""How many model workers there should be: bounded, one at a time, no swinging."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.pool_size import Look, PoolPolicy, pool_size

POLICY = PoolPolicy(least=1, most=4)
looks = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 4)), max_size=90).map(
    lambda seen: [Look(timedelta(seconds=n), waiting, busy) for n, (waiting, busy) in enumerate(seen)]
)


def seen(seconds: int, waiting: float, busy: float = 0.0) -> list[Look]:
    """A look a second, for so long."""
    return [Look(timedelta(seconds=n), waiting, busy) for n in range(seconds + 1)]


@given(size=st.integers(1, 6), looks=looks)
def test_the_size_stays_within_its_bounds_and_changes_by_one_at_the_most(size: int, looks: list[Look]) -> None:
    wanted = pool_size(POLICY, size, looks)
    assert POLICY.least <= wanted <= POLICY.most
    assert abs(wanted - size) <= 1 or size > POLICY.most


@given(size=st.integers(1, 4), looks=looks, more=st.floats(0, 5))
def test_more_waiting_never_wants_fewer_workers(size: int, looks: list[Look], more: float) -> None:
    longer = [Look(look.at, look.waiting_seconds + more, look.busy) for look in looks]
    assert pool_size(POLICY, size, longer) >= pool_size(POLICY, size, looks)


@given(size=st.integers(1, 4), looks=looks)
def test_what_grew_does_not_shrink_for_the_same_reason(size: int, looks: list[Look]) -> None:
    wanted = pool_size(POLICY, size, looks)
    if wanted > size:
        assert pool_size(POLICY, wanted, looks) >= wanted


def test_it_grows_when_work_has_waited_all_the_time() -> None:
    assert pool_size(POLICY, 1, seen(3, waiting=0.5)) == 2
    assert pool_size(POLICY, 1, seen(2, waiting=0.5)) == 1, "not yet long enough"
    assert pool_size(POLICY, 1, [*seen(8, waiting=0.5), Look(timedelta(seconds=9), 0.0, 1.0)]) == 1, "a burst"
    assert pool_size(POLICY, 4, seen(30, waiting=50)) == 4, "the bound"
    assert pool_size(POLICY, 3, seen(3, waiting=0.5)) == 3, "it is shared by three"


def test_it_shrinks_when_nothing_waits_and_the_rest_would_not_be_busy() -> None:
    assert pool_size(POLICY, 3, seen(60, waiting=0, busy=0.9)) == 2
    assert pool_size(POLICY, 3, seen(59, waiting=0, busy=0.9)) == 3, "not yet long enough"
    assert pool_size(POLICY, 3, seen(60, waiting=0, busy=1.5)) == 3, "two would be busy, and it would grow again"
    assert pool_size(POLICY, 1, seen(600, waiting=0)) == 1, "the bound"


@given(size=st.integers(1, 4))
def test_nothing_seen_changes_nothing(size: int) -> None:
    assert pool_size(POLICY, size, []) == size


def test_bounds_and_thresholds_must_make_sense() -> None:
    with pytest.raises(ValueError, match="least"):
        PoolPolicy(least=3, most=2)
    with pytest.raises(ValueError, match="shrinks"):
        PoolPolicy(least=1, most=2, shrink_below=1.0)
