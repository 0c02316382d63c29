"""Who waits for which held keys: one parked poll per client process, answered when keys stop being held.

All in the ledger's one thread. A watch is for one event: a client that finds the key taken again tries again, and that
registers it again. What happens while a client has no poll parked is kept for its next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from muniment.policies.errors import Overloaded

#: Answers a parked poll with the keys that stopped being held.
Answer = Callable[[list[bytes]], object]


@dataclass(slots=True)
class _Client:
    seen_at: int
    watched: set[bytes] = field(default_factory=set)
    freed: set[bytes] = field(default_factory=set)
    parked: Answer | None = None


class KeyWatch:
    """Watches of at most ``max_watches`` (client, key) pairs."""

    def __init__(self, max_watches: int = 200_000) -> None:
        self._max_watches = max_watches
        self._count = 0
        #: The number of polls that are parked.
        self.parked = 0
        self._clients: dict[str, _Client] = {}
        self._watchers: dict[bytes, set[str]] = {}
        self._ends: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """The number of (client, key) pairs."""
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return key in self._watchers

    def register(self, client: str, key: bytes, ends_at: int, now: int) -> None:
        """``client`` waits for ``key``, whose lease ends at ``ends_at`` (microseconds). Raises ``Overloaded``."""
        state = self._clients.get(client) or self._clients.setdefault(client, _Client(now))
        if key in state.watched:
            return
        if self._count >= self._max_watches:
            raise Overloaded("too many keys are waited for", retry_after_seconds=1)
        state.watched.add(key)
        state.freed.discard(key)
        self._watchers.setdefault(key, set()).add(client)
        self._count += 1
        self.held_until(key, ends_at)

    def held_until(self, key: bytes, ends_at: int) -> None:
        """The key is held until ``ends_at``, perhaps by another run than before."""
        if key in self._watchers and self._ends.get(key) != ends_at:
            self._ends[key] = ends_at
            heapq.heappush(self._heap, (ends_at, key))

    def free(self, key: bytes) -> None:
        """The key is not held any more: its watchers are told, once the poll of each is parked."""
        self._ends.pop(key, None)
        for client in self._watchers.pop(key, ()):
            state = self._clients[client]
            state.watched.discard(key)
            state.freed.add(key)
            self._count -= 1
            if state.parked is not None:
                self.unpark(client)

    def free_those(self, concerned: Callable[[bytes], bool]) -> None:
        """Frees the watched keys that are concerned."""
        for key in [key for key in self._watchers if concerned(key)]:
            self.free(key)

    def lapse(self, now: int) -> None:
        """Frees the watched keys whose lease has ended at ``now``."""
        while self._heap and self._heap[0][0] <= now:
            ends_at, key = heapq.heappop(self._heap)
            if self._ends.get(key) == ends_at:
                self.free(key)

    def next_lapse(self) -> int | None:
        """When the next watched lease ends, or None. It may have been renewed since, then nothing lapses at it."""
        return self._heap[0][0] if self._heap else None

    def park(self, client: str, answer: Answer, now: int) -> None:
        """Holds ``answer`` until there is something to tell; an older poll of the client is answered with nothing."""
        state = self._clients.get(client) or self._clients.setdefault(client, _Client(now))
        if state.parked is not None:
            state.parked([])
        else:
            self.parked += 1
        state.seen_at, state.parked = now, answer
        if state.freed:
            self.unpark(client)

    def unpark(self, client: str) -> None:
        """Answers the client's poll, if one is parked, with what there is to tell."""
        state = self._clients.get(client)
        if state is not None and state.parked is not None:
            answer, state.parked = state.parked, None
            self.parked -= 1
            freed, state.freed = state.freed, set()
            answer(list(freed))

    def drop_silent(self, before: int) -> None:
        """Forgets clients without a parked poll that were last heard of before that time: they are gone."""
        silent = [name for name, c in self._clients.items() if c.parked is None and c.seen_at < before]
        for name in silent:
            for key in self._clients.pop(name).watched:
                self._count -= 1
                watchers = self._watchers[key]
                watchers.discard(name)
                if not watchers:
                    del self._watchers[key]
                    self._ends.pop(key, None)
