"""When a load test's requests are due, and which tenants they are of."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.load.arrivals import bursts, constant, poisson
from tests.load.workload import MIX, mix_of, tasks, zipf

rates = st.floats(0.5, 200)
lengths = st.floats(1, 60)


def test_constant_arrivals_are_exact() -> None:
    assert list(constant(4, 1.5)) == [0, 0.25, 0.5, 0.75, 1.0, 1.25]


@given(rate=rates, seconds=lengths, seed=st.integers(0, 1_000))
def test_arrivals_are_in_order_within_the_run_and_the_same_for_the_same_seed(
    rate: float, seconds: float, seed: int
) -> None:
    for make in (poisson, bursts):
        due = list(make(rate, seconds, random.Random(seed)))
        assert due == sorted(due)
        assert due == list(make(rate, seconds, random.Random(seed)))
    assert all(0 < at < seconds for at in poisson(rate, seconds, random.Random(seed)))


def test_poisson_has_its_rate_and_its_scatter() -> None:
    due = list(poisson(50, 400, random.Random(1)))
    assert len(due) == pytest.approx(20_000, rel=0.03)
    per_second = Counter(int(at) for at in due)
    counts = [per_second[second] for second in range(400)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert variance == pytest.approx(mean, rel=0.3)


def test_bursts_have_the_average_rate_and_come_in_the_first_part_of_each_period() -> None:
    due = list(bursts(20, 200, random.Random(2), period=10, on=0.2))
    assert len(due) == pytest.approx(4_000, rel=0.06)
    assert all(at % 10 <= 2 for at in due)
    assert {int(at // 10) for at in due} == set(range(20))


def test_zipf_shares_fall_as_the_rank_rises() -> None:
    shares = zipf(4, 1.0)
    assert sum(shares) == pytest.approx(1)
    assert [shares[0] / share for share in shares] == pytest.approx([1, 2, 3, 4])
    assert zipf(3, 0.0) == pytest.approx([1 / 3] * 3)


def test_tasks_follow_the_mix_and_the_tenants_shares() -> None:
    drawn = list(islice(tasks(7, tenants=5), 20_000))
    assert drawn == list(islice(tasks(7, tenants=5), 20_000))
    assert [task.number for task in drawn[:3]] == [0, 1, 2]
    kinds = Counter(task.kind for task in drawn)
    assert {kind: 100 * kinds[kind] / len(drawn) for kind in MIX} == pytest.approx(dict(MIX), abs=1.5)
    tenants = Counter(task.tenant for task in drawn)
    assert [tenants[n] / len(drawn) for n in range(5)] == pytest.approx(zipf(5, 1.0), abs=0.015)


def test_a_mix_is_read_and_an_unknown_kind_refused() -> None:
    assert mix_of("recall=70,remember=30") == {"recall": 70, "remember": 30}
    with pytest.raises(ValueError, match="forget"):
        mix_of("forget=1")
