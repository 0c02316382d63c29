"""Observes what the gate's threshold would decide, on a company's own tiers (``policies/calibration.py``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from muniment.actors.recall import Candidate, RecallPlan, recall
from muniment.actors.tenant import Tenant, Visibility
from muniment.policies.calibration import Observations
from muniment.policies.entities import extract_entities
from muniment.policies.model import nfc
from muniment.policies.routing import Gate, RecallProfile
from muniment.policies.terms import query_terms


@dataclass(frozen=True, slots=True)
class Labelled:
    """A query, its vector (d,) float32, and the ids of the facts that answer it."""

    query: str
    vector: NDArray[np.float32]
    wanted: frozenset[str]


def observe(
    tenant: Tenant, queries: Sequence[Labelled], profile: RecallProfile, now: datetime, top_k: int = 5
) -> Observations:
    """Asks each query once of L1 alone and once of both tiers, among shared facts, without counting the use."""
    alone = profile.model_copy(update={"gate": Gate.DISABLED})
    both = profile.model_copy(update={"gate": Gate.ADAPTIVE, "threshold": None})
    rows: list[tuple[float, ...]] = []
    for labelled in queries:
        plan = RecallPlan(
            vector=labelled.vector,
            terms=query_terms(labelled.query),
            entities=extract_entities(nfc(labelled.query)),
            top_k=top_k,
            threshold=math.inf,
            profile=alone,
            visibility=Visibility(now=now),
        )
        from_l1, gate, _ = recall(tenant, plan)
        from_both, _, _ = recall(tenant, replace(plan, profile=both))
        top = -math.inf if gate.top_similarity is None else gate.top_similarity
        shares = (_share(found[:top_k], labelled.wanted) for found in (from_l1, from_both))
        rows.append((top, not gate.uncovered, *shares))
    columns = np.array(rows, np.float64).reshape(len(rows), 4).T
    return Observations(columns[0], columns[1] > 0, columns[2], columns[3])


def _share(answered: Sequence[Candidate], wanted: frozenset[str]) -> float:
    return len(wanted & {candidate.resident.fact.id for candidate in answered}) / len(wanted)
