"""A recall inside one shard: search L1, ask the gate, search L2 if it says so, and score what was found.

The same pure policies run here, where the candidates are, so that a recall costs one trip to the shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muniment.actors.metrics import STAGE_SECONDS, Observe, unobserved
from muniment.actors.tenant import Resident, Tenant, TierSpace, Visibility
from muniment.policies.entities import count_shared
from muniment.policies.model import Tier
from muniment.policies.ranking import Evidence, order, retrieval_scores
from muniment.policies.routing import (
    Decision,
    GateCandidate,
    GateDecision,
    GateInputs,
    RecallProfile,
    counted_entities,
    decide,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPlan:
    """What a router asks of a shard. ``vector``: (d,) float32; ``threshold``: the embedding model's calibrated one."""

    vector: NDArray[np.float32]
    terms: Sequence[str]
    entities: tuple[str, ...]
    top_k: int
    threshold: float
    profile: RecallProfile
    visibility: Visibility


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fact with where it lies, its retrieval score (higher is better) and the weighted terms that add up to it."""

    resident: Resident
    tier: Tier
    score: float
    terms: dict[str, float]


@dataclass(slots=True)
class Found:
    """One candidate's evidence: cosine, BM25 score."""

    resident: Resident
    tier: Tier
    similarity: float
    lexical: float


def recall(
    tenant: Tenant,
    plan: RecallPlan,
    admit: Callable[[Resident], bool] = lambda _: True,
    observe: Observe = unobserved,
) -> tuple[list[Candidate], GateDecision, list[Tier]]:
    """The best candidates for ``plan``, best first, the gate's decision, and which tiers were searched.

    There are as many as the reranker reads, at least ``top_k``. ``admit`` says of a visible fact whether it may be
    answered at all (of two values of one slot, only the one in use may).
    """
    profile = plan.profile
    started = time.perf_counter()
    found = search(tenant.spaces[Tier.L1], Tier.L1, plan, max(profile.l1_k, plan.top_k), admit)
    searched = time.perf_counter()
    if profile.coverage_depth is None:
        answered = [c.resident for c in ranked(list(found.values()), plan, plan.top_k)]
    else:
        nearest = sorted(found.values(), key=lambda f: (-f.similarity, f.resident.fact.id))
        answered = [f.resident for f in nearest[: profile.coverage_depth]]
    decision = decide(
        GateInputs(
            top_similarity=max((f.similarity for f in found.values()), default=None),
            candidates=[GateCandidate(tuple(resident.entities), resident.folded) for resident in answered],
            query_entities=plan.entities,
            top_k=plan.top_k,
            threshold=plan.threshold,
            profile=profile,
        )
    )
    decided = time.perf_counter()
    observe(STAGE_SECONDS, searched - started, stage="search_l1")
    observe(STAGE_SECONDS, decided - searched, stage="gate")
    tiers = [Tier.L1]
    if decision.decision is Decision.SEARCH_L2:
        tiers.append(Tier.L2)
        archive = search(tenant.spaces[Tier.L2], Tier.L2, plan, max(profile.l2_k, plan.top_k), admit)
        observe(STAGE_SECONDS, time.perf_counter() - decided, stage="search_l2")
        # The published program answers from L2 instead of L1, unless L2 has nothing to say.
        found = {**archive, **found} if profile.merge_tiers or not archive else archive
    depth = max(plan.top_k, profile.rerank_depth) if profile.rerank else plan.top_k
    return ranked(list(found.values()), plan, depth), decision, tiers


def search(
    space: TierSpace, tier: Tier, plan: RecallPlan, k: int, admit: Callable[[Resident], bool]
) -> dict[str, Found]:
    """The union of the k nearest and the k best worded, each with both pieces of evidence."""
    with space.positions.lock:
        mask = space.mask(plan.visibility)
        near = dict(space.index.search(plan.vector, k, mask))
        worded = dict(space.lexical.search(plan.terms, k, mask)) if plan.profile.lexical else {}
        only_worded, only_near = worded.keys() - near.keys(), near.keys() - worded.keys()
        if only_worded:
            near.update(space.index.search(plan.vector, len(only_worded), space.positions.mask(only_worded)))
        if only_near and plan.profile.lexical:
            worded.update(space.lexical.search(plan.terms, len(only_near), space.positions.mask(only_near)))
        held = {id: space.held[id] for id in near}
    return {
        id: Found(resident, tier, near[id], worded.get(id, 0.0)) for id, resident in held.items() if admit(resident)
    }


def ranked(found: Sequence[Found], plan: RecallPlan, limit: int) -> list[Candidate]:
    """The best ``limit`` of what was found, by the profile's fusion, best first."""
    asked = counted_entities(plan.entities, plan.profile)
    evidence = Evidence(
        ids=[f.resident.fact.id for f in found],
        similarity=np.array([f.similarity for f in found], np.float64),
        lexical=np.array([f.lexical for f in found], np.float64),
        shared=np.array([count_shared(asked, f.resident.entities, f.resident.folded) for f in found], np.int64),
        importance=np.array([f.resident.fact.importance for f in found], np.float64),
        asked=len(asked),
    )
    scores = retrieval_scores(evidence, plan.profile)
    best = order(evidence.ids, scores.total, limit=limit).tolist()
    return [Candidate(found[i].resident, found[i].tier, float(scores.total[i]), scores.explain(i)) for i in best]
