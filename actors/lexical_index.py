"""The lexical index of one tier: BM25 over its members' terms, beside the vector index and under the same masks.

Okapi BM25 (Robertson and Zaragoza, 2009) with the idf that is never negative, ln(1 + (N - df + 0.5) / (df + 0.5)).
It is our own because members come and go with every write: of the kept libraries, those on sparse matrices cannot take
a document out, and the search engines show a change only after a commit and know no mask of positions.

Each term has one array of 64-bit entries, position in the upper bits and count in the lower 16. When members leave, the
entries of those that left are taken out and those of members that moved into the holes are renumbered, all in place; so
nothing stale is ever left, and document frequencies are the lengths of these arrays.

Statistics of another tier of the same corpus are read without its lock: they may be a write behind, which moves
scores by a hair.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muniment.actors.positions import Column, Positions, Shrink

_COUNT_BITS: Final = 16
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_MANY: Final = 16  # documents from which on numpy's calls are worth it
_SHORT: Final = 16  # entries up to which a loop is faster than numpy's calls


class _Postings:
    """Which members a term stands in, and how often. Identity counts: documents refer to these objects."""

    __slots__ = ("entries", "term")

    def __init__(self, term: str) -> None:
        self.term = term
        self.entries = array("q")


class Corpus:
    """What the members of several indexes have in common: how many they are, how long, how many hold a term.

    Indexes that share one give scores on one scale, so that the candidates of two tiers can be ranked together.
    """

    def __init__(self) -> None:
        self._indexes: list[LexicalIndex] = []

    def join(self, index: LexicalIndex) -> None:
        """Counts the members of ``index`` from now on."""
        self._indexes.append(index)

    def size(self) -> tuple[int, int]:
        """How many members have terms, and how many terms they have together."""
        return sum(index._count for index in self._indexes), sum(index._total_length for index in self._indexes)

    def frequency(self, term: str) -> int:
        """How many members the term stands in."""
        found = (index._postings.get(term) for index in self._indexes)
        return sum(len(postings.entries) for postings in found if postings is not None)


class LexicalIndex:
    """The terms of the members of a tier; ``positions`` says who is one and is shared with the tier's other indexes.

    ``k1`` ≥ 0: the larger, the later repetition of a term stops to count. ``b`` in [0, 1]: how much long texts are held
    back. Safe for concurrent use; one lock, ``positions.lock``, for the tier. A member that leaves the positions leaves
    this index by itself. ``corpus`` gives the statistics; without one they are this index's own.
    """

    def __init__(self, positions: Positions, k1: float = 1.2, b: float = 0.75, corpus: Corpus | None = None) -> None:
        if not (0 <= k1 < math.inf and 0 <= b <= 1):
            raise ValueError("k1 must be finite and at least 0, b in [0, 1]")
        self._positions = positions
        self._lock = positions.lock
        self._k1 = k1
        self._b = b
        self._postings: dict[str, _Postings] = {}
        self._documents: list[tuple[_Postings, ...]] = []
        self._lengths = Column(positions, np.int32, 0)
        self._count = 0
        self._total_length = 0
        self._corpus = corpus or Corpus()
        self._corpus.join(self)
        positions.follow(self._shrink)

    def __len__(self) -> int:
        """How many members have terms."""
        return self._count

    def add(self, id: str, terms: Mapping[str, int]) -> None:
        """Sets the terms of a member, each with the number of times it stands in the text; those it had are replaced,
        and none take them out. Raises ``KeyError`` where ``id`` has no position."""
        with self._lock:
            position = self._positions[id]
            self._documents.extend([()] * (position + 1 - len(self._documents)))
            if self._documents[position]:
                self._change(self._documents[position], {position: -1})
                self._count -= 1
            known, entry, document = self._postings, position << _COUNT_BITS, []
            for term, count in terms.items():
                postings = known.get(term)
                if postings is None:
                    postings = known[term] = _Postings(term)
                postings.entries.append(entry | count if count < _COUNT_MASK else entry | _COUNT_MASK)
                document.append(postings)
            self._documents[position] = tuple(document)
            length = sum(terms.values())
            self._total_length += length - int(self._lengths.values[position])
            self._lengths.values[position] = length
            self._count += bool(document)

    def add_all(self, documents: Mapping[str, Mapping[str, int]]) -> None:
        """``add`` for each of these; of many, in less than half of the time."""
        if len(documents) < _MANY:
            for id, terms in documents.items():
                self.add(id, terms)
            return
        with self._lock:
            positions = [self._positions[id] for id in documents]
            self._documents.extend([()] * (max(positions, default=-1) + 1 - len(self._documents)))
            for id, position in zip(documents, positions, strict=True):
                if self._documents[position]:
                    self.add(id, {})
            sizes = [len(terms) for terms in documents.values()]
            # Each term gets a number; entries are made for all, and put in the order of their terms.
            numbers: dict[str, int] = defaultdict(itertools.count().__next__)
            spoken = itertools.chain.from_iterable(documents.values())
            codes = np.fromiter(map(numbers.__getitem__, spoken), np.int64, sum(sizes))
            often = itertools.chain.from_iterable(terms.values() for terms in documents.values())
            counts = np.fromiter(often, np.int64, sum(sizes))
            entries = np.repeat(np.array(positions, np.int64), sizes) << _COUNT_BITS | np.minimum(counts, _COUNT_MASK)
            packed = entries[np.argsort(codes, kind="stable")].tobytes()
            known = self._postings
            found = [known.get(term) or known.setdefault(term, _Postings(term)) for term in numbers]
            start = 0
            for postings, end in zip(found, (8 * np.cumsum(np.bincount(codes))).tolist(), strict=True):
                postings.entries.frombytes(packed[start:end])
                start = end
            start, coded = 0, codes.tolist()
            for position, size in zip(positions, sizes, strict=True):
                self._documents[position] = tuple(map(found.__getitem__, coded[start : start + size]))
                start += size
            lengths = [sum(terms.values()) for terms in documents.values()]
            self._lengths.values[positions] = lengths
            self._total_length += sum(lengths)
            self._count += sum(map(bool, sizes))

    def search(
        self, terms: Iterable[str], k: int, mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The positions of the best ``k`` visible members that have at least one of the terms, in no order, of equals
        at the cut the first by id; and the BM25 of every member (n,), higher is better, 0 where it has none of them. A
        term that stands twice counts twice.

        ``mask``: (n,) bool, true where visible, aligned with the positions; it is applied before the cut and does not
        change the scores. Raises ``ValueError`` for another shape.
        """
        with self._lock:
            self._positions.check(mask)
            asked = [(self._postings[t], n) for t, n in sorted(Counter(terms).items()) if t in self._postings]
            totals = self._totals(asked) if asked else np.zeros(len(self._positions))
            found = np.flatnonzero(totals > 0 if mask is None else (totals > 0) & mask)
            return found[self._positions.best(found, totals[found], k)], totals

    def _totals(self, asked: list[tuple[_Postings, int]]) -> NDArray[np.float64]:
        """(n,) the BM25 score of every member, summed in the order of ``asked``, so that equal texts score equally."""
        sizes = [len(postings.entries) for postings, _ in asked]
        members, length = self._corpus.size()
        weights = [times * (self._k1 + 1) * self._idf(postings.term, members) for postings, times in asked]
        # The views are dropped at once: an array does not grow while one is held.
        entries = np.concatenate([np.frombuffer(postings.entries, np.int64) for postings, _ in asked])
        at = entries >> _COUNT_BITS
        entries &= _COUNT_MASK
        counts = entries.astype(np.float32)
        scores = self._lengths.values.take(at).astype(np.float32)
        scores *= self._k1 * self._b * members / length
        scores += self._k1 * (1 - self._b)
        scores += counts
        np.divide(counts, scores, out=scores)
        scores *= np.repeat(np.array(weights, np.float32), sizes)
        return np.asarray(np.bincount(at, scores, len(self._positions)), np.float64)

    def _idf(self, term: str, members: int) -> float:
        frequency = self._corpus.frequency(term)
        return math.log1p((max(members, frequency) - frequency + 0.5) / (frequency + 0.5))

    def _shrink(self, shrink: Shrink) -> None:
        """Follows a removal."""
        documents = self._documents
        documents.extend([()] * (shrink.length + len(shrink.vacated) - len(documents)))
        vacated, sources, targets = shrink.vacated.tolist(), shrink.sources.tolist(), shrink.targets.tolist()
        changes = dict.fromkeys(vacated, -1)
        changes.update(zip(sources, targets, strict=True))
        self._change({postings for position in changes for postings in documents[position]}, changes)
        self._count -= sum(bool(documents[position]) for position in vacated)
        self._total_length -= int(self._lengths.shrink(shrink).sum())
        for source, target in zip(sources, targets, strict=True):
            documents[target] = documents[source]
        del documents[shrink.length :]

    def _change(self, affected: Iterable[_Postings], changes: dict[int, int]) -> None:
        """Renumbers the entries of these postings: old position → new one, -1 to take it out."""
        renumbered: NDArray[np.int64] | None = None
        for postings in affected:
            entries = postings.entries
            if len(entries) <= _SHORT:
                kept = [
                    new << _COUNT_BITS | entry & _COUNT_MASK
                    for entry in entries
                    if (new := changes.get(entry >> _COUNT_BITS, entry >> _COUNT_BITS)) >= 0
                ]
                entries[:] = array("q", kept)
            else:
                if renumbered is None:
                    renumbered = np.arange(len(self._documents))
                    renumbered[list(changes)] = list(changes.values())
                _renumber(entries, renumbered)
            if not entries:
                del self._postings[postings.term]


def _renumber(entries: array[int], renumbered: NDArray[np.int64]) -> None:
    """Gives every entry the new number of its position; entries whose number is -1 go. In place."""
    view = np.frombuffer(entries, np.int64)
    new = renumbered.take(view >> _COUNT_BITS)
    kept = new >= 0
    left = int(np.count_nonzero(kept))
    view[:left] = (new << _COUNT_BITS | view & _COUNT_MASK)[kept]
    del view
    del entries[left:]
