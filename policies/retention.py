"""What a full tier gives up, and how important a fact is when nobody says.

Paper (seed 002; arXiv 2603.10032): a fact's eviction score is ``0.75·importance + 0.25·min(usage/10, 1)``; when a tier
is full the 15 % with the lowest scores leave, L1's to L2, L2's for good. Here what leaves L2 for good is never
essential: a tier full of essential facts grows, and the plan says by how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from muniment.policies.entities import READ_FOR_PATTERNS, check_pattern, compile_pattern
from muniment.policies.model import SourceKind, fold, nfc
from muniment.policies.precedence_policy import Glob, glob_matches

MAX_RULES: Final = 256


class RetentionMode(StrEnum):
    """How residents are ordered when a tier is full."""

    IMPORTANCE = "importance"
    """By eviction score; an essential fact never leaves the last tier. The default."""
    PAPER = "paper"
    """By eviction score; the last tier gives up whatever scores lowest, as the published program does."""
    LRU = "lru"
    """By the time of last use, importance ignored: the paper's comparison, for ablation."""


class RetentionSettings(BaseModel):
    """Weights and shares of retention; the defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: RetentionMode = RetentionMode.IMPORTANCE
    importance_weight: float = Field(default=0.75, ge=0, allow_inf_nan=False)
    usage_weight: float = Field(default=0.25, ge=0, allow_inf_nan=False)
    usage_ceiling: int = Field(default=10, ge=1)
    """Uses beyond this many count no further."""
    eviction_share: float = Field(default=0.15, gt=0, le=1)
    """The part of a tier's capacity that leaves when it is full."""
    essential_threshold: float = Field(default=0.85, ge=0, le=1)
    """A fact of this importance or more is essential."""


@dataclass(frozen=True, slots=True)
class TierView:
    """What eviction looks at: one entry per fact in every array, in any order.

    ``importance`` float in [0, 1]; ``usage`` integer, times returned by recall; ``last_used`` int64 microseconds of
    the last return, or of the recording where there was none.
    """

    ids: Sequence[str]
    importance: NDArray[np.float64]
    usage: NDArray[np.int64]
    last_used: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """Which facts leave the tier, in the order in which they leave, and how many stay above its capacity."""

    leaving: tuple[str, ...]
    overflow: int


def eviction_score(
    importance: NDArray[np.float64], usage: NDArray[np.int64], settings: RetentionSettings
) -> NDArray[np.float64]:
    """``w_i·importance + w_u·min(usage / ceiling, 1)``: lower leaves first (paper, importance-aware eviction)."""
    used = np.minimum(np.asarray(usage) / settings.usage_ceiling, 1.0)
    scores: NDArray[np.float64] = settings.importance_weight * np.asarray(importance, np.float64) + (
        settings.usage_weight * used
    )
    return scores


def plan_evictions(
    residents: TierView,
    incoming: TierView,
    *,
    capacity: int,
    settings: RetentionSettings,
    last_tier: bool,
) -> EvictionPlan:
    """What leaves a tier of ``capacity`` (≥ 1) so that ``incoming`` can be added, one after the other.

    The result is that of adding the incoming facts singly, as the paper does: whenever the tier is full, the
    ``eviction_share`` of its capacity (at least one fact) with the lowest score leaves, incoming facts that were
    already added among them; ties leave by id, smaller first. Afterwards the tier holds at most ``capacity`` facts,
    unless ``last_tier`` is set, the mode is ``importance``, and essential facts alone exceed it: then ``overflow``
    counts what is above. Cost: one sort of the tier per overflow.
    """
    ids = [*residents.ids, *incoming.ids]
    keys = _order(residents, incoming, ids, settings)
    importance = np.concatenate([residents.importance, incoming.importance])
    protects = last_tier and settings.mode is RetentionMode.IMPORTANCE
    evictable = importance < settings.essential_threshold if protects else np.ones(len(ids), bool)
    share = max(1, int(settings.eviction_share * capacity))

    present = np.zeros(len(ids), bool)
    present[: len(residents.ids)] = True
    size = len(residents.ids)
    added = size
    leaving: list[int] = []
    while added < len(ids):
        if size >= capacity:
            candidates = np.flatnonzero(present & evictable)
            wanted = max(share, size - capacity + 1)
            gone = candidates[np.argsort(keys[candidates], kind="stable")[:wanted]]
            present[gone] = False
            size -= len(gone)
            leaving.extend(gone.tolist())
        # Where nothing may leave, facts are let in one at a time: each may be the next that can leave.
        step = max(1, min(capacity - size, len(ids) - added))
        present[added : added + step] = True
        added += step
        size += step
    if size > capacity:
        candidates = np.flatnonzero(present & evictable)
        gone = candidates[np.argsort(keys[candidates], kind="stable")[: size - capacity]]
        size -= len(gone)
        leaving.extend(gone.tolist())
    return EvictionPlan(tuple(ids[i] for i in leaving), max(0, size - capacity))


def _order(
    residents: TierView, incoming: TierView, ids: Sequence[str], settings: RetentionSettings
) -> NDArray[np.int64]:
    """The place of every fact in the order of leaving, residents first in the array."""
    if settings.mode is RetentionMode.LRU:
        scores: NDArray[Any] = np.concatenate([residents.last_used, incoming.last_used])
    else:
        scores = np.concatenate(
            [
                eviction_score(residents.importance, residents.usage, settings),
                eviction_score(incoming.importance, incoming.usage, settings),
            ]
        )
    by_id = np.empty(len(ids), np.int64)
    by_id[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    places = np.empty(len(ids), np.int64)
    places[np.lexsort((by_id, scores))] = np.arange(len(ids))
    return places


def _caseless(pattern: str) -> str:
    return f"(?i){pattern}"


def _check_caseless(pattern: str) -> str:
    check_pattern(_caseless(pattern))
    return pattern


class ImportanceRule(BaseModel):
    """Gives ``importance`` to a fact that all the conditions written here hold for.

    ``field``: glob (``*``, ``?``), compared folded. ``pattern``: RE2 syntax, searched without regard to case in the
    first 4,096 characters of the text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    importance: float = Field(ge=0, le=1, allow_inf_nan=False)
    source_kind: SourceKind | None = None
    field: Glob | None = None
    pattern: Annotated[str, AfterValidator(_check_caseless)] | None = None

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if self.source_kind is None and self.field is None and self.pattern is None:
            raise ValueError("names no condition; what holds for every other fact is the policy's default")
        return self


class ImportancePolicy(BaseModel):
    """How important a fact is whose teller does not say: the first rule that holds decides, else ``default``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[ImportanceRule, ...] = Field(default=(), max_length=MAX_RULES)
    default: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)


def default_importance(
    *, explicit: float | None, source_kind: SourceKind, field: str | None, text: str, policy: ImportancePolicy
) -> float:
    """A new fact's importance in [0, 1]: what its teller gave, else the first rule that holds, else the default."""
    if explicit is not None:
        return explicit
    for rule in policy.rules:
        if rule.source_kind is not None and rule.source_kind is not source_kind:
            continue
        if rule.field is not None and (field is None or not glob_matches(rule.field, fold(field))):
            continue
        if rule.pattern is not None and _searcher(rule.pattern).search(nfc(text)[:READ_FOR_PATTERNS]) is None:
            continue
        return rule.importance
    return policy.default


@lru_cache(maxsize=1024)
def _searcher(pattern: str) -> Any:
    return compile_pattern(_caseless(pattern))
