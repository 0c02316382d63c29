"""An HNSW graph (arXiv 1603.09320, Faiss) over the members of a tier: it proposes candidates, others score them.

Faiss can neither remove from such a graph nor change a vector in it. So a node is only ever added; where its member
leaves or gets another vector it is *dead*: walked through, never proposed. A member without a node is *uncovered*, and
the caller looks at it directly. Vectors are kept in half precision here, because the exact ones lie in the tier.
"""

from __future__ import annotations

import threading
from typing import Final

import faiss
import numpy as np
from numpy.typing import NDArray

from muniment.actors.positions import Column, Positions, Shrink

_NEIGHBOURS: Final = 32
_LEAST_BREADTH: Final = 200  # HNSW's ef; recall@100 of 0.996 and more at 30,000 members
_BREADTH_PER_CANDIDATE: Final = 3  # of those 0.99 are right where half of them are hidden; with 1 it is 0.94
_faiss_threads = threading.local()


class HnswGraph:
    """The graph of one tier. Not safe for concurrent use: the caller holds ``positions.lock``, with one exception, that
    ``insert`` into a graph which nobody searches yet may run without it."""

    def __init__(self, dimension: int, positions: Positions) -> None:
        self._index = faiss.IndexHNSWSQ(
            dimension, faiss.ScalarQuantizer.QT_fp16, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT
        )
        self._positions = positions
        self._node_of = Column(positions, np.int32, -1)
        self._position_of: NDArray[np.int32] = np.empty(0, np.int32)
        self.nodes = 0
        self.dead = 0

    @property
    def uncovered(self) -> int:
        """How many members have no node."""
        return len(self._positions) - (self.nodes - self.dead)

    def uncovered_positions(self) -> NDArray[np.int64]:
        """Where the members without a node are, ascending."""
        return np.flatnonzero(self._node_of.values < 0)

    def claim(self, limit: int) -> NDArray[np.int64]:
        """Numbers nodes for up to ``limit`` uncovered members and returns their positions; their vectors must be the
        next that are inserted, in this order."""
        claimed = self.uncovered_positions()[:limit]
        after = self.nodes + len(claimed)
        if after > len(self._position_of):
            larger = np.empty(max(after, 2 * len(self._position_of), 1024), np.int32)
            larger[: self.nodes] = self._position_of[: self.nodes]
            self._position_of = larger
        self._position_of[self.nodes : after] = claimed
        self._node_of.values[claimed] = np.arange(self.nodes, after)
        self.nodes = after
        return claimed

    def insert(self, vectors: NDArray[np.float32]) -> None:
        """Adds the vectors (m, d) of the members that were claimed last."""
        _one_thread()
        self._index.add(vectors)

    def forget(self, positions: NDArray[np.int64]) -> None:
        """These members get another vector: their nodes, where they have any, are dead."""
        values = self._node_of.values
        self._bury(values[positions])
        values[positions] = -1

    def shrink(self, shrink: Shrink) -> None:
        """Follows a removal."""
        self._bury(self._node_of.shrink(shrink))
        nodes = self._node_of.values[shrink.targets]
        covered = nodes >= 0
        self._position_of[nodes[covered]] = shrink.targets[covered]

    def _bury(self, nodes: NDArray[np.int32]) -> None:
        nodes = nodes[nodes >= 0]
        self._position_of[nodes] = -1
        self.dead += len(nodes)

    def breadth(self, wanted: int) -> int:
        """How many nodes at least (HNSW's ef) a search for so many candidates walks through."""
        return max(_LEAST_BREADTH, _BREADTH_PER_CANDIDATE * self._fetched(wanted))

    def search(self, query: NDArray[np.float32], wanted: int) -> tuple[NDArray[np.int64], float]:
        """Positions of about ``wanted`` covered members near ``query`` (1, d), in no order, and the floor: each covered
        member whose inner product is above it is among them, as far as the graph can tell (-inf: all are)."""
        _one_thread()
        parameters = faiss.SearchParametersHNSW(efSearch=self.breadth(wanted))
        scores, nodes = self._index.search(query, self._fetched(wanted), params=parameters)
        found = nodes[0][nodes[0] >= 0]
        floor = float(scores[0][len(found) - 1]) if 0 < len(found) < self.nodes else -np.inf
        positions = self._position_of[found]
        return positions[positions >= 0].astype(np.int64), floor

    def _fetched(self, wanted: int) -> int:
        return min(self.nodes, wanted * self.nodes // max(1, self.nodes - self.dead) + 1)


def _one_thread() -> None:
    """OpenMP keeps its number of threads per calling thread, so each caller's thread must be told once."""
    if not getattr(_faiss_threads, "told", False):
        faiss.omp_set_num_threads(1)
        _faiss_threads.told = True
