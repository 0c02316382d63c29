from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muniment.policies.model import SourceKind
from muniment.policies.retention import (
    EvictionPlan,
    ImportancePolicy,
    ImportanceRule,
    RetentionMode,
    RetentionSettings,
    TierView,
    default_importance,
    eviction_score,
    plan_evictions,
)

Row = tuple[str, float, int, int]


def view(rows: list[Row]) -> TierView:
    return TierView(
        [row[0] for row in rows],
        np.array([row[1] for row in rows], np.float64),
        np.array([row[2] for row in rows], np.int64),
        np.array([row[3] for row in rows], np.int64),
    )


def plan(residents: list[Row], incoming: list[Row], capacity: int, last: bool, **settings: object) -> EvictionPlan:
    return plan_evictions(
        view(residents),
        view(incoming),
        capacity=capacity,
        settings=RetentionSettings.model_validate(settings),
        last_tier=last,
    )


def one_by_one(residents: list[Row], incoming: list[Row], capacity: int, last: bool, mode: str) -> list[str]:
    """The paper's loop, written the slow way: who is left, in any order."""
    tier = list(residents)
    for row in incoming:
        if len(tier) >= capacity:
            can_leave = [r for r in tier if not (last and mode == "importance" and r[1] >= 0.85)]
            key = (
                (lambda r: (r[3], r[0])) if mode == "lru" else lambda r: (0.75 * r[1] + 0.25 * min(r[2] / 10, 1), r[0])
            )
            can_leave.sort(key=key)
            for leaver in can_leave[: max(1, int(0.15 * capacity), len(tier) - capacity + 1)]:
                tier.remove(leaver)
        tier.append(row)
    return sorted(row[0] for row in tier)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Row], list[Row], int, bool, str]:
    capacity = draw(st.integers(1, 30))
    row = st.tuples(st.sampled_from([0.1, 0.5, 0.85, 0.95, 1.0]), st.integers(0, 12), st.integers(0, 20))
    rows = draw(st.lists(row, max_size=90))
    ids = draw(st.permutations(range(len(rows))))
    named: list[Row] = [(f"f_{i:03}", *values) for i, values in zip(ids, rows, strict=True)]
    held = draw(st.integers(0, min(capacity, len(named))))
    return named[:held], named[held:], capacity, draw(st.booleans()), draw(st.sampled_from(list(RetentionMode))).value


@given(cases())
def test_a_batch_leaves_what_single_writes_would(case: tuple[list[Row], list[Row], int, bool, str]) -> None:
    residents, incoming, capacity, last, mode = case
    made = plan(residents, incoming, capacity, last, mode=mode)
    everything = residents + incoming
    left = sorted(row[0] for row in everything if row[0] not in set(made.leaving))
    essential = [row for row in everything if row[1] >= 0.85]
    assert len(set(made.leaving)) == len(made.leaving)
    if last and mode == "importance":
        assert not {row[0] for row in essential} & set(made.leaving)
        assert made.overflow == max(0, len(left) - capacity)
        assert len(left) <= max(capacity, len(essential))
    else:
        assert made.overflow == 0
        assert len(left) <= capacity
    if len(essential) < capacity or not last or mode != "importance":
        assert left == one_by_one(residents, incoming, capacity, last, mode)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_arrays_does_not_matter(
    case: tuple[list[Row], list[Row], int, bool, str], random: object
) -> None:
    residents, incoming, capacity, last, mode = case
    shuffled = list(residents)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(residents, incoming, capacity, last, mode=mode) == plan(shuffled, incoming, capacity, last, mode=mode)


def test_only_essential_facts_nothing_leaves_and_the_overflow_is_reported() -> None:
    residents = [(f"f_{i:04}", 0.95, 0, i) for i in range(100)]
    incoming = [(f"f_{i:04}", 0.9, 0, i) for i in range(100, 180)]
    assert plan(residents, incoming, 100, True) == EvictionPlan((), 80)
    assert len(plan(residents, incoming, 100, True, mode="paper").leaving) == 90
    assert len(plan(residents, incoming, 100, False).leaving) == 90


def test_a_fact_that_is_not_essential_does_not_stay_above_the_capacity() -> None:
    residents = [(f"f_{i:04}", 0.95, 0, i) for i in range(10)]
    assert plan(residents, [("f_x", 0.2, 0, 99)], 10, True) == EvictionPlan(("f_x",), 0)


def test_the_published_counts_of_scenario_b() -> None:
    """15,000 facts, L1 500, L2 5,000: 9,750 pruned; every fourth is essential here, and none of them is lost."""
    lost = {}
    for mode in RetentionMode:
        l1: dict[str, Row] = {}
        l2: dict[str, Row] = {}
        pruned: list[Row] = []
        for i in range(15_000):
            row: Row = (f"f_{i:05}", 0.95 if i % 4 == 0 else 0.5, 0, i)
            moved = plan(list(l1.values()), [row], 500, False, mode=mode).leaving if len(l1) >= 500 else ()
            l1[row[0]] = row
            leavers = [l1.pop(name) for name in moved]
            if leavers:
                gone = set(plan(list(l2.values()), leavers, 5_000, True, mode=mode).leaving)
                l2.update((r[0], r) for r in leavers)
                pruned += [l2.pop(name) for name in sorted(gone)]
        assert len(l1) <= 500
        assert len(l2) <= 5_000
        assert len(pruned) == 9_750
        lost[mode] = sum(row[1] >= 0.85 for row in pruned)
    assert lost[RetentionMode.IMPORTANCE] == lost[RetentionMode.PAPER] == 0
    assert lost[RetentionMode.LRU] > 2_000


def test_eviction_score_is_the_papers() -> None:
    scores = eviction_score(np.array([0.5, 0.95, 0.0]), np.array([0, 5, 25]), RetentionSettings())
    assert scores.tolist() == pytest.approx([0.375, 0.8375, 0.25])


def test_importance_by_rule() -> None:
    policy = ImportancePolicy(
        rules=(
            ImportanceRule(importance=0.99, source_kind=SourceKind.SYSTEM_OF_RECORD, field="contract.*"),
            ImportanceRule(importance=0.95, pattern="fatal|error|panic|fail"),
        ),
        default=0.4,
    )

    def importance(text: str, **given: object) -> float:
        values: dict[str, object] = {"explicit": None, "source_kind": SourceKind.AGENT_SUMMARY, "field": None}
        return default_importance(text=text, policy=policy, **{**values, **given})  # type: ignore[arg-type]

    assert importance("KERNEL FATAL stop") == 0.95
    assert importance("all is well") == 0.4
    assert importance("x", source_kind=SourceKind.SYSTEM_OF_RECORD, field="Contract.Price") == 0.99
    assert importance("x", source_kind=SourceKind.SYSTEM_OF_RECORD, field="price") == 0.4
    assert importance("FATAL", explicit=0.0) == 0.0


@pytest.mark.parametrize("pattern", ["(a", "a*", "a" * 300, r"(a)\1", "a.{500}b", ")|(a"])
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        ImportanceRule(importance=0.5, pattern=pattern)


def test_a_rule_without_a_condition_is_refused() -> None:
    with pytest.raises(ValidationError, match="names no condition"):
        ImportanceRule(importance=0.5)


def test_bad_settings_are_refused() -> None:
    for bad in ({"eviction_share": 0.0}, {"usage_ceiling": 0}, {"importance_weight": float("nan")}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            RetentionSettings.model_validate(bad)
