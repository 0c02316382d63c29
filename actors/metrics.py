"""What the service tells of itself in numbers: one table, from which the exporter, the docs and the tests are made.

Labels have closed sets of values: never a company, a user, a tool or a text. Code that knows no exporter is given an
``Observe``, by default one that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from muniment.policies import effect_gate, routing
from muniment.policies.model import ConflictKind, Outcome, Tier


class Kind(StrEnum):
    """What a number does: it only grows, it goes up and down, or it is one of many that make a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric. ``labels``: the values that each label may have; ``buckets``: upper bounds of a histogram."""

    name: str
    kind: Kind
    what: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """What the number counts, by the end of its name."""
        base = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if base.endswith(f"_{unit}")), "count")


class Observe(Protocol):
    """Takes a number: what a counter grows by, what a gauge shows now, one value of a histogram."""

    def __call__(self, metric: Metric, value: float, **labels: str) -> None:
        """``labels``: all of the metric's, each with one of its values."""
        ...


def unobserved(metric: Metric, value: float, **labels: str) -> None:
    """An ``Observe`` for where nobody looks."""


#: What gauges show now: of each the metric, the value, the labels.
Levels = Iterable[tuple[Metric, float, Mapping[str, str]]]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
STORES = ("memory", "effects")
QUEUES = ("memory_writes", "ledger_operations", "model_query", "model_rerank", "model_ingest")
#: What an answer to a recall may lack.
DEGRADED = ("no_reranker", "reranker_overloaded", "reranker_unavailable", "store_unreachable")
#: Upper bounds of ages, in seconds, and what they are called; what is older than all is the last.
AGES = ((3_600, "hour"), (86_400, "day"), (7 * 86_400, "week"))
AGE_NAMES = (*(name for _, name in AGES), "older")

STAGE_SECONDS = Metric(
    name="muniment_recall_stage_seconds",
    kind=Kind.HISTOGRAM,
    what="How long the stages of a recall take: of the router embed, search (the whole trip to the shard), rerank and "
    "total; of the shard search_l1, gate, search_l2.",
    labels={"stage": ("embed", "search", "rerank", "total", "search_l1", "gate", "search_l2")},
    buckets=SECONDS,
)
GATE_DECISIONS = Metric(
    name="muniment_gate_decisions_total",
    kind=Kind.COUNTER,
    what="Decisions of the retrieval gate, by reason; sufficient and disabled stay in L1, the others search L2 too.",
    labels={"reason": tuple(reason.value for reason in routing.Reason)},
)
DEGRADED_ANSWERS = Metric(
    name="muniment_degraded_answers_total",
    kind=Kind.COUNTER,
    what="Recalls that were answered with less than everything, by what was missing.",
    labels={"reason": DEGRADED},
)
OUTCOMES = Metric(
    name="muniment_facts_told_total",
    kind=Kind.COUNTER,
    what="Facts that a shard decided about, by outcome.",
    labels={"outcome": tuple(outcome.value for outcome in Outcome)},
)
TIER_FACTS = Metric(
    name="muniment_tier_facts",
    kind=Kind.GAUGE,
    what="Facts in the indexes of loaded companies, by tier.",
    labels={"tier": tuple(tier.value for tier in Tier)},
)
COMPANIES_LOADED = Metric(
    name="muniment_companies_loaded", kind=Kind.GAUGE, what="Companies whose tiers are in a shard's memory."
)
EVICTIONS = Metric(
    name="muniment_evictions_total",
    kind=Kind.COUNTER,
    what="Facts that a full tier gave up: out of L1 into L2, out of L2 out of the indexes.",
    labels={"tier": tuple(tier.value for tier in Tier)},
)
ESSENTIAL_OVERFLOW = Metric(
    name="muniment_essential_overflow_facts",
    kind=Kind.GAUGE,
    what="Essential facts that L2 holds above its capacity, in loaded companies.",
)
ESSENTIAL_KEPT = Metric(
    name="muniment_essential_kept_total",
    kind=Kind.COUNTER,
    what="Essential facts that a full L2 took in above its capacity.",
)
ACTORS_WANTED = Metric(
    name="muniment_actors_wanted",
    kind=Kind.GAUGE,
    what="How many shards and ledgers there are to be.",
    labels={"kind": ("shard", "ledger")},
)
CONFLICTS_OPEN = Metric(
    name="muniment_conflicts_open",
    kind=Kind.GAUGE,
    what="Entries open on owners' lists, by kind and age: opened within the last hour, day or week, or before.",
    labels={"kind": tuple(kind.value for kind in ConflictKind), "age": AGE_NAMES},
)
CONFLICTS_OVERDUE = Metric(
    name="muniment_conflicts_overdue",
    kind=Kind.GAUGE,
    what="Open entries whose due date has passed.",
    labels={"kind": tuple(kind.value for kind in ConflictKind)},
)
VERDICTS = Metric(
    name="muniment_verdicts_total",
    kind=Kind.COUNTER,
    what="Verdicts of the effect gate, by verdict and reason.",
    labels={
        "verdict": tuple(verdict.value for verdict in effect_gate.Verdict),
        "reason": tuple(reason.value for reason in effect_gate.Reason),
    },
)
RESERVATIONS = Metric(
    name="muniment_reservations_held", kind=Kind.GAUGE, what="Keys that a run holds now, neither confirmed nor lapsed."
)
OLDEST_RESERVATION = Metric(
    name="muniment_oldest_reservation_seconds",
    kind=Kind.GAUGE,
    what="For how long the reservation that is held longest has been held; 0 where none is.",
)
WAITING_POLLS = Metric(
    name="muniment_parked_polls",
    kind=Kind.GAUGE,
    what="Client processes in which somebody waits for a key that another run holds.",
)
COMMIT_SECONDS = Metric(
    name="muniment_commit_seconds",
    kind=Kind.HISTOGRAM,
    what="How long a group takes from its first statement to the end of its commit.",
    labels={"store": STORES},
    buckets=SECONDS,
)
COMMIT_WRITES = Metric(
    name="muniment_commit_writes",
    kind=Kind.HISTOGRAM,
    what="How many writes one commit holds.",
    labels={"store": STORES},
    buckets=_SIZES,
)
COMMIT_FAILURES = Metric(
    name="muniment_commit_failures_total",
    kind=Kind.COUNTER,
    what="Groups that were not committed: the store did not (store), a newer instance has taken over (fenced), or a "
    "fault of this program (internal).",
    labels={"store": STORES, "reason": ("store", "fenced", "internal")},
)
QUEUE_LENGTH = Metric(
    name="muniment_queue_length",
    kind=Kind.GAUGE,
    what="What waits: writes for a shard's commit, operations for a ledger's, texts and pairs for a model.",
    labels={"queue": QUEUES},
)
REFUSED = Metric(
    name="muniment_refused_total",
    kind=Kind.COUNTER,
    what="Requests that were turned away (429): by a full queue, or at once, where too many are under way.",
    labels={"queue": (*QUEUES, "http", "http_effects")},
)
MODEL_SECONDS = Metric(
    name="muniment_model_run_seconds",
    kind=Kind.HISTOGRAM,
    what="How long one run of a model takes.",
    labels={"model": ("embed", "rerank")},
    buckets=SECONDS,
)
MODEL_BUSY = Metric(
    name="muniment_model_busy_seconds_total",
    kind=Kind.COUNTER,
    what="Time that models ran; its rate is how many of the workers are busy.",
    labels={"model": ("embed", "rerank")},
)
MODEL_ITEMS = Metric(
    name="muniment_model_run_items",
    kind=Kind.HISTOGRAM,
    what="How many texts or pairs one run of a model takes together.",
    labels={"model": ("embed", "rerank")},
    buckets=_SIZES,
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
