"""The router: it owns how a recall runs, and holds no state but what it can learn again. Each process that serves has
one of its own, so a recall costs no trip to reach it.

Three trips at most: embed the query, have the shard apply the plan, have the best candidates reranked. It degrades
loudly: without a reranker the answer says so and keeps the retrieval order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from muniment.actors.metrics import DEGRADED_ANSWERS, STAGE_SECONDS, Observe, unobserved
from muniment.actors.model_worker import Priority
from muniment.actors.ports import Record, Shard, Workers
from muniment.policies.errors import ModelUnavailable, Overloaded, Unavailable
from muniment.policies.extraction import DEFAULT, Extraction
from muniment.policies.model import nfc
from muniment.policies.ranking import Scores, final_scores, order
from muniment.policies.routing import PROFILES, RecallProfile

NO_RERANKER = "no_reranker"
#: Companies of which is known how their queries are read.
_KNOWN_COMPANIES = 10_000


class Router:
    """Answers recalls and takes facts in, over model workers and the shard of each company."""

    def __init__(
        self,
        workers: Workers,
        shard_of: Callable[[str], Shard],
        profiles: Mapping[str, RecallProfile] = PROFILES,
        observe: Observe = unobserved,
    ) -> None:
        self._workers = workers
        self._shard_of = shard_of
        self._profiles = profiles
        self._packable = {name: profile.model_dump(mode="json") for name, profile in profiles.items()}
        self._observe = observe
        self._model_name: str | None = None
        #: How companies' queries are read, where not as usual; whatever it says, the shard's reading counts.
        self._extractions: dict[str, Extraction] = {}

    async def remember(self, company: str, facts: Sequence[Record], **arguments: Any) -> Record:
        """Embeds the facts' texts and has the company's shard decide and store them (``MemoryShard.remember``)."""
        vectors = await self._workers.embed([fact["text"] for fact in facts], Priority.INGEST)
        return await self._shard_of(company).remember(
            company=company, facts=facts, vectors=vectors, model=await self._model(), **arguments
        )

    async def correct(self, company: str, text: str, **arguments: Any) -> Record:
        """Embeds the right text and has the shard put it in a wrong one's place (``SlotRulings.correct``)."""
        vector = await self._workers.embed([text], Priority.QUERY)
        return await self._shard_of(company).correct(company=company, text=text, vector=vector, **arguments)

    async def resolve(self, company: str, resolution: Record, text: str | None, **arguments: Any) -> Record:
        """Has the shard carry out a ruling (``SlotRulings.resolve``); ``text``: of a new value, to be embedded."""
        vector = None if text is None else await self._workers.embed([text], Priority.QUERY)
        return await self._shard_of(company).resolve(company=company, resolution=resolution, vector=vector, **arguments)

    async def _model(self) -> str:
        """The name of the embedding model, asked for once."""
        if self._model_name is None:
            self._model_name = (await self._workers.describe())["embedder"]
        return self._model_name

    async def recall(
        self,
        company: str,
        query: str,
        top_k: int,
        profile: str,
        user: str | None,
        filters: Record,
        min_score: float | None = None,
        moments: Record | None = None,
        bound: Record | None = None,
    ) -> Record:
        """The answer of ``POST /v1/recall`` without its timings of the outside: results, best first, and the route.

        ``bound``: the area and agent that the reader's key is bound to; evidence from elsewhere is left out.
        ``moments``: ``as_of`` and ``known_at``, where a time other than now is asked about.
        """
        started = time.perf_counter()
        settings = self._profiles[profile]
        query = nfc(query)
        vector = await self._workers.embed([query], Priority.QUERY)
        embedded = time.perf_counter()
        extraction = self._extractions.get(company, DEFAULT)
        entities, terms = extraction.of_query(query)
        answer = await self._shard_of(company).recall(
            company=company,
            plan={
                "vector": vector,
                "query": query,
                "entities": list(entities),
                "terms": terms,
                "extraction": extraction.fingerprint,
                "top_k": top_k,
                "model": await self._model(),
                "profile": self._packable[profile],
                "user": user,
                "filters": filters,
                "moments": moments or {},
                "bound": bound or {},
            },
        )
        searched = time.perf_counter()
        self._learn(company, answer.pop("extraction", None))
        candidates: list[Record] = answer.pop("candidates")
        scores, unranked = await self._rerank(query, candidates, settings, min_score)
        degraded = answer.pop("degraded", None) or unranked
        reranked = unranked is None and _worth_reranking(settings, candidates, min_score)
        ranked = order(lambda i: candidates[i]["fact"]["id"], scores.total, limit=top_k, min_score=min_score)
        ended = time.perf_counter()
        seconds = {
            "embed": embedded - started,
            "search": searched - embedded,
            "rerank": ended - searched,
            "total": ended - started,
        }
        for stage, took in seconds.items():
            if stage != "rerank" or reranked:
                self._observe(STAGE_SECONDS, took, stage=stage)
        if degraded is not None:
            self._observe(DEGRADED_ANSWERS, 1, reason=degraded)
        return {
            "results": [_result(candidates[i], float(scores.total[i]), scores.explain(i)) for i in ranked.tolist()],
            "route": {**answer, "reranked": reranked, "degraded": degraded},
            "timings_ms": {stage: _ms(took) for stage, took in seconds.items()},
        }

    def _learn(self, company: str, extraction: Sequence[Sequence[str]] | None) -> None:
        """Keeps how the shard has read the query, where it was not as this router had."""
        if extraction is not None:
            languages, patterns = extraction
            if len(self._extractions) >= _KNOWN_COMPANIES:
                self._extractions.pop(next(iter(self._extractions)))
            self._extractions[company] = Extraction(tuple(languages), tuple(patterns))

    async def _rerank(
        self, query: str, candidates: Sequence[Record], profile: RecallProfile, min_score: float | None
    ) -> tuple[Scores, str | None]:
        names = sorted({name for c in candidates for name in c["terms"]})
        terms = {name: np.array([c["terms"].get(name, 0.0) for c in candidates]) for name in names}
        retrieval = Scores(np.array([c["score"] for c in candidates], np.float64), terms)
        if not _worth_reranking(profile, candidates, min_score):
            return retrieval, None
        depth = min(len(candidates), profile.rerank_depth)
        try:
            logits = await self._workers.rerank(query, [c["fact"]["text"] for c in candidates[:depth]])
        except ModelUnavailable:
            return retrieval, NO_RERANKER
        except Overloaded:
            return retrieval, "reranker_overloaded"
        except Unavailable:
            return retrieval, "reranker_unavailable"
        return final_scores(retrieval, np.array(logits, np.float64), np.arange(depth), profile), None


def _worth_reranking(profile: RecallProfile, candidates: Sequence[Record], min_score: float | None) -> bool:
    """Whether the profile asks for it and it can change the answer: one candidate stays first, unless it must score."""
    return profile.rerank and len(candidates) > (1 if min_score is None else 0)


def _result(candidate: Record, score: float, terms: dict[str, float]) -> Record:
    kept = {
        name: candidate[name]
        for name in ("fact", "owner", "evidence", "tier", "dispute")
        if candidate.get(name) is not None
    }
    return {**kept, "score": score, "terms": terms}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
