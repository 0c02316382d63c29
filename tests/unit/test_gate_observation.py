"""What calibration observes on a company's tiers."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from muniment.actors.calibration import Labelled, observe
from muniment.actors.store.memory_store import Stored
from muniment.actors.tenant import Changes, Tenant, resident_of
from muniment.policies.calibration import choose, trade
from muniment.policies.model import Fact, Source, SourceKind, Tier
from muniment.policies.retention import RetentionSettings
from muniment.policies.routing import DEFAULT

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


def test_a_fact_in_l2_is_missed_by_l1_alone_and_the_threshold_sees_it() -> None:
    tenant = make_tenant(["the pump leaks", "the roof holds", "the gate is open"], l1=2)
    queries = [Labelled("pump leaks", AXES[0], frozenset({"f_0"})), Labelled("gate open", AXES[2], frozenset({"f_2"}))]
    seen = observe(tenant, queries, DEFAULT, NOW)
    assert seen.recall_l1.tolist() == [0.0, 1.0]
    assert seen.recall_both.tolist() == [1.0, 1.0]
    assert seen.top_similarity.tolist() == [0.0, 1.0]
    assert seen.covered.tolist() == [True, True]
    chosen = choose(trade(seen))
    assert 0 < chosen.threshold < 1
    assert (chosen.searches_l2, chosen.recall) == (0.5, 1.0)


def test_an_empty_company_always_searches() -> None:
    seen = observe(make_tenant([], l1=2), [Labelled("pump", AXES[0], frozenset({"f_0"}))], DEFAULT, NOW)
    assert seen.top_similarity.tolist() == [-np.inf]
    assert trade(seen)[0].searches_l2 == 1.0
