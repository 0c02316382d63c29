"""From the evidence about each candidate to one score per candidate, and from scores to an order.

All scores run upwards: higher is better. Two formulas, chosen by the profile:

- ``paper``: ``sim³ + 0.8·|shared entities| + 0.1·importance``; reranked: ``0.85·ce + 0.15·score`` with the
  cross-encoder's logit as ``ce`` (seed 002). No fixed scale.
- ``hybrid``: every term lies in [0, 1], and so does their weighted mean; reranked: the same mix with the sigmoid of the
  logit as ``ce``. So a final score lies in [0, 1], and ``min_score`` means the same for every query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from muniment.policies.routing import Fusion, RecallProfile

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about n candidates of both tiers; arrays of shape (n,), in the same order.

    ``similarity``: cosine of query and fact, known for every candidate, also for those that only the lexical index
    found. ``lexical``: BM25 score on one scale for both tiers, 0 where no term matches. ``importance``: in [0, 1].
    """

    similarity: Floats
    lexical: Floats
    importance: Floats
    asked: int
    """How many entities the query has."""


def joined(parts: Sequence[Evidence]) -> Evidence:
    """The evidence about the candidates of all parts, of which there is at least one; they answer one query."""
    if len(parts) == 1:
        return parts[0]
    return Evidence(
        similarity=np.concatenate([part.similarity for part in parts]),
        lexical=np.concatenate([part.lexical for part in parts]),
        importance=np.concatenate([part.importance for part in parts]),
        asked=parts[0].asked,
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """``total`` of shape (n,), and the weighted terms that add up to it, each of shape (n,), for ``explain``."""

    total: Floats
    terms: dict[str, Floats]

    def explain(self, position: int) -> dict[str, float]:
        """The weighted terms of one candidate."""
        return {name: float(values[position]) for name, values in self.terms.items()}


def retrieval_scores(evidence: Evidence, shared: Counts, profile: RecallProfile) -> Scores:
    """The score of every candidate before reranking, by the profile's fusion.

    ``shared`` of shape (n,): how many of the query's entities each fact names (``entities.count_shared``).
    """
    return _summed((_paper_terms if profile.fusion is Fusion.PAPER else _hybrid_terms)(evidence, shared, profile))


def contenders(evidence: Evidence, profile: RecallProfile, limit: int) -> Counts:
    """Where the candidates are that may be among the best ``limit``, whatever entities they share with the query: the
    others' ``shared`` need not be counted. Ascending."""
    none = np.zeros(len(evidence.similarity), np.int64)
    least = retrieval_scores(evidence, none, profile).total
    if len(least) <= limit:
        return np.arange(len(least))
    most = retrieval_scores(evidence, none + evidence.asked, profile).total
    return np.flatnonzero(most >= np.partition(least, len(least) - limit)[len(least) - limit])


def final_scores(retrieval: Scores, logits: Floats, reranked: NDArray[np.int64], profile: RecallProfile) -> Scores:
    """The scores after reranking: ``w·ce + (1-w)·score``.

    ``logits`` of shape (m,) belong to the candidates at the positions ``reranked``. The others were ranked below and
    stay below: under ``hybrid`` their ``ce`` is 0; under ``paper``, which answers reranked candidates only, they are
    not answered (minus infinity).
    """
    weight = profile.cross_encoder_weight
    missing = -np.inf if profile.fusion is Fusion.PAPER else 0.0
    ce = np.full(len(retrieval.total), missing)
    ce[reranked] = logits if profile.fusion is Fusion.PAPER else sigmoid(np.asarray(logits, np.float64))
    terms = {name: values * (1 - weight) for name, values in retrieval.terms.items()}
    terms["cross_encoder"] = ce * weight if weight else np.where(np.isfinite(ce), 0.0, ce)
    return _summed(terms)


def order(
    id_of: Callable[[int], str], total: Floats, *, limit: int, min_score: float | None = None
) -> NDArray[np.int64]:
    """The positions of the best ``limit`` candidates, best first, equal scores by id; none below ``min_score``, none
    that is not finite. ``id_of``: the id of the candidate at a position, asked of those alone that may be among them.
    """
    allowed = np.isfinite(total) if min_score is None else np.isfinite(total) & (total >= min_score)
    kept = np.flatnonzero(allowed)
    if len(kept) > limit > 0:
        bound = np.partition(total[kept], len(kept) - limit)[len(kept) - limit]
        kept = kept[total[kept] >= bound]
    places = kept.tolist()
    best = sorted(zip((-total[kept]).tolist(), map(id_of, places), places, strict=True))[: max(0, limit)]
    return np.array([place for _, _, place in best], np.int64)


def sigmoid(logits: Floats) -> Floats:
    """``1 / (1 + e^-x)`` without overflow."""
    values: Floats = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return values


def _summed(terms: dict[str, Floats]) -> Scores:
    return Scores(reduce(np.add, terms.values()), terms)


def _paper_terms(evidence: Evidence, shared: Counts, profile: RecallProfile) -> dict[str, Floats]:
    similarity = evidence.similarity
    powered = np.sign(similarity) * np.abs(similarity) ** profile.similarity_exponent
    return {
        "similarity": powered,
        "entities": profile.entity_weight * shared.astype(np.float64),
        "importance": profile.importance_weight * evidence.importance,
    }


def _hybrid_terms(evidence: Evidence, shared: Counts, profile: RecallProfile) -> dict[str, Floats]:
    """Dense, lexical, entities and importance, each in [0, 1] times its weight's part of all weights."""
    best = float(evidence.lexical.max(initial=0.0))
    lexical_weight = profile.lexical_weight if profile.lexical else 0.0
    entity_weight = profile.entity_weight if evidence.asked else 0.0
    parts: dict[str, tuple[float, Floats]] = {
        "similarity": (profile.dense_weight, np.minimum(np.maximum(evidence.similarity, 0.0), 1.0)),
        "lexical": (lexical_weight, evidence.lexical / (best or 1.0)),
        "entities": (entity_weight, shared / max(1, evidence.asked)),
        "importance": (profile.importance_weight, evidence.importance),
    }
    whole = sum(weight for weight, _ in parts.values())
    return {name: values * (weight / whole) for name, (weight, values) in parts.items()}
