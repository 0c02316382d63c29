"""The gate's threshold for an embedding model: what each threshold costs and spares, and which one to take.

The published threshold belongs to one model and is wrong for others. Here it is read off observed queries: labelled
ones, or a company's own facts with words left out, each of which should find the fact that it came from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muniment.policies.errors import InvalidInput

KEPT_WORDS: Final = 0.6
"""The part of a fact's words that a query made from it keeps."""
TOLERANCE: Final = 0.002
"""Recall that may be lost against always searching L2."""
STEPS: Final = 100
_FEWEST_WORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Observations:
    """What n queries showed; arrays of shape (n,).

    ``top_similarity``: the highest cosine similarity in L1, minus infinity where L1 has nothing. ``covered``: whether
    L1's answer speaks of all that the query names. ``recall_l1``, ``recall_both``: the share in [0, 1] of what was
    wanted that the answer from L1 alone, and from both tiers, has.
    """

    top_similarity: NDArray[np.float64]
    covered: NDArray[np.bool_]
    recall_l1: NDArray[np.float64]
    recall_both: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TradePoint:
    """What a threshold does: the share of queries that search L2, the mean recall, and what it lacks to the best."""

    threshold: float
    searches_l2: float
    recall: float
    recall_lost: float


def perturb(text: str, chance: random.Random) -> str | None:
    """A query made from a fact: some of its words, in order; None where it has too few."""
    words = text.split()
    if len(words) < _FEWEST_WORDS:
        return None
    kept = max(_FEWEST_WORDS - 1, round(len(words) * KEPT_WORDS))
    return " ".join(words[i] for i in sorted(chance.sample(range(len(words)), min(kept, len(words) - 1))))


def trade(observed: Observations, steps: int = STEPS) -> list[TradePoint]:
    """The trade at ``steps`` + 1 thresholds from 0 to 1, lowest first. Raises ``InvalidInput`` without queries."""
    if not len(observed.top_similarity):
        raise InvalidInput.at("/queries", "there are none to calibrate with")
    best = float(observed.recall_both.mean())
    points = []
    for threshold in np.linspace(0.0, 1.0, steps + 1):
        searches = ~observed.covered | (observed.top_similarity < threshold)
        recall = float(np.where(searches, observed.recall_both, observed.recall_l1).mean())
        points.append(TradePoint(float(threshold), float(searches.mean()), recall, best - recall))
    return points


def choose(points: Sequence[TradePoint], tolerance: float = TOLERANCE) -> TradePoint:
    """The lowest threshold from which on no higher one loses more recall than ``tolerance``."""
    chosen = points[-1]
    for point in reversed(points):
        if point.recall_lost > tolerance:
            break
        chosen = point
    return chosen
