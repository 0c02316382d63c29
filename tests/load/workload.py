"""What agents ask for: a mixed workload over tenants, few of which are busy. The same seed gives the same work."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

#: Shares of the arrivals. A ruling tells a fact that contradicts another and has the owner decide.
MIX: Mapping[str, float] = {"recall": 55, "recall_reranked": 5, "remember": 20, "effect": 15, "ruling": 5}


@dataclass(frozen=True, slots=True)
class Task:
    """One arrival: what is to be done, for which tenant."""

    number: int
    kind: str
    tenant: int


def zipf(count: int, exponent: float) -> list[float]:
    """The shares of ``count`` tenants: that of the n-th is proportional to ``1 / n ** exponent``."""
    weights = [1 / rank**exponent for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def tasks(seed: int, tenants: int, exponent: float = 1.0, mix: Mapping[str, float] = MIX) -> Iterator[Task]:
    """Tasks without end."""
    chance = random.Random(seed)
    kinds, kind_weights = list(mix), list(accumulate(mix.values()))
    tenant_weights = list(accumulate(zipf(tenants, exponent)))
    number = 0
    while True:
        (kind,) = chance.choices(kinds, cum_weights=kind_weights)
        (tenant,) = chance.choices(range(tenants), cum_weights=tenant_weights)
        yield Task(number, kind, tenant)
        number += 1


def mix_of(text: str) -> dict[str, float]:
    """Reads ``recall=70,remember=30``. Raises ``ValueError``, also for kinds that there are not."""
    found = {}
    for part in text.split(","):
        kind, _, weight = part.partition("=")
        if kind not in MIX:
            raise ValueError(f"{kind!r} is none of {', '.join(MIX)}")
        found[kind] = float(weight)
    return found


def fact(chance: random.Random, lines: Sequence[str], number: int, subjects: int = 200) -> dict[str, object]:
    """A fact of a slot: a newer value of one of ``subjects`` subjects, or the same as one before."""
    line = lines[number % len(lines)]
    return {
        "text": f"{line} #{number}",
        "subject": f"node-{chance.randrange(subjects)}",
        "field": "last_event",
        "value": f"{line[:80]} #{number}",
        "source": {"kind": "system_of_record", "id": "log"},
    }


def loose_fact(lines: Sequence[str], number: int) -> dict[str, object]:
    """A fact of no slot, which eviction may take."""
    return {"text": f"{lines[number % len(lines)]} #{number}", "source": {"kind": "agent_summary", "author": "agent"}}
