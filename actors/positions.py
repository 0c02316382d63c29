"""The dense numbering of one tier's members, which its indexes and columns share so that one mask serves them all.

The n members of a tier always lie at the positions 0 to n - 1. A new id is appended; where ids leave, the members at
the end move into the holes. So a condition on members is a numpy mask of n booleans, aligned with every index and
column of the tier, and no position beyond n - 1 ever holds anything.

A position is good only while ``lock`` is held: whoever makes a mask and searches with it holds the lock over both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class Shrink:
    """What a removal did: the members of ``vacated`` are gone, ``sources[i]`` moved to ``targets[i]``, and ``length``
    members remain. All arrays are int64; ``sources`` (ascending, all ≥ ``length``) and ``targets`` (ascending, all
    < ``length``, a part of ``vacated``) are equally long."""

    vacated: NDArray[np.int64]
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    length: int


class Positions:
    """The members of one tier. ``lock`` (re-entrant) guards them and everything that is aligned with them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._ids: list[str] = []
        self._position: dict[str, int] = {}
        self._followers: list[Callable[[Shrink], object]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: object) -> bool:
        return id in self._position

    def __getitem__(self, id: str) -> int:
        """The position of a member. Raises ``KeyError``."""
        return self._position[id]

    def id_at(self, position: int) -> str:
        """The member at ``position``. Raises ``IndexError``."""
        return self._ids[position]

    def ids(self) -> list[str]:
        """All members in the order of their positions: a copy."""
        with self.lock:
            return self._ids.copy()

    def mask(self, ids: Iterable[str]) -> NDArray[np.bool_]:
        """(n,) bool: true for these members; an id that is no member is passed over."""
        with self.lock:
            mask = np.zeros(len(self._ids), np.bool_)
            mask[[self._position[id] for id in ids if id in self._position]] = True
            return mask

    def check(self, mask: NDArray[np.bool_] | None) -> None:
        """Raises ``ValueError`` for a mask that is not (n,) bool: it was made for other members."""
        if mask is not None and (mask.shape != (len(self._ids),) or mask.dtype != np.bool_):
            raise ValueError(f"the mask is {mask.dtype} {mask.shape}, the tier has {len(self._ids)} members")

    def best(self, positions: NDArray[np.int64], scores: NDArray[np.floating], k: int) -> NDArray[np.int64]:
        """The places in ``positions`` (m,) of the min(k, m) highest ``scores`` (m,), in no order; of equals at the cut
        the first by id, because positions do not survive a reload."""
        if len(scores) <= k:
            return np.arange(len(scores))
        if k <= 0:
            return np.empty(0, np.int64)
        cut = np.partition(scores, len(scores) - k)[len(scores) - k]
        above, equal = np.flatnonzero(scores > cut), np.flatnonzero(scores == cut)
        missing = k - len(above)
        if len(equal) > missing:
            ids = [self._ids[position] for position in positions[equal].tolist()]
            equal = equal[sorted(range(len(ids)), key=ids.__getitem__)[:missing]]
        return np.concatenate([above, equal])

    def follow(self, follower: Callable[[Shrink], object]) -> None:
        """Calls ``follower`` after every removal, in the order of these calls, while ``lock`` is held."""
        self._followers.append(follower)

    def column(self, dtype: DTypeLike, fill: Any) -> Column:
        """A column that follows: one value of ``dtype`` for each member, ``fill`` until it is written."""
        column = Column(self, dtype, fill)
        self.follow(column.shrink)
        return column

    def add(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The positions (len(ids),) of these ids, of which the new ones are appended in the given order."""
        with self.lock:
            for id in ids:
                if id not in self._position:
                    self._position[id] = len(self._ids)
                    self._ids.append(id)
            return np.fromiter((self._position[id] for id in ids), np.int64, len(ids))

    def remove(self, ids: Iterable[str]) -> int:
        """Removes these members, fills the holes from the end and tells the followers. Returns how many there were; an
        id that is no member is passed over."""
        with self.lock:
            gone = {self._position.pop(id) for id in ids if id in self._position}
            if not gone:
                return 0
            before = len(self._ids)
            length = before - len(gone)
            sources = [position for position in range(length, before) if position not in gone]
            targets = sorted(position for position in gone if position < length)
            for source, target in zip(sources, targets, strict=True):
                moved = self._ids[source]
                self._ids[target] = moved
                self._position[moved] = target
            del self._ids[length:]
            shrink = Shrink(np.array(sorted(gone)), np.array(sources, np.int64), np.array(targets, np.int64), length)
            for follower in self._followers:
                follower(shrink)
            return len(gone)


class Column:
    """One value for each member, aligned with the positions. Memory is bounded by twice the most members there were."""

    def __init__(self, positions: Positions, dtype: DTypeLike, fill: Any) -> None:
        self._positions = positions
        self._fill = fill
        self._array: NDArray[Any] = np.full(0, fill, dtype)

    @property
    def values(self) -> NDArray[Any]:
        """(n,), a writable view; taken anew after every change of the members, and used while the lock is held."""
        length = len(self._positions)
        if length > len(self._array):
            larger = np.full(max(length, 2 * len(self._array), 16), self._fill, self._array.dtype)
            larger[: len(self._array)] = self._array
            self._array = larger
        return self._array[:length]

    def shrink(self, shrink: Shrink) -> NDArray[Any]:
        """Follows a removal and returns what the members that left had, in the order of ``vacated``."""
        known = len(self._array)
        if shrink.length + len(shrink.vacated) > known:  # members that no value was ever written for
            self._array = np.concatenate(
                [self._array, np.full(shrink.length + len(shrink.vacated) - known, self._fill, self._array.dtype)]
            )
        left = self._array[shrink.vacated]
        self._array[shrink.targets] = self._array[shrink.sources]
        self._array[shrink.length :] = self._fill
        return left
