from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from muniment.policies.ranking import Evidence, contenders, final_scores, order, retrieval_scores, sigmoid
from muniment.policies.routing import DEFAULT, PAPER, RecallProfile


def evidence(n: int, seed: int, asked: int = 2) -> Evidence:
    random = np.random.default_rng(seed)
    return Evidence(
        similarity=random.uniform(-1, 1, n),
        lexical=random.choice([0.0, 0.5, 7.25], n),
        importance=random.uniform(0, 1, n),
        asked=asked,
    )


def shared(n: int, seed: int, asked: int = 2) -> NDArray[np.int64]:
    return np.random.default_rng(seed + 1).integers(0, asked + 1, n)


def id_of(position: int) -> str:
    return f"f_{position}"


def test_the_papers_formulas() -> None:
    given_ = Evidence(np.array([0.5, -0.5]), np.array([9.0, 0.0]), np.array([0.95, 0.5]), asked=2)
    retrieval = retrieval_scores(given_, np.array([2, 0]), PAPER)
    assert retrieval.total.tolist() == pytest.approx([0.125 + 1.6 + 0.095, -0.125 + 0.05])
    final = final_scores(retrieval, np.array([-3.0, 4.0]), np.array([0, 1]), PAPER)
    assert final.total.tolist() == pytest.approx([0.85 * -3 + 0.15 * 1.82, 0.85 * 4 + 0.15 * -0.075])


@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(0, 3), st.booleans(), st.booleans())
def test_hybrid_scores_lie_in_0_1_and_are_the_sum_of_their_terms(
    n: int, seed: int, asked: int, lexical: bool, rerank: bool
) -> None:
    profile = RecallProfile.model_validate({**DEFAULT.model_dump(), "lexical": lexical})
    scores = retrieval_scores(evidence(n, seed, asked), shared(n, seed, asked), profile)
    if rerank:
        best = order(id_of, scores.total, limit=profile.rerank_depth)
        scores = final_scores(scores, np.random.default_rng(seed).normal(0, 8, len(best)), best, profile)
    assert ((scores.total >= 0) & (scores.total <= 1 + 1e-9)).all()
    assert [sum(scores.explain(i).values()) for i in range(n)] == pytest.approx(scores.total.tolist())


@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.integers(1, 10))
def test_what_was_not_reranked_stays_below(n: int, seed: int, depth: int) -> None:
    for profile in (DEFAULT, PAPER):
        retrieval = retrieval_scores(evidence(n, seed), shared(n, seed), profile)
        best = order(id_of, retrieval.total, limit=depth)
        logits = np.random.default_rng(seed).normal(0, 5, len(best))
        answered = order(id_of, final_scores(retrieval, logits, best, profile).total, limit=n)
        assert set(answered[: len(best)].tolist()) == set(best.tolist())
        assert len(answered) == (len(best) if profile is PAPER else n)


@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(0, 3))
def test_the_best_are_among_the_contenders(n: int, seed: int, limit: int, asked: int) -> None:
    known = evidence(n, seed, asked)
    everywhere = shared(n, seed, asked)
    for profile in (DEFAULT, PAPER):
        may = contenders(known, profile, limit)
        where_it_matters = np.zeros(n, np.int64)
        where_it_matters[may] = everywhere[may]
        best, same = (
            order(id_of, retrieval_scores(known, counted, profile).total, limit=limit)
            for counted in (everywhere, where_it_matters)
        )
        assert best.tolist() == same.tolist()
        assert set(best) <= set(may)


@given(
    hnp.arrays(np.float64, st.integers(0, 30), elements=st.sampled_from([0.0, 0.25, 0.5, -np.inf])), st.integers(0, 35)
)
def test_order_is_best_first_with_ties_by_id(total: np.ndarray, limit: int) -> None:
    ids = [f"f_{(i * 7) % 31:02}" for i in range(len(total))]
    expected = sorted((i for i in range(len(total)) if np.isfinite(total[i])), key=lambda i: (-total[i], ids[i]))
    assert order(ids.__getitem__, total, limit=limit).tolist() == expected[:limit]
    kept = [i for i in expected if total[i] >= 0.25]
    assert order(ids.__getitem__, total, limit=limit, min_score=0.25).tolist() == kept[:limit]


def test_sigmoid_does_not_overflow() -> None:
    assert sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]
