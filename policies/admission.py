"""Whether one more request may come in, by how long those before it are going to take.

What is under way, divided by how many are completed a second, is how long the next one waits (Little's law). How many
can be completed shows only while many are under way, so the rate is the best of the busy spans of the last while (a
moment in which nothing is completed says that something restarts, not that the service has become slow); without one, a
rate is assumed. A number that any service can bear is always let in.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """``always``: how many may be under way whatever the rate; ``wait_seconds``: how long one may have to wait;
    ``assumed_per_second``: the rate of a service that has not been busy."""

    always: int = 100
    wait_seconds: float = 5.0
    assumed_per_second: float = 50.0

    def bound(self, completed_per_second: float | None) -> int:
        """How many may be under way."""
        rate = self.assumed_per_second if completed_per_second is None else completed_per_second
        return max(self.always, math.floor(rate * self.wait_seconds))

    def retry_after(self, under_way: int, completed_per_second: float | None) -> int | None:
        """None where one more may come in, else the whole seconds after which to try again."""
        if under_way < self.bound(completed_per_second):
            return None
        rate = self.assumed_per_second if completed_per_second is None else completed_per_second
        half_drained = under_way / max(rate, 0.1) / 2
        return min(30, max(1, math.ceil(half_drained)))


@dataclass(slots=True)
class _Span:
    number: int
    completed: int = 0
    most_under_way: int = 0


@dataclass(slots=True)
class CompletionRate:
    """How many requests are completed a second: the best of the last ``spans``, each ``span_seconds`` long, in which at
    least ``busy`` were under way.

    Times are given, never taken, and do not go backwards.
    """

    span_seconds: float = 2.0
    spans: int = 15
    busy: int = 32
    _spans: deque[_Span] = field(default_factory=deque)

    def completed(self, at: float, under_way: int) -> None:
        """A request was completed, and had ``under_way`` with it."""
        number = int(at // self.span_seconds)
        if not self._spans or self._spans[-1].number != number:
            self._spans.append(_Span(number))
        span = self._spans[-1]
        span.completed += 1
        span.most_under_way = max(span.most_under_way, under_way)
        self._forget(number)

    def per_second(self, at: float) -> float | None:
        """The rate; None where the service has not been busy lately. A span that still runs does not count."""
        number = int(at // self.span_seconds)
        self._forget(number)
        counts = [s.completed for s in self._spans if s.number < number and s.most_under_way >= self.busy]
        return max(counts) / self.span_seconds if counts else None

    def _forget(self, number: int) -> None:
        while self._spans and self._spans[0].number < number - self.spans:
            self._spans.popleft()
