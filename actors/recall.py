"""A recall inside one shard: search L1, ask the gate, search L2 if it says so, and score what was found.

The same pure policies run here, where the candidates are, so that a recall costs one trip to the shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muniment.actors.metrics import STAGE_SECONDS, Observe, unobserved
from muniment.actors.tenant import Resident, Tenant, TierSpace, Visibility
from muniment.policies.entities import count_shared
from muniment.policies.model import Tier
from muniment.policies.ranking import Evidence, joined, order, retrieval_scores
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


@dataclass(frozen=True, slots=True)
class Found:
    """What one tier has to say to a plan: n facts and the evidence about each."""

    tier: Tier
    residents: list[Resident]
    evidence: Evidence

    @property
    def top_similarity(self) -> float | None:
        """The highest cosine, None where nothing was found."""
        return float(self.evidence.similarity.max()) if self.residents else None

    def nearest(self, limit: int) -> list[Resident]:
        """The facts of the highest cosines, equals by id."""
        near = order(self.evidence.ids, self.evidence.similarity, limit=limit)
        return [self.residents[place] for place in near]


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
        answered = [c.resident for c in ranked([found], plan, plan.top_k)]
    else:
        answered = found.nearest(profile.coverage_depth)
    decision = decide(
        GateInputs(
            top_similarity=found.top_similarity,
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
    tiers, answering = [Tier.L1], [found]
    if decision.decision is Decision.SEARCH_L2:
        tiers.append(Tier.L2)
        archive = search(tenant.spaces[Tier.L2], Tier.L2, plan, max(profile.l2_k, plan.top_k), admit)
        observe(STAGE_SECONDS, time.perf_counter() - decided, stage="search_l2")
        # The published program answers from L2 instead of L1, unless L2 has nothing to say.
        answering = [found, archive] if profile.merge_tiers or not archive.residents else [archive]
    depth = max(plan.top_k, profile.rerank_depth) if profile.rerank else plan.top_k
    return ranked(answering, plan, depth), decision, tiers


def search(space: TierSpace, tier: Tier, plan: RecallPlan, k: int, admit: Callable[[Resident], bool]) -> Found:
    """The union of the k nearest and the k best worded, each with both pieces of evidence."""
    with space.positions.lock:
        mask = space.mask(plan.visibility)
        near = dict(space.index.search(plan.vector, k, mask))
        worded = dict(space.lexical.search(plan.terms, k, mask, near.keys())) if plan.profile.lexical else {}
        only_worded = worded.keys() - near.keys()
        if only_worded:
            near.update(space.index.search(plan.vector, len(only_worded), space.positions.mask(only_worded)))
        residents = [resident for id in near if admit(resident := space.held[id])]
    return Found(tier, residents, _evidence(residents, near, worded, plan))


def _evidence(
    residents: list[Resident], similarity: Mapping[str, float], lexical: Mapping[str, float], plan: RecallPlan
) -> Evidence:
    asked = counted_entities(plan.entities, plan.profile)
    ids = [resident.fact.id for resident in residents]
    return Evidence(
        ids=ids,
        similarity=np.array([similarity[id] for id in ids], np.float64),
        lexical=np.array([lexical.get(id, 0.0) for id in ids], np.float64),
        shared=np.array(count_shared(asked, [(one.entities, one.folded) for one in residents]), np.int64),
        importance=np.array([resident.fact.importance for resident in residents], np.float64),
        asked=len(asked),
    )


def ranked(found: Sequence[Found], plan: RecallPlan, limit: int) -> list[Candidate]:
    """The best ``limit`` of what tiers have to say, by the profile's fusion, best first."""
    residents = [(one.tier, resident) for one in found for resident in one.residents]
    evidence = joined([one.evidence for one in found])
    scores = retrieval_scores(evidence, plan.profile)
    best = order(evidence.ids, scores.total, limit=limit).tolist()
    return [
        Candidate(resident, tier, float(scores.total[place]), scores.explain(place))
        for place in best
        for tier, resident in [residents[place]]
    ]
