"""Takes down what became of each request, with latencies from when it was due, in HDR histograms.

A request that left late, because the generator or the service was busy, is as late for whoever waited as one that was
answered late; measured from when it left, the wait would be lost (coordinated omission).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

#: What can become of a request. ``refused``: 429 with Retry-After. ``late``: no answer within its deadline.
OUTCOMES = ("ok", "refused", "unavailable", "late", "error")
_LONGEST_US = 600_000_000
_DIGITS = 3


def histogram() -> Any:
    """Microseconds up to ten minutes, with three digits."""
    return HdrHistogram(1, _LONGEST_US, _DIGITS)


class Recorder:
    """What became of the requests of one run. Times are seconds since its start."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.by_kind: dict[str, Any] = defaultdict(histogram)
        #: Of requests that were due in a second: how long those took that were answered.
        self.ms_by_second: dict[int, list[float]] = defaultdict(list)
        #: How many were due in a second, and what became of them.
        self.due_by_second: dict[int, Counter[str]] = defaultdict(Counter)
        self.finished_by_second: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        #: Answers that say of themselves that they are less than they could be, by what they say.
        self.degraded: Counter[str] = Counter()

    def add(self, kind: str, due: float, finished: float, outcome: str, detail: str = "") -> None:
        """A request of ``kind`` was ``due``, and ``finished`` with ``outcome``; ``detail`` tells of an error."""
        assert outcome in OUTCOMES
        self.outcomes[kind][outcome] += 1
        self.due_by_second[int(due)][outcome] += 1
        if outcome == "ok":
            taken = min(_LONGEST_US, max(1, round((finished - due) * 1e6)))
            self.by_kind[kind].record_value(taken)
            self.ms_by_second[int(due)].append(taken / 1000)
            self.finished_by_second[int(finished)] += 1
        elif detail:
            self.errors[detail] += 1

    def total(self) -> Any:
        """The histogram of all kinds."""
        summed = histogram()
        for one in self.by_kind.values():
            summed.add(one)
        return summed

    def counts(self) -> dict[str, int]:
        """How many requests met each outcome."""
        summed: Counter[str] = Counter()
        for counter in self.outcomes.values():
            summed.update(counter)
        return {outcome: summed[outcome] for outcome in OUTCOMES}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kind and one for all: counts by outcome, percentiles of what was answered."""
        kinds = [
            {"kind": kind, **{o: counter[o] for o in OUTCOMES}, **percentiles(self.by_kind[kind])}
            for kind, counter in sorted(self.outcomes.items())
        ]
        return [*kinds, {"kind": "all", **self.counts(), **percentiles(self.total())}]

    def seconds(self) -> list[dict[str, Any]]:
        """Second by second: what was due and became of it, what finished, and the percentiles of what was due then."""
        if not self.due_by_second:
            return []
        last = max(max(self.due_by_second), max(self.finished_by_second, default=0))
        found = []
        for second in range(last + 1):
            due: Mapping[str, int] = self.due_by_second.get(second, Counter())
            row: dict[str, Any] = {"second": second, "due": sum(due.values()), **{o: due.get(o, 0) for o in OUTCOMES}}
            row["finished"] = self.finished_by_second[second]
            if second in self.ms_by_second:
                row["p50_ms"], row["p99_ms"] = np.percentile(self.ms_by_second[second], [50, 99]).tolist()
            found.append(row)
        return found


def percentiles(one: Any) -> dict[str, float | None]:
    """The usual percentiles of a histogram, in milliseconds; None where it is empty."""
    wanted = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99.9_ms": 99.9, "max_ms": 100.0}
    if one.get_total_count() == 0:
        return dict.fromkeys(wanted)
    return {name: one.get_value_at_percentile(p) / 1000 for name, p in wanted.items()}
