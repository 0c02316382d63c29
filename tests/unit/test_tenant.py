"""A company's tiers: capacities, eviction, visibility, and that searches see only what is committed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment.actors.recall import RecallPlan, recall
from muniment.actors.store.memory_store import Stored
from muniment.actors.tenant import Changes, Resident, Tenant, Visibility, resident_of
from muniment.policies.entities import extract_entities
from muniment.policies.model import Fact, Scope, Source, SourceKind, Tier
from muniment.policies.retention import RetentionSettings
from muniment.policies.routing import PROFILES, Decision, Reason
from muniment.policies.terms import query_terms

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DIMENSION = 16


def vector_of(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    raw = np.random.default_rng(zlib.crc32(text.encode())).normal(size=DIMENSION).astype(np.float32)
    return raw / np.linalg.norm(raw)


def resident(number: int, importance: float = 0.5, **changed: Any) -> Resident:
    fact = Fact(
        id=f"f_{number:05d}",
        company="acme",
        text=changed.pop("text", f"fact number {number}"),
        source=Source(kind=SourceKind.COUNTERPARTY, author="lee"),
        writer="ana",
        recorded_at=NOW + timedelta(seconds=number),
        importance=importance,
    )
    fact = replace(fact, **changed)
    return resident_of(Stored(fact, None, 0, vector_of(fact.text).tobytes()), Tier.L1)


def make_tenant(l1: int = 10, l2: int = 20) -> Tenant:
    return Tenant(DIMENSION, "auto", {Tier.L1: l1, Tier.L2: l2}, RetentionSettings())


def add(tenant: Tenant, residents: Sequence[Resident]) -> tuple[dict[str, Tier | None], list[str]]:
    changes = Changes()
    placement = tenant.plan_add(residents, changes)
    tenant.apply(changes)
    return placement.tiers, [r.fact.id for r in placement.evicted]


def check(tenant: Tenant, l1: int, l2: int) -> None:
    """What must hold after every write: capacities, one tier a fact, and indexes that say what the plan says."""
    essential = sum(r.fact.importance >= 0.85 for r in tenant.residents.values())
    assert len(tenant.spaces[Tier.L1]) <= l1
    assert len(tenant.spaces[Tier.L2]) <= max(l2, essential)
    for tier, space in tenant.spaces.items():
        ids = {id for id, r in tenant.residents.items() if r.tier is tier}
        assert space.index.ids() == [r.fact.id for r in space.residents.values]
        assert set(space.index.ids()) == ids
        assert len(space.lexical) == len(ids)


def ask(tenant: Tenant, query: str, top_k: int = 5, admit: Any = lambda _, __: True, **visibility: Any) -> Any:
    plan = RecallPlan(
        vector=vector_of(query),
        terms=query_terms(query),
        entities=extract_entities(query),
        top_k=top_k,
        threshold=0.62,
        profile=PROFILES["fast"],
        visibility=Visibility(now=visibility.pop("now", NOW + timedelta(days=1)), **visibility),
    )
    return recall(tenant, plan, admit)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.1, 0.5, 0.84, 0.85, 0.95]), min_size=1, max_size=40), min_size=1, max_size=6),
    st.data(),
)
def test_capacities_hold_and_no_essential_fact_is_ever_lost(batches: list[list[float]], data: st.DataObject) -> None:
    tenant = make_tenant()
    number, essential = 0, set()
    for importances in batches:
        incoming = [resident(number + i, importance) for i, importance in enumerate(importances)]
        number += len(incoming)
        essential |= {r.fact.id for r in incoming if r.fact.importance >= 0.85}
        placed, evicted = add(tenant, incoming)
        assert not essential & set(evicted)
        for id, tier in placed.items():
            assert (tenant.residents[id].tier if id in tenant.residents else None) == tier
        check(tenant, 10, 20)
        gone = data.draw(st.lists(st.sampled_from(sorted(tenant.residents)), max_size=3, unique=True))
        changes = Changes()
        assert set(tenant.plan_remove(gone, changes)) == set(gone)
        tenant.apply(changes)
        essential -= set(gone)
        check(tenant, 10, 20)
    assert essential <= tenant.residents.keys()


def test_only_essential_facts_make_the_archive_grow_and_it_says_so() -> None:
    tenant = make_tenant()
    add(tenant, [resident(n, 0.95) for n in range(100)])
    assert len(tenant.residents) == 100
    assert tenant.overflow == 100 - 10 - 20 + (10 - len(tenant.spaces[Tier.L1]))
    check(tenant, 10, 20)


def test_what_is_planned_is_not_seen_before_it_is_applied() -> None:
    tenant = make_tenant()
    add(tenant, [resident(1, text="the old one")])
    changes = Changes()
    tenant.plan_add([resident(2, text="the new one")], changes)
    tenant.plan_remove(["f_00001"], changes)
    found, _, _ = ask(tenant, "the one")
    assert [c.resident.fact.id for c in found] == ["f_00001"]
    tenant.apply(changes)
    found, _, _ = ask(tenant, "the one")
    assert [c.resident.fact.id for c in found] == ["f_00002"]


def test_a_personal_fact_is_seen_by_its_user_only_and_before_the_cut() -> None:
    tenant = make_tenant(l1=300)
    add(tenant, [resident(n, scope=Scope.PERSONAL, user="bob", text=f"coffee {n}") for n in range(200)])
    add(tenant, [resident(500, text="something about tea")])
    for user in (None, "ana", ""):
        found, _, _ = ask(tenant, "coffee 7", user=user)
        assert [c.resident.fact.id for c in found] == ["f_00500"]
    assert ask(tenant, "coffee 7", user="bob")[0][0].resident.fact.text == "coffee 7"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"subject": "ACME"}, {1}),
        ({"field": "phone"}, {1}),
        ({"area": "ops"}, {2}),
        ({"agent": "bot"}, {3}),
        ({"source_kinds": ("counterparty",)}, {1, 2, 3, 4}),
        ({"source_kinds": ("system_of_record",)}, set()),
        ({"tags": ("x",)}, {2, 3}),
        ({"tags": ("x", "y")}, {3}),
        ({"min_importance": 0.9}, {4}),
        ({"area": "ops", "tags": ("y",)}, set()),
    ],
)
def test_filters_apply_before_the_cut(filters: dict[str, Any], expected: set[int]) -> None:
    tenant = make_tenant(l1=100)
    add(
        tenant,
        [
            resident(1, subject="Acme", field="phone", value="1"),
            resident(2, area="ops", tags=("x",)),
            resident(3, agent="bot", tags=("x", "y")),
            resident(4, importance=0.95),
        ],
    )
    found, _, _ = ask(tenant, "fact number 9", **filters)
    assert {int(c.resident.fact.id[2:]) for c in found} == expected


def test_a_fact_is_seen_only_within_its_period() -> None:
    tenant = make_tenant()
    add(tenant, [resident(1, effective_at=NOW, expires_at=NOW + timedelta(days=1))])
    for at, seen in ((-1, 0), (0, 1), (86_399, 1), (86_400, 0)):
        assert len(ask(tenant, "fact", now=NOW + timedelta(seconds=at))[0]) == seen


def test_the_archive_is_searched_when_working_memory_does_not_answer_and_both_are_merged() -> None:
    tenant = make_tenant(l1=4, l2=100)
    add(tenant, [resident(n, importance=n / 100) for n in range(40)])
    moved = next(id for id, r in tenant.residents.items() if r.tier is Tier.L2)
    text = tenant.residents[moved].fact.text
    found, gate, tiers = ask(tenant, text)
    assert (gate.decision, tiers) == (Decision.SEARCH_L2, [Tier.L1, Tier.L2])
    assert (found[0].resident.fact.id, found[0].tier) == (moved, Tier.L2)
    kept = next(r.fact.text for r in tenant.residents.values() if r.tier is Tier.L1)
    found, gate, tiers = ask(tenant, kept)
    assert (gate.reason, tiers) == (Reason.SUFFICIENT, [Tier.L1])
    assert found[0].resident.fact.text == kept
    assert ask(make_tenant(), "anything")[1].reason is Reason.EMPTY_L1


def test_usage_counts_what_was_returned_and_is_saved_once() -> None:
    tenant = make_tenant()
    add(tenant, [resident(1), resident(2)])
    tenant.used(["f_00001", "f_00009"], NOW)
    tenant.used(["f_00001"], NOW)
    assert tenant.take_unsaved_usage() == {"f_00001": 2}
    assert tenant.take_unsaved_usage() == {}


def test_a_used_fact_outlives_an_unused_one() -> None:
    tenant = make_tenant(l1=2, l2=1)
    add(tenant, [resident(1), resident(2)])
    tenant.used(["f_00001"] * 5, NOW)
    add(tenant, [resident(3), resident(4), resident(5)])
    assert "f_00001" in tenant.residents
