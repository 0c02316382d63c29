"""Bounds what this process has under way: who would wait too long is told at once when to come back (429)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muniment.policies.admission import AdmissionPolicy, CompletionRate
from muniment.policies.errors import Overloaded


class Admission:
    """Counts the requests of one kind that are under way. Belongs to one event loop."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        clock: Callable[[], float] = time.monotonic,
        on_refused: Callable[[], object] = lambda: None,
    ) -> None:
        self._policy = policy
        self._on_refused = on_refused
        self._clock = clock
        self._rate = CompletionRate()
        self._under_way = 0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Around the work of a request. Raises ``Overloaded``; what fails says nothing of the pace."""
        after = self._policy.retry_after(self._under_way, self._rate.per_second(self._clock()))
        if after is not None:
            self._on_refused()
            raise Overloaded("too many requests are under way", retry_after_seconds=after)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
        self._rate.completed(self._clock(), self._under_way + 1)
