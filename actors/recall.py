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
from muniment.policies.ranking import Evidence, contenders, joined, order, retrieval_scores
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
    """What one tier has to say to a plan: n facts, (n,) of ``Resident``, and the evidence about each."""

    tier: Tier
    residents: NDArray[np.object_]
    evidence: Evidence

    @property
    def top_similarity(self) -> float | None:
        """The highest cosine, None where nothing was found."""
        return float(self.evidence.similarity.max()) if len(self.residents) else None

    def nearest(self, limit: int) -> list[Resident]:
        """The facts of the highest cosines, equals by id."""
        near = order(_ids_of(self.residents), self.evidence.similarity, limit=limit)
        return [self.residents[place] for place in near]


def recall(
    tenant: Tenant,
    plan: RecallPlan,
    admit: Callable[[str, Resident], bool] = lambda _, __: True,
    observe: Observe = unobserved,
) -> tuple[list[Candidate], GateDecision, list[Tier]]:
    """The best candidates for ``plan``, best first, the gate's decision, and which tiers were searched.

    There are as many as the reranker reads, at least ``top_k``. ``admit`` says of a visible fact and its slot's key
    whether it may be answered at all (of two values of one slot, only the one in use may).
    """
    profile = plan.profile
    depth = max(plan.top_k, profile.rerank_depth) if profile.rerank else plan.top_k
    started = time.perf_counter()
    found = search(tenant.spaces[Tier.L1], Tier.L1, plan, max(profile.l1_k, plan.top_k), admit)
    searched = time.perf_counter()
    best = ranked([found], plan, depth)
    if profile.coverage_depth is None:
        answered = [candidate.resident for candidate in best[: plan.top_k]]
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
    tiers = [Tier.L1]
    if decision.decision is Decision.SEARCH_L2:
        tiers.append(Tier.L2)
        archive = search(tenant.spaces[Tier.L2], Tier.L2, plan, max(profile.l2_k, plan.top_k), admit)
        observe(STAGE_SECONDS, time.perf_counter() - decided, stage="search_l2")
        # The published program answers from L2 instead of L1, unless L2 has nothing to say.
        if len(archive.residents):
            best = ranked([found, archive] if profile.merge_tiers else [archive], plan, depth)
    return best, decision, tiers


def search(space: TierSpace, tier: Tier, plan: RecallPlan, k: int, admit: Callable[[str, Resident], bool]) -> Found:
    """The union of the k nearest and the k best worded, each with both pieces of evidence, in no order."""
    with space.positions.lock:
        mask = space.mask(plan.visibility)
        worded, scores = space.lexical.search(plan.terms if plan.profile.lexical else (), k, mask)
        positions, similarity = space.index.search(plan.vector, k, mask, also=worded)
        residents, slots = space.residents.values[positions], space.slots.values[positions].tolist()
        admitted = [slot is None or admit(slot, residents[place]) for place, slot in enumerate(slots)]
        if not all(admitted):
            positions, similarity, residents = positions[admitted], similarity[admitted], residents[admitted]
        evidence = Evidence(
            similarity=similarity.astype(np.float64),
            lexical=scores.of(positions),
            importance=space.importance.values[positions],
            asked=len(counted_entities(plan.entities, plan.profile)),
        )
    return Found(tier, residents, evidence)


def ranked(found: Sequence[Found], plan: RecallPlan, limit: int) -> list[Candidate]:
    """The best ``limit`` of what tiers have to say, by the profile's fusion, best first."""
    residents = np.concatenate([one.residents for one in found])
    part = np.repeat(np.arange(len(found)), [len(one.residents) for one in found])
    evidence = joined([one.evidence for one in found])
    scores = retrieval_scores(evidence, _shared(residents, evidence, plan, limit), plan.profile)
    best = order(_ids_of(residents), scores.total, limit=limit).tolist()
    return [
        Candidate(residents[place], found[part[place]].tier, float(scores.total[place]), scores.explain(place))
        for place in best
    ]


def _shared(residents: NDArray[np.object_], evidence: Evidence, plan: RecallPlan, limit: int) -> NDArray[np.int64]:
    """How many of the query's entities each fact names, counted where it can matter for the best ``limit``."""
    shared = np.zeros(len(residents), np.int64)
    if evidence.asked:
        may = contenders(evidence, plan.profile, limit)
        facts = [(resident.entities, resident.folded) for resident in residents[may].tolist()]
        shared[may] = count_shared(counted_entities(plan.entities, plan.profile), facts)
    return shared


def _ids_of(residents: NDArray[np.object_]) -> Callable[[int], str]:
    return lambda place: residents[place].fact.id
