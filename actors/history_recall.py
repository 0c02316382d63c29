"""A recall at another time: what the slots held then, searched like a tier that is built for this one question.

Bounded, and off the hot path: it reads the store and blocks, so it runs in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from muniment.actors.lexical_index import Corpus
from muniment.actors.recall import Candidate, RecallPlan, ranked, search
from muniment.actors.slot_reader import all_known, parents_of
from muniment.actors.store import memory_store
from muniment.actors.store.memory_store import Stored
from muniment.actors.tenant import TierSpace, resident_of
from muniment.policies.extraction import Extraction
from muniment.policies.model import Fact, Slot, Status, Tier
from muniment.policies.slot_history import RulesAt, SlotRecord, as_of

#: Facts of slots that one such recall reads, the newest.
MAX_TOLD: Final = 20_000


def recall_history(
    connection: sa.Connection,
    company: str,
    plan: RecallPlan,
    as_of_instant: datetime | None,
    known_at: datetime | None,
    rules_at: Callable[[Slot], RulesAt],
    extraction: Extraction,
) -> list[Candidate]:
    """The best candidates among the facts that held at ``as_of_instant``, as far as recorded by ``known_at``.

    What is absent means: the same moment as the other one, or now. Visibility and filters are the plan's; facts are
    read by ``extraction``, as the plan's query was.
    """
    now = plan.visibility.now
    instant = as_of_instant or known_at or now
    told = memory_store.told_facts(connection, company, plan.visibility.user, known_at, MAX_TOLD)
    by_slot: dict[str, list[Fact]] = {}
    for fact in told:
        if fact.slot is not None and fact.status is not Status.DELETED:
            by_slot.setdefault(fact.slot.key, []).append(fact)
    events = memory_store.get_events(connection, company, [fact.id for fact in told])
    parents = parents_of(connection, company, told)
    held = []
    for facts in by_slot.values():
        slot = facts[0].slot
        if slot is not None:
            records = [SlotRecord(fact, events.get(fact.id, ())) for fact in facts]
            winner = as_of(records, instant, known_at or all_known(records, now), rules_at(slot), parents)
            held += [winner] if winner is not None else []
    vectors = memory_store.get_vectors(connection, company, [fact.id for fact in held])
    space = TierSpace(len(plan.vector), "flat", Corpus())
    found = [Stored(fact, None, 0, vectors[fact.id]) for fact in held if fact.id in vectors]
    space.add([resident_of(one, Tier.L1, extraction) for one in found])
    then = replace(plan, visibility=replace(plan.visibility, now=instant))
    profile = plan.profile
    depth = max(plan.top_k, profile.rerank_depth) if profile.rerank else plan.top_k
    near = search(space, Tier.L1, then, max(profile.l2_k, plan.top_k), lambda _, __: True)
    return ranked([near], then, depth)
