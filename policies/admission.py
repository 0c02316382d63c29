"""Whether one more request may come in, by how long those before it are going to take.

What is under way, divided by how many are completed a second, is how long the next one waits (Little's law). The rate is
the best of the last while: a moment in which nothing is completed says that something restarts, not that the service has
become slow. A number that any service can bear is always let in, since what idles has no rate yet.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """``always``: how many may be under way whatever the rate; ``wait_seconds``: how long one may have to wait."""

    always: int = 100
    wait_seconds: float = 5.0

    def bound(self, completed_per_second: float) -> int:
        """How many may be under way."""
        return max(self.always, math.floor(completed_per_second * self.wait_seconds))

    def retry_after(self, under_way: int, completed_per_second: float) -> int | None:
        """None where one more may come in, else the whole seconds after which to try again."""
        if under_way < self.bound(completed_per_second):
            return None
        half_drained = under_way / max(completed_per_second, 0.1) / 2
        return min(30, max(1, math.ceil(half_drained)))


@dataclass(slots=True)
class CompletionRate:
    """How many requests were completed a second: the best of the last ``spans``, each ``span_seconds`` long.

    Times are given, never taken, and do not go backwards.
    """

    span_seconds: float = 2.0
    spans: int = 15
    _counts: deque[tuple[int, int]] = field(default_factory=deque)

    def completed(self, at: float) -> None:
        """A request was completed."""
        span = int(at // self.span_seconds)
        if self._counts and self._counts[-1][0] == span:
            self._counts[-1] = (span, self._counts[-1][1] + 1)
        else:
            self._counts.append((span, 1))
        self._forget(span)

    def per_second(self, at: float) -> float:
        """The rate."""
        self._forget(int(at // self.span_seconds))
        return max((count for _, count in self._counts), default=0) / self.span_seconds

    def _forget(self, span: int) -> None:
        while self._counts and self._counts[0][0] <= span - self.spans:
            self._counts.popleft()
