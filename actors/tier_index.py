"""The vector index of one tier of one tenant: the top k by cosine among the visible members (rule 2), bounded and
deletable.

Exact search is always there: the vectors lie in one array, each at its member's position, so a removal moves rows into
the holes and nothing is left behind. Above a size an HNSW graph proposes candidates, which are scored exactly. The
graph is built and mended by a thread of its own and never delays a write; whenever it cannot answer (not built yet, a
mask that keeps less than half, too few candidates) the search is exact instead.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from muniment.actors.positions import Positions, Shrink

if TYPE_CHECKING:
    from muniment.actors.hnsw_graph import HnswGraph

Kind = Literal["auto", "flat", "hnsw"]
Hits = tuple[NDArray[np.int64], NDArray[np.float32]]

_NONE: Final = np.empty(0, np.int64)

HNSW_ABOVE: Final = 10_000
"""Members above which HNSW is faster than an exact search at 384 dimensions (``tests.bench.index``)."""

_DEAD_SHARE: Final = 0.25  # of the nodes, above which the graph is built anew
_UNCOVERED: Final = 256  # members that each search may look at directly before they are put into the graph
_LEAST_KEPT: Final = 0.5  # share of visible members below which the graph's candidates run out
_STEP_COST: Final = 25  # what one step of the walk through the graph costs, in members looked at exactly
_SPARE: Final = 1.2  # candidates beyond what the share of visible members asks for
_GATHERED_BELOW: Final = 0.25  # share of members below which their rows are copied out, not all of them scored
_BUILD_STEP: Final = 64  # vectors copied out under the lock at a time
_MEND_STEP: Final = 8  # vectors inserted under the lock at a time: a few milliseconds
_MEND_PAUSE_SECONDS: Final = 0.001  # lets a waiting search take the lock between two steps
_NORMED_AT_ONCE: Final = 256  # rows of which double-precision copies stay in the processor's cache

_building = threading.Semaphore(1)  # one build at a time in a process, however many tenants grow at once


class TierIndex:
    """The vectors of one tier, L2-normalised float32 of ``dimension``, and its members' ``positions``.

    ``kind``: ``flat`` is always exact; ``hnsw`` always has a graph; ``auto`` gets one above ``hnsw_above`` members and
    drops it below half of that. A graph is used where that costs less. Safe for concurrent use; one lock,
    ``positions.lock``, for the tier.

    Others share ``positions``: a lexical index, columns of what masks are made from. Members come and go here alone:

        with index.positions.lock:
            index.add(ids, vectors)             # then lexical.add(...), column.values[index.positions[id]] = ...
            mask = area.values == wanted        # (n,) bool; columns follow every removal by themselves
            worded, scores = lexical.search(terms, 100, mask)
            positions, cosines = index.search(query, 100, mask, also=worded)
            bm25 = scores.of(positions)
    """

    def __init__(self, dimension: int, kind: Kind = "auto", hnsw_above: int = HNSW_ABOVE) -> None:
        if dimension < 1:
            raise ValueError("the dimension must be positive")
        self.dimension = dimension
        self.positions = Positions()
        self.positions.follow(self._shrink)
        self._lock = self.positions.lock
        self._rows: NDArray[np.float32] = np.empty((0, dimension), np.float32)  # beyond the members: room for more
        self._graph_above = {"flat": math.inf, "hnsw": 0, "auto": hnsw_above}[kind]
        self._graph: HnswGraph | None = None
        self._graph_in_work: HnswGraph | None = None
        self._closed = False
        self._settled = threading.Event()
        self._settled.set()

    def __len__(self) -> int:
        return len(self.positions)

    def __contains__(self, id: object) -> bool:
        return id in self.positions

    def ids(self) -> list[str]:
        """All members in the order of their positions."""
        return self.positions.ids()

    def vector(self, id: str) -> NDArray[np.float32]:
        """The vector (d,) of a member, normalised: a copy. Raises ``KeyError``."""
        with self._lock:
            row: NDArray[np.float32] = self._rows[self.positions[id]].copy()
            return row

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Adds members with their vectors (n, d), normalised here. The vector of an id that is a member is replaced; of
        an id that stands here twice the last one counts. Raises ``ValueError``, and adds nothing, where the shape is
        another or a vector is zero or not finite."""
        rows = self._normalised(vectors, len(ids))
        last = {id: row for row, id in enumerate(ids)}
        if not last:
            return
        with self._lock:
            before = len(self.positions)
            positions = self.positions.add(list(last))
            rows = rows[list(last.values())]
            replaced = positions < before
            for graph in self._graphs():
                graph.forget(positions[replaced])
            self._store(positions, rows)
            self._tend()

    def remove(self, ids: Sequence[str]) -> int:
        """Removes these members from the tier, and so from all that follows its positions. Returns how many there were;
        an id that is no member is passed over."""
        return self.positions.remove(ids)

    def search(
        self,
        query: NDArray[np.float32],
        k: int,
        mask: NDArray[np.bool_] | None = None,
        also: NDArray[np.int64] = _NONE,
    ) -> Hits:
        """The positions (m,) int64 of the ``k`` visible members nearest to ``query`` (d,), and their cosines (m,)
        float32 in [-1, 1], in no order; of equals at the cut the first by id (where a graph proposes: among what it
        found). Always min(k, visible) of them, and beside them the members at the positions ``also``.

        ``mask``: (n,) bool, true where visible, aligned with the positions; it is applied before the cut. Equal vectors
        have equal cosines, wherever they lie. Raises ``ValueError`` for another shape.
        """
        wanted = self._normalised(np.asarray(query)[np.newaxis], 1)
        with self._lock:
            members = len(self.positions)
            self.positions.check(mask)
            visible = np.arange(members) if mask is None else np.flatnonzero(mask)
            near, cosines = self._approximate(wanted, k, mask, len(visible), also) or self._exact(
                wanted[0], k, visible, also
            )
            chosen = np.zeros(members, np.bool_)
            chosen[near] = chosen[also] = True
            found = np.flatnonzero(chosen)
            return found, cosines[found]

    def settle(self, timeout_seconds: float) -> bool:
        """Waits until no build or mending of the graph is under way; whether that came in time."""
        return self._settled.wait(timeout_seconds)

    def close(self) -> None:
        """Ends the upkeep, for a tier that is unloaded. Search goes on to work."""
        with self._lock:
            self._closed = True

    # --- exact search

    def _normalised(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = np.array(vectors, np.float32, order="C")
        if rows.shape != (count, self.dimension):
            raise ValueError(f"vectors have the shape {rows.shape}, not {(count, self.dimension)}")
        for start in range(0, count, _NORMED_AT_ONCE):
            part = rows[start : start + _NORMED_AT_ONCE]
            wide = part.astype(np.float64)
            lengths = np.sqrt(np.vecdot(wide, wide))[:, np.newaxis]
            if not (np.isfinite(lengths) & (lengths > 0)).all():
                raise ValueError("a vector is zero or not finite")
            part /= lengths
        return rows

    def _store(self, positions: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Writes the rows of these positions, of which new ones are at the end."""
        members = len(self.positions)
        if members > len(self._rows):
            larger = np.empty((max(members, 2 * len(self._rows)), self.dimension), np.float32)
            larger[: len(self._rows)] = self._rows
            self._rows = larger
        self._rows[positions] = vectors

    def _exact(self, query: NDArray[np.float32], k: int, among: NDArray[np.int64], also: NDArray[np.int64]) -> Hits:
        """The best k among these; and cosines (n,), good where either lies."""
        cosines = self._cosines(query, np.concatenate([among, also]))
        return among[self.positions.best(among, cosines[among], k)], cosines

    def _cosines(self, query: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n,) the cosines, good at these positions. Row by row: a product with the whole matrix would round equal rows
        differently, by where they lie."""
        members = len(self.positions)
        if len(positions) >= _GATHERED_BELOW * members:
            of_all: NDArray[np.float32] = np.vecdot(self._rows[:members], query)
            return of_all
        cosines = np.empty(members, np.float32)
        cosines[positions] = np.vecdot(self._rows[positions], query)
        return cosines

    # --- the graph

    def _graphs(self) -> list[HnswGraph]:
        return [graph for graph in (self._graph, self._graph_in_work) if graph is not None]

    def _approximate(
        self,
        query: NDArray[np.float32],
        k: int,
        mask: NDArray[np.bool_] | None,
        visible: int,
        also: NDArray[np.int64],
    ) -> Hits | None:
        """As ``_exact``, of the graph's candidates and of what it does not cover; None where an exact search costs
        less, or better ones may be missing."""
        graph, members = self._graph, len(self.positions)
        if graph is None or visible < _LEAST_KEPT * members:
            return None
        wanted = math.ceil(_SPARE * k * members / visible)
        if graph.breadth(wanted) * _STEP_COST > visible:
            return None
        candidates, floor = graph.search(query, wanted)
        candidates = np.concatenate([candidates, graph.uncovered_positions()])
        if mask is not None:
            candidates = candidates[mask[candidates]]
        if len(candidates) < k:
            return None
        near, cosines = self._exact(query[0], k, candidates, also)
        return (near, cosines) if cosines[near].min(initial=np.inf) >= floor else None

    def _shrink(self, shrink: Shrink) -> None:
        for graph in self._graphs():
            graph.shrink(shrink)
        self._rows[shrink.targets] = self._rows[shrink.sources]
        self._tend()

    def _wants_graph(self) -> bool:
        members = len(self.positions)
        keeps = self._graph_above / 2 if self._graph is not None else self._graph_above
        return members > keeps and not self._closed

    def _next_upkeep(self) -> Literal["build", "mend"] | None:
        if not self._wants_graph():
            return None
        if self._graph is None or self._graph.dead > _DEAD_SHARE * self._graph.nodes:
            return "build"
        return "mend" if self._graph.uncovered > _UNCOVERED else None

    def _tend(self) -> None:
        if self._graph is not None and not self._wants_graph():
            self._graph = None
        if self._settled.is_set() and self._next_upkeep() is not None:
            self._settled.clear()
            threading.Thread(target=self._upkeep, name="tier-index-upkeep", daemon=True).start()

    def _upkeep(self) -> None:
        try:
            while True:
                with self._lock:
                    upkeep = self._next_upkeep()
                    if upkeep is None:
                        self._settled.set()
                        return
                if upkeep == "build":
                    with _building:
                        self._build()
                else:
                    self._mend()
        except BaseException:
            self._settled.set()  # searches stay exact, and the next write tries again
            raise

    def _build(self) -> None:
        """Builds a graph of all members beside the one in use, which it then takes the place of. Both hear of what
        leaves or changes meanwhile; what comes meanwhile is uncovered in both until its turn."""
        from muniment.actors.hnsw_graph import HnswGraph  # Faiss takes 0.1 s to import, and few tenants need a graph

        graph = HnswGraph(self.dimension, self.positions)
        try:
            while True:
                with self._lock:
                    self._graph_in_work = graph
                    if not self._wants_graph():
                        return
                    claimed = graph.claim(_BUILD_STEP)
                    if not len(claimed):
                        self._graph, self._graph_in_work = graph, None
                        return
                    vectors = self._rows[claimed]
                graph.insert(vectors)
        finally:
            with self._lock:
                self._graph_in_work = None

    def _mend(self) -> None:
        """Puts uncovered members into the graph in use, a few at a time, because nobody can search meanwhile."""
        while True:
            with self._lock:
                graph = self._graph
                claimed = graph.claim(_MEND_STEP) if graph is not None else ()
                if graph is None or not len(claimed):
                    return
                graph.insert(self._rows[claimed])
            time.sleep(_MEND_PAUSE_SECONDS)
