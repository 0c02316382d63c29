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

from muniment.policies.errors import InvalidInput

KEPT_WORDS: Final = 0.6
"""The part of a fact's words that a query made from it keeps."""
TOLERANCE: Final = 0.002
"""Recall that may be lost against always searching L2."""
STEPS: Final = 100
FEWEST_TELLING: Final = 20
"""Queries for which the threshold decides, below which a calibration says nothing."""
_FEWEST_WORDS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one query showed.

    ``top_similarity``: the highest cosine similarity in L1, -1 where L1 has nothing. ``covered``: whether L1's answer
    speaks of all that the query names. ``in_l1``, ``in_both``: whether the answer from L1 alone, and from both tiers,
    has what was wanted.
    """

    top_similarity: float
    covered: bool
    in_l1: bool
    in_both: bool


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


def trade(observed: Sequence[Observation], steps: int = STEPS) -> list[TradePoint]:
    """The trade at ``steps`` + 1 thresholds from 0 to 1, lowest first.

    Raises ``InvalidInput`` where fewer than ``FEWEST_TELLING`` of the queries find in both tiers what L1 alone lacks,
    though L1 speaks of all that they name: only of these does a threshold decide.
    """
    similarity = np.array([o.top_similarity for o in observed], np.float64)
    covered = np.array([o.covered for o in observed], bool)
    in_l1 = np.array([o.in_l1 for o in observed], bool)
    in_both = np.array([o.in_both for o in observed], bool)
    telling = int(np.count_nonzero(covered & in_both & ~in_l1))
    if telling < FEWEST_TELLING:
        raise InvalidInput(
            f"for {telling} of {len(observed)} queries the threshold decides whether they are answered; "
            f"{FEWEST_TELLING} are needed to choose one: ask more, or keep the one that holds"
        )
    best = float(in_both.mean())
    points = []
    for threshold in (step / steps for step in range(steps + 1)):
        searches = ~covered | (similarity < threshold)
        recall = float(np.where(searches, in_both, in_l1).mean())
        points.append(TradePoint(threshold, float(searches.mean()), recall, best - recall))
    return points


def choose(points: Sequence[TradePoint], tolerance: float = TOLERANCE) -> TradePoint:
    """The lowest threshold from which on no higher one loses more recall than ``tolerance``."""
    chosen = points[-1]
    for point in reversed(points):
        if point.recall_lost > tolerance:
            break
        chosen = point
    return chosen
