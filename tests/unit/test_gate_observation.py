"""What calibration asks, and what it observes on a company's tiers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import numpy as np

from muniment.actors.calibration import Question, observe, questions_of_facts, questions_of_pairs
from muniment.actors.store.memory_store import Stored
from muniment.actors.tenant import Changes, Tenant, resident_of
from muniment.policies.calibration import FEWEST_TELLING, Observation, choose, trade
from muniment.policies.model import Fact, Source, SourceKind, Tier
from muniment.policies.retention import RetentionSettings
from muniment.policies.routing import DEFAULT
from tests.stores import Stores
from tests.unit.test_memory_shard import DIMENSION, Bench

NOW = datetime(2026, 5, 1, tzinfo=UTC)
AXES = np.eye(4, dtype=np.float32)


def fact(number: int, text: str) -> Fact:
    source = Source(kind=SourceKind.COUNTERPARTY, author="lee")
    return Fact(
        id=f"f_{number}", company="acme", text=text, source=source, writer="ana", recorded_at=NOW, importance=0.5
    )


def make_tenant(texts: list[str], l1: int) -> Tenant:
    tenant = Tenant(4, "flat", {Tier.L1: l1, Tier.L2: 10}, RetentionSettings())
    for number, text in enumerate(texts):
        changes = Changes()
        stored = Stored(fact(number, text), None, 0, AXES[number].tobytes())
        tenant.plan_add([resident_of(stored, Tier.L1)], changes)
        tenant.apply(changes)
    return tenant


def ask(tenant: Tenant, query: str, axis: int, wanted: str) -> Observation:
    return observe(tenant, Question(query, wanted), AXES[axis], DEFAULT, NOW, top_k=5)


def test_a_fact_in_l2_is_missed_by_l1_alone() -> None:
    tenant = make_tenant(["the pump leaks", "the roof holds", "the gate is open"], l1=2)
    in_l2 = ask(tenant, "pump leaks", 0, "the pump leaks")
    in_l1 = ask(tenant, "gate open", 2, "the gate is open")
    assert in_l2 == Observation(top_similarity=0.0, covered=True, in_l1=False, in_both=True)
    assert in_l1 == Observation(top_similarity=1.0, covered=True, in_l1=True, in_both=True)
    assert tenant.take_unsaved_usage() == {}
    chosen = choose(trade([in_l2, in_l1] * FEWEST_TELLING))
    assert 0 < chosen.threshold < 1
    assert (chosen.searches_l2, chosen.recall) == (0.5, 1.0)


def test_an_empty_company_has_nothing() -> None:
    seen = ask(make_tenant([], l1=2), "pump", 0, "the pump leaks")
    assert seen == Observation(top_similarity=-1.0, covered=True, in_l1=False, in_both=False)


def test_questions_are_made_of_shared_indexed_facts(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=50)
    asyncio.run(bench.tell(*({"text": f"machine {n} is in hall {n % 7} today"} for n in range(40))))
    asyncio.run(bench.tell({"text": "too short"}, {"text": "my own secret word", "scope": "personal", "user": "ana"}))
    with bench.engine.connect() as connection:
        made = questions_of_facts(connection, "acme", 30, 7)
        assert len(made) == 30
        assert made == questions_of_facts(connection, "acme", 30, 7)
        assert len({question.wanted for question in made}) == 30
        for question in questions_of_facts(connection, "acme", 1000, 7):
            assert question.wanted.startswith("machine")
            assert question.query != question.wanted
            assert set(question.query.split()) < set(question.wanted.split())
        assert questions_of_facts(connection, "other", 30, 7) == []
    bench.close()


def test_pairs_name_facts_by_id_or_text(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=50)
    told = asyncio.run(bench.tell({"text": "Ana runs the café"}, {"text": "Lee is away"}))
    asyncio.run(bench.tell({"text": "Eve knows", "scope": "personal", "user": "ana"}))
    pairs = [("who?", told[1]["id"]), ("café?", "Ana runs the cafe\u0301"), ("x", "f_0"), ("y", "Eve knows")]
    with bench.engine.connect() as connection:
        made = questions_of_pairs(connection, "acme", pairs)
    assert made == [Question("who?", "Lee is away"), Question("café?", "Ana runs the café")]
    bench.close()


def test_the_shard_observes_by_the_companys_policy(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=2)
    bench.control.put_memory_policy("acme", {"entities": {"order": "order [a-z]+"}}, "ana")
    texts = ["order abc is late", "order xyz is here", "a third one"]
    asyncio.run(bench.tell(*({"text": text} for text in texts)))
    asked = {"query": "order abc", "wanted": texts[0]}
    vector = np.ones(DIMENSION, np.float32).tobytes()
    found = asyncio.run(bench.shard.observe("acme", [asked], vector, DEFAULT.model_dump(mode="json"), 5))
    assert [(row["covered"], row["in_l1"], row["in_both"]) for row in found] == [(False, False, True)]
    bench.close()
