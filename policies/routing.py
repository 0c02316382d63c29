"""How a recall runs: the profile's named weights, and the retrieval gate that decides whether L1's answer is enough.

Paper (seed 002): L2 is searched when the best similarity in L1 is below a threshold, or an entity of the query is not
covered. The published program then answers from L2 *instead of* L1, and looks for coverage in the first candidate
only; both remain in the ``paper`` profile. Elsewhere the candidates of both tiers are merged, and coverage looks at all
the candidates that would be answered: one of them must speak of everything that the query names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muniment.policies.entities import is_mentioned, matching

MINILM_THRESHOLD: Final = 0.70
"""Gate threshold of the packaged all-MiniLM-L6-v2 (cosine similarity). On long conversations it loses 0.0004 of
recall@10 against always searching L2; 0.65 loses 0.009 and 0.60 loses 0.026."""
DEFAULT_THRESHOLDS: Final = {"all-MiniLM-L6-v2": MINILM_THRESHOLD}
"""Gate thresholds by embedding model, where a company has none of its own."""
ALWAYS: Final = 1.0
"""The threshold of a model that nobody calibrated: L2 is searched as good as always, so that nothing is missed."""
PAPER_THRESHOLD: Final = 0.84
"""The published threshold, made for e5-large-v2 (cosine similarity)."""
PAPER_ENTITIES: Final = r"node-\d+|err_[a-z_]+|subsystem-\d+|0x[0-9a-f]{4}"
"""The only entities the published program knows, in our normal form (RE2 syntax)."""


class Gate(StrEnum):
    """Whether L2 may be searched."""

    ADAPTIVE = "adaptive"
    """When L1's answer is not enough."""
    DISABLED = "disabled"
    """Never: the paper's ``no_gate``, for ablation and the lowest latency."""


class Decision(StrEnum):
    """What the gate decided."""

    L1_ONLY = "l1_only"
    SEARCH_L2 = "search_l2"


class Reason(StrEnum):
    """Why, the first that holds in this order, ``sufficient`` where none does."""

    DISABLED = "disabled"
    EMPTY_L1 = "empty_l1"
    LOW_SIMILARITY = "low_similarity"
    UNCOVERED_ENTITIES = "uncovered_entities"
    SUFFICIENT = "sufficient"


class Fusion(StrEnum):
    """How a candidate's evidence becomes one retrieval score (``ranking.retrieval_scores``)."""

    PAPER = "paper"
    """``sim³ + 0.8·|shared entities| + 0.1·importance``."""
    HYBRID = "hybrid"
    """A weighted mean of dense and lexical evidence, each in [0, 1], then entities and importance."""


class RecallProfile(BaseModel):
    """Every number of a recall, named. ``PROFILES`` holds the built-in ones; the defaults are those of ``default``.

    They were chosen on development data: conversations, a log, generated records. The published ones are in ``paper``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    l1_k: int = Field(default=100, ge=1, le=10_000)
    """Candidates taken from L1 by each index, vector and lexical."""
    l2_k: int = Field(default=200, ge=1, le=10_000)
    """Candidates taken from L2 by each index."""
    gate: Gate = Gate.ADAPTIVE
    threshold: float | None = Field(default=None, ge=-1, le=1)
    """Lowest sufficient cosine similarity; None takes the embedding model's calibrated one."""
    coverage_depth: int | None = Field(default=None, ge=1)
    """How many of L1's nearest candidates may cover the query's entities; None means those that would be answered."""
    merge_tiers: bool = True
    """Whether L2's candidates join L1's; otherwise they replace them, as in the published program."""
    entity_pattern: str | None = None
    """Where written, only entities that it matches whole count (RE2 syntax)."""
    lexical: bool = True
    """Whether the lexical indexes are searched."""
    fusion: Fusion = Fusion.HYBRID
    similarity_exponent: float = Field(default=3.0, gt=0, le=10)
    """Paper fusion: the power of the similarity."""
    dense_weight: float = Field(default=0.5, ge=0, le=10)
    lexical_weight: float = Field(default=0.5, ge=0, le=10)
    entity_weight: float = Field(default=0.05, ge=0, le=10)
    """Paper fusion: per shared entity. Hybrid: for the shared part of the query's entities."""
    importance_weight: float = Field(default=0.02, ge=0, le=10)
    rerank: bool = True
    rerank_depth: int = Field(default=20, ge=1, le=200)
    """How many of the best candidates the cross-encoder reads."""
    cross_encoder_weight: float = Field(default=0.5, ge=0, le=1)
    """Its part of the final score; the retrieval score has the rest."""

    @model_validator(mode="after")
    def _has_evidence(self) -> RecallProfile:
        if self.fusion is Fusion.PAPER and self.lexical:
            raise ValueError("the paper's fusion has no lexical evidence: set lexical to false")
        if self.fusion is Fusion.HYBRID and not self.dense_weight + (self.lexical_weight if self.lexical else 0):
            raise ValueError("dense_weight and lexical_weight are both zero")
        return self


DEFAULT: Final = RecallProfile()
PAPER: Final = RecallProfile(
    threshold=PAPER_THRESHOLD,
    coverage_depth=1,
    merge_tiers=False,
    entity_pattern=PAPER_ENTITIES,
    lexical=False,
    fusion=Fusion.PAPER,
    similarity_exponent=3.0,
    entity_weight=0.8,
    importance_weight=0.1,
    rerank_depth=20,
    cross_encoder_weight=0.85,
)


def profiles_of(default: RecallProfile) -> dict[str, RecallProfile]:
    """The profiles by name, where ``default`` is what a service's settings say; the published numbers stay."""
    return {"default": default, "fast": default.model_copy(update={"rerank": False}), "paper": PAPER}


PROFILES: Final[dict[str, RecallProfile]] = profiles_of(DEFAULT)


@dataclass(frozen=True, slots=True)
class GateCandidate:
    """What the gate sees of one candidate: its normalised entities and its folded text."""

    entities: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInputs:
    """``candidates``: L1's visible ones, best first as they would be answered; nearest first where the profile has a
    ``coverage_depth``. ``top_similarity``: the highest cosine similarity in L1, None where L1 has nothing.
    ``query_entities``: normalised."""

    top_similarity: float | None
    candidates: Sequence[GateCandidate]
    query_entities: tuple[str, ...]
    top_k: int
    threshold: float
    """The embedding model's calibrated one; the profile's own wins."""
    profile: RecallProfile


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The gate's verdict with its evidence, as ``route.gate`` of an answer shows it."""

    decision: Decision
    reason: Reason
    top_similarity: float | None
    threshold: float
    query_entities: tuple[str, ...]
    uncovered: tuple[str, ...]
    """What the candidate that covers the most does not speak of."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON and the wire."""
        return {
            "decision": self.decision.value,
            "reason": self.reason.value,
            "top_similarity": self.top_similarity,
            "threshold": self.threshold,
            "query_entities": list(self.query_entities),
            "uncovered": list(self.uncovered),
        }


def default_threshold(model: str) -> float:
    """The gate's threshold under an embedding model for a company that was not calibrated."""
    return DEFAULT_THRESHOLDS.get(model, ALWAYS)


def counted_entities(entities: Sequence[str], profile: RecallProfile) -> tuple[str, ...]:
    """The entities that count under ``profile``, for queries and facts alike."""
    return tuple(entities) if profile.entity_pattern is None else matching(entities, profile.entity_pattern)


def decide(inputs: GateInputs) -> GateDecision:
    """Whether L1's answer is enough or L2 must be searched as well (paper, hybrid routing)."""
    profile = inputs.profile
    threshold = inputs.threshold if profile.threshold is None else profile.threshold
    asked = counted_entities(inputs.query_entities, profile)
    depth = profile.coverage_depth or inputs.top_k
    answered = inputs.candidates[:depth]
    missing = [tuple(e for e in asked if not _covers(candidate, e, profile)) for candidate in answered]
    uncovered = min(missing, key=len, default=asked)
    reason = Reason.SUFFICIENT
    if profile.gate is Gate.DISABLED:
        reason = Reason.DISABLED
    elif inputs.top_similarity is None or not inputs.candidates:
        reason = Reason.EMPTY_L1
    elif inputs.top_similarity < threshold:
        reason = Reason.LOW_SIMILARITY
    elif uncovered:
        reason = Reason.UNCOVERED_ENTITIES
    stays = reason in (Reason.SUFFICIENT, Reason.DISABLED)
    decision = Decision.L1_ONLY if stays else Decision.SEARCH_L2
    return GateDecision(decision, reason, inputs.top_similarity, threshold, asked, uncovered)


def _covers(candidate: GateCandidate, entity: str, profile: RecallProfile) -> bool:
    if profile.entity_pattern is not None:
        return entity in candidate.entities
    return is_mentioned(entity, candidate.entities, candidate.text)
