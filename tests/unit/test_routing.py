from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muniment.policies.routing import (
    DEFAULT,
    PAPER,
    PROFILES,
    Decision,
    Gate,
    GateCandidate,
    GateDecision,
    GateInputs,
    Reason,
    RecallProfile,
    decide,
)


def gate(
    similarity: float | None = 0.9,
    candidates: tuple[GateCandidate, ...] = (GateCandidate(("ana",), "ana called"),),
    asked: tuple[str, ...] = (),
    profile: RecallProfile = DEFAULT,
    top_k: int = 5,
) -> GateDecision:
    return decide(
        GateInputs(
            top_similarity=similarity,
            candidates=candidates,
            query_entities=asked,
            top_k=top_k,
            threshold=0.6,
            profile=profile,
        )
    )


def test_each_reason() -> None:
    disabled = DEFAULT.model_copy(update={"gate": Gate.DISABLED})
    assert gate().reason is Reason.SUFFICIENT
    assert gate(None, ()).reason is Reason.EMPTY_L1
    assert gate(0.59).reason is Reason.LOW_SIMILARITY
    assert gate(0.6).reason is Reason.SUFFICIENT
    assert gate(asked=("bob",)).reason is Reason.UNCOVERED_ENTITIES
    assert gate(0.1, asked=("bob",), profile=disabled).reason is Reason.DISABLED


def test_the_profiles_threshold_beats_the_models() -> None:
    assert gate(0.83, profile=PAPER).threshold == 0.84
    assert gate(0.83, profile=PAPER).reason is Reason.LOW_SIMILARITY
    assert gate(0.83).threshold == 0.6


def test_coverage_looks_at_all_that_would_be_answered_but_no_further() -> None:
    candidates = (GateCandidate(("bob",)), GateCandidate((), "we met ana at r17-m1-n0"))
    assert gate(candidates=candidates, asked=("ana", "r17-m1")).reason is Reason.SUFFICIENT
    assert gate(candidates=candidates, asked=("ana",), top_k=1).uncovered == ("ana",)


def test_one_candidate_must_speak_of_everything() -> None:
    candidates = (GateCandidate(("bob", "region-1")), GateCandidate(("ana",)))
    made = gate(candidates=candidates, asked=("ana", "bob", "region-1"))
    assert (made.reason, made.uncovered) == (Reason.UNCOVERED_ENTITIES, ("ana",))


def test_the_paper_sees_its_four_patterns_in_the_first_candidate_only() -> None:
    asked = ("auth-svc", "subsystem-12")
    first = GateCandidate(("subsystem-12",), "")
    other = GateCandidate(("subsystem-3",), "subsystem-12")
    assert gate(candidates=(first, other), asked=asked, profile=PAPER).reason is Reason.SUFFICIENT
    assert gate(candidates=(other, first), asked=asked, profile=PAPER).uncovered == ("subsystem-12",)


def test_the_decision_as_plain_values() -> None:
    assert gate(asked=("bob",)).to_dict() == {
        "decision": "search_l2",
        "reason": "uncovered_entities",
        "top_similarity": 0.9,
        "threshold": 0.6,
        "query_entities": ["bob"],
        "uncovered": ["bob"],
    }


NAMES = st.lists(st.sampled_from(["ana", "bob", "r1", "r1-m1"]), max_size=3, unique=True).map(tuple)


@given(
    st.none() | st.floats(-1, 1),
    st.lists(NAMES, max_size=6),
    NAMES,
    st.sampled_from(sorted(PROFILES)),
    st.integers(1, 6),
)
def test_decision_and_evidence_agree(
    similarity: float | None, facts: list[tuple[str, ...]], asked: tuple[str, ...], name: str, top_k: int
) -> None:
    candidates = tuple(GateCandidate(entities) for entities in facts)
    made = gate(similarity, candidates, asked, PROFILES[name], top_k)
    assert set(made.uncovered) <= set(made.query_entities) <= set(asked)
    assert (made.decision is Decision.L1_ONLY) == (made.reason is Reason.SUFFICIENT)
    if made.reason is Reason.SUFFICIENT:
        assert not made.uncovered
        assert similarity is not None
        assert similarity >= made.threshold


def test_contradictory_profiles_are_refused() -> None:
    for bad in (
        {"fusion": "paper", "lexical": True},
        {"dense_weight": 0.0, "lexical": False},
        {"l1_k": 0},
        {"cross_encoder_weight": 1.5},
        {"threshold": float("nan")},
        {"unknown": 1},
    ):
        with pytest.raises(ValidationError):
            RecallProfile.model_validate(bad)
