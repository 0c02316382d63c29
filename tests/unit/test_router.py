"""When a router has candidates reranked, and that its answer says whether it did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muniment.actors.router import NO_RERANKER, Router
from muniment.policies.errors import ModelUnavailable


class Workers:
    """Counts what it reranks: the longest text is the best."""

    def __init__(self, has_reranker: bool = True) -> None:
        self.reranked: list[int] = []
        self._has_reranker = has_reranker

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        return np.zeros((len(texts), 2), np.float32).tobytes()

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        if not self._has_reranker:
            raise ModelUnavailable("none")
        self.reranked.append(len(texts))
        return [float(len(text)) for text in texts]

    async def describe(self) -> dict[str, Any]:
        return {"embedder": "none"}


class Shard:
    """Answers with as many candidates as it was made for."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def recall(self, **arguments: Any) -> dict[str, Any]:
        return {
            "candidates": [
                {"fact": {"id": str(n), "text": "x" * n}, "tier": "L1", "score": 0.5, "terms": {"lexical": 0.5}}
                for n in range(self._count)
            ],
            "gate": {},
            "tiers": ["L1"],
        }


def ask(workers: Workers, candidates: int, profile: str = "default", **options: Any) -> dict[str, Any]:
    router = Router(workers, lambda _: Shard(candidates))  # type: ignore[arg-type, return-value]
    return asyncio.run(router.recall("c", "q", 5, profile, None, {}, **options))


@pytest.mark.parametrize(
    ("candidates", "profile", "min_score", "reranked"),
    [
        (3, "default", None, [3]),
        (30, "default", None, [20]),
        (3, "fast", None, []),
        (1, "default", None, []),
        (0, "default", None, []),
        (0, "default", 0.5, []),
        (1, "default", 0.1, [1]),
    ],
)
def test_reranks_only_where_it_can_change_the_answer_and_says_so(
    candidates: int, profile: str, min_score: float | None, reranked: list[int]
) -> None:
    workers = Workers()
    answer = ask(workers, candidates, profile, min_score=min_score)
    assert workers.reranked == reranked
    assert answer["route"]["reranked"] is bool(reranked)
    assert answer["route"]["degraded"] is None
    assert len(answer["results"]) <= 5


def test_without_a_reranker_the_answer_is_marked() -> None:
    answer = ask(Workers(has_reranker=False), 3)
    assert (answer["route"]["reranked"], answer["route"]["degraded"]) == (False, NO_RERANKER)
    assert len(answer["results"]) == 3
