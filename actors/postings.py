"""Which members of a tier a term stands in, and how often: a list of them, or a count for every member of the tier.

A list has one 64-bit entry per member, position in the upper bits and count in the lower 16, in no order. A term that
stands in a large part of a large tier is *common*: it has a column of 16-bit counts instead, which is scored in one
pass in the order of memory, and where a member that comes, leaves or moves is one place and no search.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muniment.actors.positions import Column, Positions, Shrink

COUNT_BITS: Final = 16
COUNT_MASK: Final = (1 << COUNT_BITS) - 1
_COMMON_FROM: Final = 4_096  # members below which a list is as fast
_COMMON_SHARE: Final = 1 / 6  # of the tier's members, above which one pass over all of them costs less than the list
_SHORT: Final = 16  # entries up to which a loop is faster than numpy's calls


class Renumbering:
    """New numbers for positions: ``changes`` from old to new, -1 for a member that is gone; the others keep theirs."""

    def __init__(self, changes: dict[int, int], length: int) -> None:
        self.changes = changes
        self._length = length

    @cached_property
    def of_all(self) -> NDArray[np.int64]:
        """(n,) the new number of each old position."""
        numbers = np.arange(self._length)
        numbers[list(self.changes)] = list(self.changes.values())
        return numbers


class Postings:
    """The members of one term. Identity counts: documents refer to these objects."""

    __slots__ = ("_count", "counts", "entries", "term")

    def __init__(self, term: str) -> None:
        self.term = term
        self.entries = array("q")
        self.counts: Column | None = None
        self._count = 0

    @property
    def common(self) -> bool:
        """Whether there is a count for every member of the tier, and no list."""
        return self.counts is not None

    @property
    def members(self) -> int:
        """In how many members the term stands; may be read without the tier's lock."""
        return len(self.entries) if self.counts is None else self._count

    def put(self, position: int, count: int) -> None:
        """Adds a member that the term does not stand in yet."""
        if self.counts is None:
            self.entries.append(position << COUNT_BITS | min(count, COUNT_MASK))
        else:
            self.counts.values[position] = min(count, COUNT_MASK)
            self._count += 1

    def put_all(self, packed: bytes) -> None:
        """Adds members that the term does not stand in yet, as packed entries."""
        if self.counts is None:
            self.entries.frombytes(packed)
        else:
            self._count += _counted(packed, self.counts)

    def drop(self, position: int) -> None:
        """Takes out a member that the term stands in."""
        if self.counts is not None:
            self.counts.values[position] = 0
            self._count -= 1
            return
        entries = self.entries
        # An array does not change its length while a view of it is held.
        place = int(np.flatnonzero(np.frombuffer(entries, np.int64) >> COUNT_BITS == position)[0])
        entries[place] = entries[-1]
        entries.pop()

    def renumber(self, renumbering: Renumbering) -> None:
        """Gives the entries of a list the new numbers of their positions, in place."""
        entries = self.entries
        if len(entries) <= _SHORT:
            changes = renumbering.changes
            kept = [
                new << COUNT_BITS | entry & COUNT_MASK
                for entry in entries
                if (new := changes.get(entry >> COUNT_BITS, entry >> COUNT_BITS)) >= 0
            ]
            entries[:] = array("q", kept)
            return
        view = np.frombuffer(entries, np.int64)
        numbers = renumbering.of_all.take(view >> COUNT_BITS)
        staying = numbers >= 0
        left = int(np.count_nonzero(staying))
        view[:left] = (numbers << COUNT_BITS | view & COUNT_MASK)[staying]
        del view
        del entries[left:]

    def shrink(self, shrink: Shrink) -> None:
        """Follows a removal; of a common term."""
        assert self.counts is not None
        self._count -= int(np.count_nonzero(self.counts.shrink(shrink)))

    def reshape(self, positions: Positions) -> None:
        """Makes a column of the list, or a list of the column, where the term's share of the tier says so. It changes
        back at half of the share, so that no write tips it to and fro."""
        if len(self.entries) <= _COMMON_FROM and self.counts is None:
            return
        wanted = max(_COMMON_FROM, _COMMON_SHARE * len(positions))
        if self.counts is None:
            if len(self.entries) > wanted:
                counts = Column(positions, np.uint16, 0)
                self._count = _counted(self.entries, counts)
                self.counts = counts  # from here on `members` is read from the count, so that stands by now
                self.entries = array("q")
        elif self._count < wanted / 2:
            at = np.flatnonzero(self.counts.values)
            self.entries = array("q", (at << COUNT_BITS | self.counts.values[at]).tobytes())
            self.counts = None


def _counted(packed: bytes | array[int], counts: Column) -> int:
    """Writes entries into a column; how many they are."""
    entries = np.frombuffer(packed, np.int64)
    counts.values[entries >> COUNT_BITS] = entries & COUNT_MASK
    return len(entries)
