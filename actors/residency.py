"""Which companies stay in memory: the least recently used leave when the budget is spent, idle ones after a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass

#: What a company and each of its facts cost in memory, besides the fact's vector: measured, with the vectors' copies.
COMPANY_BYTES = 10_000
FACT_BYTES = 4_500
#: How often a vector is held at the most: by the fact, and by the index, whose array of rows may be half empty.
VECTOR_COPIES = 3


def weight(facts: int, dimension: int) -> int:
    """About how many bytes a loaded company takes; ``dimension``: of its float32 vectors."""
    return COMPANY_BYTES + facts * (FACT_BYTES + VECTOR_COPIES * 4 * dimension)


@dataclass(slots=True)
class _Seen:
    at: float
    bytes: int


class Residency:
    """Counts what is loaded and when it was last used. ``idle_seconds`` 0: nobody leaves for being idle."""

    def __init__(self, budget_bytes: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget_bytes
        self._idle = idle_seconds
        self._clock = clock
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self.bytes = 0

    def used(self, company: str, size: int) -> None:
        """The company is loaded, takes ``size`` bytes, and was used just now."""
        before = self._seen.pop(company, None)
        self.bytes += size - (before.bytes if before is not None else 0)
        self._seen[company] = _Seen(self._clock(), size)

    def companies(self) -> list[str]:
        """Who is loaded, the last used first."""
        return list(reversed(self._seen))

    def gone(self, company: str) -> None:
        """The company is not loaded any more."""
        before = self._seen.pop(company, None)
        if before is not None:
            self.bytes -= before.bytes

    def leaving(self, pinned: Container[str] = ()) -> list[str]:
        """Who is to leave now, the least recently used first. Never the last used one, however large it is, nor who is
        pinned."""
        found = []
        over = self.bytes - self._budget
        latest = self._clock() - self._idle if self._idle else float("-inf")
        for company, seen in list(self._seen.items())[:-1]:
            if over <= 0 and seen.at >= latest:
                break
            if company in pinned:
                continue
            found.append(company)
            over -= seen.bytes
        return found
