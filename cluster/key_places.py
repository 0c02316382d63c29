"""Who in this process waits for which key, and whose turn it is to try.

A key that may be free is tried by one waiter; what that waiter finds decides about the others: held again, they go on
waiting; done, all of them learn it; otherwise the next one tries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager


class Place:
    """One waiter's place in the queue of a key."""

    def __init__(self, key: bytes, run_id: str) -> None:
        self.key = key
        self.run_id = run_id
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def called(self) -> bool:
        """Whether it has the turn."""
        return self._turn.done()

    def call(self) -> None:
        """Gives it the turn."""
        if not self._turn.done():
            self._turn.set_result(None)

    def rest(self) -> None:
        """Takes the turn away again."""
        self._turn = asyncio.get_running_loop().create_future()

    async def turn(self, deadline: float) -> bool:
        """Waits for the turn until ``deadline`` (the loop's time); whether it came."""
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._turn)
        except TimeoutError:
            return False
        return True


class _Queue:
    def __init__(self) -> None:
        self.places: OrderedDict[Place, None] = OrderedDict()
        self.trying: Place | None = None
        #: Something happened while one was trying, perhaps after its try was decided.
        self.stirred = False

    def next(self) -> None:
        """The first that has no turn tries."""
        self.stirred = False
        self.trying = next((place for place in self.places if not place.called), None)
        if self.trying is not None:
            self.trying.call()


class KeyPlaces:
    """The queues of all keys that are waited for. Belongs to one event loop."""

    def __init__(self) -> None:
        self._queues: dict[bytes, _Queue] = {}

    def __len__(self) -> int:
        """The number of keys that are waited for."""
        return len(self._queues)

    @property
    def waiting(self) -> int:
        """The number of places taken."""
        return sum(len(queue.places) for queue in self._queues.values())

    @contextmanager
    def take(self, key: bytes, run_id: str) -> Iterator[Place]:
        """A place in the key's queue, freed at the end however that comes; whoever had the turn passes it on."""
        queue = self._queues.setdefault(key, _Queue())
        place = Place(key, run_id)
        queue.places[place] = None
        try:
            yield place
        finally:
            del queue.places[place]
            if queue.trying is place:
                queue.next()
            if not queue.places:
                del self._queues[key]

    def may_be_free(self, key: bytes) -> None:
        """The key stopped being held."""
        queue = self._queues.get(key)
        if queue is None:
            return
        if queue.trying is None:
            queue.next()
        else:
            queue.stirred = True

    def all_may_be_free(self) -> None:
        """Nothing is known about any key any more."""
        for key in list(self._queues):
            self.may_be_free(key)

    def still_held(self, place: Place) -> None:
        """``place`` tried, and another run holds the key: everybody goes on waiting."""
        place.rest()
        queue = self._queues[place.key]
        if queue.trying is place:
            queue.trying = None
            if queue.stirred:
                queue.next()

    def decided(self, place: Place, done: bool) -> None:
        """``place`` got its verdict. ``done``: the effect is finished, which all others are to learn at once.

        Otherwise the next one tries (so that the ledger knows that somebody still waits), and those of the same run,
        which do not wait for their own run.
        """
        for other in self._queues[place.key].places:
            if other is not place and (done or other.run_id == place.run_id):
                other.call()
