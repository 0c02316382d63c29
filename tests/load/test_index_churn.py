"""200,000 random adds, removals and recalls on a tier, each recall compared with brute force over the visible facts."""

from __future__ import annotations

import numpy as np
import pytest

from muniment.actors import tier_index
from muniment.actors.tier_index import TierIndex

DIMENSION = 32
OPERATIONS = 200_000
CAPACITY = 5_000
K = 20
ROUNDING = 2e-6


class Mirror:
    """The same members in plain arrays, dense in an order of its own."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.place: dict[str, int] = {}
        self.vectors = np.zeros((CAPACITY + 64, DIMENSION), np.float32)
        self.users = np.zeros(CAPACITY + 64, np.int64)

    def put(self, id: str, vector: np.ndarray, user: int) -> None:
        if id not in self.place:
            self.place[id] = len(self.ids)
            self.ids.append(id)
        self.vectors[self.place[id]] = vector / np.linalg.norm(vector)
        self.users[self.place[id]] = user

    def drop(self, id: str) -> None:
        place, last = self.place.pop(id), len(self.ids) - 1
        moved = self.ids.pop()
        if place != last:
            self.ids[place] = moved
            self.place[moved] = place
            self.vectors[place] = self.vectors[last]
            self.users[place] = self.users[last]

    def compare(self, found: list[tuple[str, float]], query: np.ndarray, user: int | None) -> float:
        """The share of what should be found that was, for a user (shared members are user 0). Members whose scores
        differ by float32's rounding stand for each other."""
        held = len(self.ids)
        scores = self.vectors[:held] @ (query / np.linalg.norm(query))
        visible = np.ones(held, np.bool_) if user is None else (self.users[:held] == 0) | (self.users[:held] == user)
        places = [self.place[id] for id, _ in found]
        assert len(set(places)) == len(found) == min(K, int(visible.sum()))
        assert visible[places].all()
        np.testing.assert_allclose([score for _, score in found], scores[places], atol=ROUNDING)
        if not found:
            return 1.0
        seen = scores[visible]
        cut = np.partition(seen, len(seen) - len(found))[len(seen) - len(found)]
        return float(np.mean(scores[places] >= cut - ROUNDING))


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.98)])
def test_recall_through_churn(kind: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_index, "_STEP_COST", 0)  # the graph proposes although an exact search would cost less here
    rng = np.random.default_rng(2026)
    centres = rng.standard_normal((60, DIMENSION))
    index = TierIndex(DIMENSION, kind)
    users = index.positions.column(np.int64, 0)
    mirror = Mirror()
    recalls: list[float] = []
    done = 0
    while done < OPERATIONS:
        count = int(rng.integers(1, 64))
        vectors = (centres[rng.integers(0, 60, count)] + 0.6 * rng.standard_normal((count, DIMENSION))).astype(
            np.float32
        )
        ids = [f"f{n}" for n in rng.integers(0, 3 * CAPACITY, count)]  # often one that is there: it is replaced
        room = CAPACITY - len(index)
        if rng.random() < 0.35 or room < count:
            leaving = {mirror.ids[n] for n in rng.integers(0, len(mirror.ids), min(count, len(mirror.ids)))}
            assert index.remove([*leaving, "nobody"]) == len(leaving)
            for id in leaving:
                mirror.drop(id)
        else:
            owners = rng.integers(0, 4, count)
            index.add(ids, vectors)
            for id, vector, owner in zip(ids, vectors, owners, strict=True):
                users.values[index.positions[id]] = owner
                mirror.put(id, vector, int(owner))
        queries = vectors[: 1 + count // 16]
        queries = queries + 0.1 * rng.standard_normal(queries.shape).astype(np.float32)
        for query in queries if len(index) else ():
            user = None if rng.random() < 0.3 else int(rng.integers(1, 4))
            mask = None if user is None else (users.values == 0) | (users.values == user)
            positions, cosines = index.search(query, K, mask)
            found = list(zip(map(index.positions.id_at, positions), cosines.tolist(), strict=True))
            recalls.append(mirror.compare(found, query, user))
        done += count + len(queries)
    assert set(index.ids()) == set(mirror.ids)
    assert len(recalls) > OPERATIONS / 20
    assert np.mean(recalls) >= least
    assert index.settle(60)
