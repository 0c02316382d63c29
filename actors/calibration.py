"""Observes what the gate's threshold would decide, on a company's own tiers (``policies/calibration.py``)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from muniment.actors.recall import Candidate, RecallPlan, recall
from muniment.actors.store import memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.tenant import Tenant, Visibility
from muniment.policies.calibration import Observation, perturb
from muniment.policies.model import nfc
from muniment.policies.routing import Gate, RecallProfile

#: Facts that are looked at for each query that is wanted: some are too short to make one of.
_LOOKED_AT = 2


@dataclass(frozen=True, slots=True)
class Question:
    """A query, and the text (NFC) of the fact that answers it."""

    query: str
    wanted: str


def observe(
    tenant: Tenant, question: Question, vector: NDArray[np.float32], profile: RecallProfile, now: datetime, top_k: int
) -> Observation:
    """Asks once of L1 alone and once of both tiers, among shared facts, without counting the use.

    ``vector``: (d,) float32, of the query. A fact is found where one of its text is, so that what was told twice counts
    as one.
    """
    entities, terms = tenant.extraction.of_query(question.query)
    plan = RecallPlan(
        vector=vector,
        terms=terms,
        entities=entities,
        top_k=top_k,
        threshold=math.inf,
        profile=profile.model_copy(update={"gate": Gate.DISABLED}),
        visibility=Visibility(now=now),
    )
    both = profile.model_copy(update={"gate": Gate.ADAPTIVE, "threshold": None})
    from_l1, gate, _ = recall(tenant, plan)
    from_both, _, _ = recall(tenant, replace(plan, profile=both))
    return Observation(
        top_similarity=-1.0 if gate.top_similarity is None else gate.top_similarity,
        covered=not gate.uncovered,
        in_l1=_finds(from_l1[:top_k], question.wanted),
        in_both=_finds(from_both[:top_k], question.wanted),
    )


def _finds(answered: Sequence[Candidate], wanted: str) -> bool:
    return any(nfc(candidate.resident.fact.text) == wanted for candidate in answered)


def questions_of_facts(connection: sa.Connection, company: str, count: int, seed: int) -> list[Question]:
    """At most ``count`` questions made of shared facts that are indexed, drawn at random."""
    chance = random.Random(seed)
    drawn: list[str] = []
    f = t.facts.c
    ids = sa.select(f.id).where(f.company == company, f.tier.is_not(None), f.user.is_(None)).order_by(f.id)
    for number, id in enumerate(connection.execute(ids, execution_options={"yield_per": 1000}).scalars()):
        if len(drawn) < _LOOKED_AT * count:
            drawn.append(id)
        elif (place := chance.randrange(number + 1)) < len(drawn):
            drawn[place] = id
    chance.shuffle(drawn)
    found = memory_store.get_facts(connection, company, drawn)
    made = []
    for id in drawn:
        query = perturb(found[id].text, chance) if id in found else None
        if query is not None:
            made.append(Question(nfc(query), nfc(found[id].text)))
    return made[:count]


def questions_of_pairs(connection: sa.Connection, company: str, pairs: Sequence[tuple[str, str]]) -> list[Question]:
    """The questions of (query, id or text of a fact), without those whose fact is not indexed and shared."""
    named = memory_store.get_facts(connection, company, [fact for _, fact in pairs])
    wanted = [nfc(named[fact].text if fact in named else fact) for _, fact in pairs]
    there = set(_told(connection, company, frozenset(wanted)))
    return [Question(nfc(query), text) for (query, _), text in zip(pairs, wanted, strict=True) if text in there]


def _told(connection: sa.Connection, company: str, texts: frozenset[str]) -> Iterator[str]:
    """Those of the texts that indexed shared facts have."""
    for stored in memory_store.indexed_facts(connection, company):
        text = nfc(stored.fact.text)
        if stored.fact.user is None and text in texts:
            yield text
