"""The lexical index of one tier: BM25 over its members' terms, beside the vector index and under the same masks.

Okapi BM25 (Robertson and Zaragoza, 2009) with the idf that is never negative, ln(1 + (N - df + 0.5) / (df + 0.5)).
It is our own because members come and go with every write: of the kept libraries, those on sparse matrices cannot take
a document out, and the search engines show a change only after a commit and know no mask of positions.

When members leave, what their terms say of them is taken out, and members that moved into the holes are renumbered; so
nothing stale is ever left, and document frequencies are the lengths of the postings.

Statistics of another tier of the same corpus are read without its lock: they may be a write behind, which moves
scores by a hair.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muniment.actors.positions import Column, Positions, Shrink
from muniment.actors.postings import COUNT_BITS, COUNT_MASK, Postings, Renumbering

_MANY: Final = 16  # documents from which on numpy's calls are worth it
_GROWN: Final = 1.25  # growth of a tier after which common terms may have become rare in it


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
        return sum(postings.members for postings in found if postings is not None)


class LexicalScores:
    """The BM25 of a tier's members for one query, higher is better, 0 where a member has none of the terms.

    Equal texts score equally: what a term adds is a float32, and sums of these are exact in 64 bits, in whichever
    order (unless one is a ten-millionth of another). Of common terms, which add little each, only that is computed
    which is asked for.
    """

    def __init__(
        self,
        rare: NDArray[np.float64],
        held_back: NDArray[np.float32],
        common: Sequence[tuple[NDArray[np.uint16], np.float32]],
    ) -> None:
        """``rare``: (n,) what rare terms add up to. ``held_back``: (n,) what a count is set against. ``common``: of
        each common term, the counts (n,) and what it adds at most."""
        self._rare = rare
        self._held_back = held_back
        self._common = common

    def of(self, positions: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """(m,) the scores of the members at these positions."""
        totals = self._rare[positions].copy()
        for counts, weight in self._common:
            totals += weight * _saturated(counts[positions].astype(np.float32), self._held_back[positions])
        return totals

    def contenders(self, k: int, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The positions of visible members, ascending, among which the best ``k`` of those with a score are.

        Where more than the common terms can add parts the ``k``-th by rare terms from a member, it is none (the bound
        of MaxScore: Turtle and Flood, 1995).
        """
        seen = self._rare > 0 if mask is None else (self._rare > 0) & mask
        may = np.flatnonzero(seen)
        if not self._common:
            return may
        most = sum(float(weight) for _, weight in self._common)
        if len(may) >= k > 0:
            rare = self._rare[may]
            floor = float(np.partition(rare, len(rare) - k)[len(rare) - k])
            if floor > most:
                return may[rare >= floor - most]
        return np.arange(len(self._rare)) if mask is None else np.flatnonzero(mask)


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
        self._postings: dict[str, Postings] = {}
        self._documents: list[tuple[Postings, ...]] = []
        self._common: set[Postings] = set()
        self._settled_at = 0  # members that the tier had then
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
                self._clear(position)
            document = [self._postings_of(term) for term in terms]
            for postings, count in zip(document, terms.values(), strict=True):
                postings.put(position, count)
            self._documents[position] = tuple(document)
            length = sum(terms.values())
            self._total_length += length
            self._lengths.values[position] = length
            self._count += bool(document)
            self._settle(document)

    def add_all(self, documents: Mapping[str, Mapping[str, int]]) -> None:
        """``add`` for each of these; of many, in less than half of the time."""
        if len(documents) < _MANY:
            for id, terms in documents.items():
                self.add(id, terms)
            return
        with self._lock:
            positions = [self._positions[id] for id in documents]
            self._documents.extend([()] * (max(positions, default=-1) + 1 - len(self._documents)))
            for position in positions:
                if self._documents[position]:
                    self._clear(position)
            sizes = [len(terms) for terms in documents.values()]
            # Each term gets a number; entries are made for all, and put in the order of their terms.
            numbers: dict[str, int] = defaultdict(itertools.count().__next__)
            spoken = itertools.chain.from_iterable(documents.values())
            codes = np.fromiter(map(numbers.__getitem__, spoken), np.int64, sum(sizes))
            often = itertools.chain.from_iterable(terms.values() for terms in documents.values())
            counts = np.fromiter(often, np.int64, sum(sizes))
            entries = np.repeat(np.array(positions, np.int64), sizes) << COUNT_BITS | np.minimum(counts, COUNT_MASK)
            packed = entries[np.argsort(codes, kind="stable")].tobytes()
            found = [self._postings_of(term) for term in numbers]
            start = 0
            for postings, end in zip(found, (8 * np.cumsum(np.bincount(codes))).tolist(), strict=True):
                postings.put_all(packed[start:end])
                start = end
            start, coded = 0, codes.tolist()
            for position, size in zip(positions, sizes, strict=True):
                self._documents[position] = tuple(map(found.__getitem__, coded[start : start + size]))
                start += size
            lengths = [sum(terms.values()) for terms in documents.values()]
            self._lengths.values[positions] = lengths
            self._total_length += sum(lengths)
            self._count += sum(map(bool, sizes))
            self._settle(found)

    def search(
        self, terms: Iterable[str], k: int, mask: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], LexicalScores]:
        """The positions of the best ``k`` visible members that have at least one of the terms, in no order, of equals
        at the cut the first by id; and what gives the BM25 of whichever members, while the lock is held. A term that
        stands twice counts twice.

        ``mask``: (n,) bool, true where visible, aligned with the positions; it is applied before the cut and does not
        change the scores. Raises ``ValueError`` for another shape.
        """
        with self._lock:
            self._positions.check(mask)
            scores = self._scores({self._postings[t]: n for t, n in Counter(terms).items() if t in self._postings})
            may = scores.contenders(k, mask)
            # In order of memory, and nothing looked up, where it is all of them.
            found = scores.of(slice(None) if len(may) == len(self._positions) else may)
            if not found.all():
                may, found = may[found > 0], found[found > 0]
            return may[self._positions.best(may, found, k)], scores

    def _scores(self, asked: Mapping[Postings, int]) -> LexicalScores:
        """``asked``: how often a query says each term."""
        if not asked:
            return LexicalScores(np.zeros(len(self._positions)), np.empty(0, np.float32), [])
        members, length = self._corpus.size()
        held_back = self._lengths.values.astype(np.float32)
        held_back *= self._k1 * self._b * members / length
        held_back += self._k1 * (1 - self._b)
        np.maximum(held_back, np.finfo(np.float32).tiny, out=held_back)  # with k1 = 0 it would be 0 / 0
        weights = {
            postings: np.float32(times * (self._k1 + 1) * self._idf(postings.term, members))
            for postings, times in asked.items()
        }
        totals = self._rare_totals([postings for postings in weights if not postings.common], weights, held_back)
        common = [(p.counts.values, weight) for p, weight in weights.items() if p.counts is not None]
        return LexicalScores(totals, held_back, common)

    def _rare_totals(
        self, rare: list[Postings], weights: Mapping[Postings, np.float32], held_back: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        if not rare:
            return np.zeros(len(held_back))
        # The views are dropped at once: an array does not grow while one is held.
        entries = np.concatenate([np.frombuffer(postings.entries, np.int64) for postings in rare])
        at = entries >> COUNT_BITS
        entries &= COUNT_MASK
        scores = _saturated(entries.astype(np.float32), held_back.take(at))
        scores *= np.repeat(np.array([weights[postings] for postings in rare]), [postings.members for postings in rare])
        return np.asarray(np.bincount(at, scores, len(held_back)), np.float64)

    def _idf(self, term: str, members: int) -> float:
        frequency = self._corpus.frequency(term)
        return math.log1p((max(members, frequency) - frequency + 0.5) / (frequency + 0.5))

    def _postings_of(self, term: str) -> Postings:
        found = self._postings.get(term)
        return self._postings.setdefault(term, Postings(term)) if found is None else found

    def _clear(self, position: int) -> None:
        """Takes the terms of a member out."""
        for postings in self._documents[position]:
            postings.drop(position)
        self._settle(self._documents[position])
        self._documents[position] = ()
        self._total_length -= int(self._lengths.values[position])
        self._lengths.values[position] = 0
        self._count -= 1

    def _shrink(self, shrink: Shrink) -> None:
        """Follows a removal."""
        documents = self._documents
        before = shrink.length + len(shrink.vacated)
        documents.extend([()] * (before - len(documents)))
        vacated, sources, targets = shrink.vacated.tolist(), shrink.sources.tolist(), shrink.targets.tolist()
        changes = dict.fromkeys(vacated, -1)
        changes.update(zip(sources, targets, strict=True))
        renumbering = Renumbering(changes, before)
        affected = {postings for position in changes for postings in documents[position]} | self._common
        for postings in affected:
            if postings.common:
                postings.shrink(shrink)
            else:
                postings.renumber(renumbering)
        self._settled_at = min(self._settled_at, shrink.length)
        self._settle(affected)
        self._count -= sum(bool(documents[position]) for position in vacated)
        self._total_length -= int(self._lengths.shrink(shrink).sum())
        for source, target in zip(sources, targets, strict=True):
            documents[target] = documents[source]
        del documents[shrink.length :]

    def _settle(self, changed: Iterable[Postings]) -> None:
        """Keeps those that have members, as lists or columns; common ones also where the tier outgrew them."""
        if len(self._positions) > _GROWN * self._settled_at:
            self._settled_at = len(self._positions)
            changed = [*changed, *self._common]
        for postings in changed:
            postings.reshape(self._positions)
            if postings.common:
                self._common.add(postings)
            else:
                self._common.discard(postings)
                if not postings.members:
                    self._postings.pop(postings.term, None)


def _saturated(counts: NDArray[np.float32], held_back: NDArray[np.float32]) -> NDArray[np.float32]:
    """What each count adds, in [0, 1), before the term's weight."""
    scores = held_back + counts
    np.divide(counts, scores, out=scores)
    return scores
