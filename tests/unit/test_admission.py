"""Who may come in: bounded by how long those before take, never less than any service can bear."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.admission import AdmissionPolicy, CompletionRate

POLICY = AdmissionPolicy(always=100, wait_seconds=5, assumed_per_second=50)
rates = st.floats(0, 5_000)
counts = st.integers(0, 50_000)


@given(under_way=counts, rate=rates)
def test_who_comes_in_waits_no_longer_than_said_unless_few_are_there(under_way: int, rate: float) -> None:
    if POLICY.retry_after(under_way, rate) is None:
        assert under_way < 100 or under_way / rate <= 5
    else:
        assert under_way >= 100


@given(under_way=counts, rate=rates)
def test_a_refusal_says_when_to_come_back_in_whole_seconds(under_way: int, rate: float) -> None:
    after = POLICY.retry_after(under_way, rate)
    assert after is None or 1 <= after <= 30


@given(under_way=counts, rate=rates, faster=rates)
def test_a_faster_service_lets_in_no_fewer(under_way: int, rate: float, faster: float) -> None:
    if POLICY.retry_after(under_way, rate) is None:
        assert POLICY.retry_after(under_way, rate + faster) is None


def test_a_service_that_was_not_busy_is_taken_at_its_word() -> None:
    assert POLICY.bound(None) == 250
    assert POLICY.bound(10) == 100
    assert POLICY.bound(80) == 400


def test_the_rate_is_the_best_of_the_busy_spans_of_the_last_while() -> None:
    rate = CompletionRate(span_seconds=2, spans=3, busy=8)
    assert rate.per_second(0) is None
    for n in range(20):
        rate.completed(n * 0.1, under_way=10)
    assert rate.per_second(1.9) is None, "the span still runs"
    assert rate.per_second(2.0) == 10
    for n in range(4):
        rate.completed(2 + n * 0.1, under_way=10)
    for n in range(90):
        rate.completed(4 + n * 0.01, under_way=3)
    assert rate.per_second(6.0) == 10, "many were completed, but there were few at a time"
    assert rate.per_second(8.1) == 2, "the best is too long ago"
    assert rate.per_second(100) is None


@given(st.lists(st.floats(0, 60), min_size=1).map(sorted))
def test_it_remembers_only_the_last_while(times: list[float]) -> None:
    rate = CompletionRate(span_seconds=2, spans=5)
    for at in times:
        rate.completed(at, under_way=100)
    assert len(rate._spans) <= 6
    found = rate.per_second(times[-1] + 2)
    assert found is not None
    assert 0.5 <= found <= len(times) / 2
