"""Who may come in: bounded by how long those before take, never less than any service can bear."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.admission import AdmissionPolicy, CompletionRate

POLICY = AdmissionPolicy(always=100, wait_seconds=5)
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


def test_the_rate_is_the_best_of_the_last_while() -> None:
    rate = CompletionRate(span_seconds=2, spans=3)
    assert rate.per_second(0) == 0
    for n in range(20):
        rate.completed(n * 0.1)
    assert rate.per_second(1.9) == 10
    assert rate.per_second(5.0) == 10, "nothing was completed since: something restarts"
    rate.completed(4.5)
    assert rate.per_second(6.1) == 0.5, "too long ago"
    assert rate.per_second(100) == 0


@given(st.lists(st.floats(0, 60), min_size=1).map(sorted))
def test_it_remembers_only_the_last_while(times: list[float]) -> None:
    rate = CompletionRate(span_seconds=2, spans=5)
    for at in times:
        rate.completed(at)
    assert len(rate._counts) <= 5
    assert 0.5 <= rate.per_second(times[-1]) <= len(times) / 2
