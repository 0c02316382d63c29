"""When a fact is put on its owner's list to be looked at again, and when that has lost its point."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from muniment.actors.slot_audit import SlotAudit
from muniment.actors.store.policy_book import PolicyBook
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, Bench, at, contact

NOTE = {"kind": "agent_summary", "id": "note"}
#: A shard belongs to one event loop.
RUNNER = asyncio.Runner()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    made = Bench(stores)
    yield made
    made.close()


def tell(bench: Bench, *facts: dict[str, Any]) -> list[str]:
    return [result["id"] for result in RUNNER.run(bench.tell(*facts))]


def opened(bench: Bench) -> list[tuple[str, str]]:
    return [(conflict.kind, conflict.subject_id) for conflict in bench.conflicts()]


def due(bench: Bench) -> bool:
    with bench.engine.connect() as connection:
        return SlotAudit(PolicyBook(bench.control)).reviews_due(connection, "acme", bench.now)


def test_what_is_open_about_a_fact_that_is_over_is_withdrawn_before_the_list_is_read(bench: Bench) -> None:
    bench.policy(fields={"contact": {"sensitive": True, "owner": "bob"}})
    source, loose = {**NOTE, "derived_from": []}, {"text": "free", "expires_at": at(2)}
    (review,) = tell(bench, contact("Dana", expires_at=at(2)))
    (told, parent) = tell(bench, contact("Kim", field="deputy", expires_at=at(2)), {"text": "parent"})
    tell(bench, contact("Moe", field="deputy", source=NOTE))
    (child,) = tell(bench, {**loose, "source": {**source, "derived_from": [parent]}})
    RUNNER.run(bench.shard.retire("acme", id=parent, status="deleted", reason="r", actor=ANA, own_only=False))
    about = {subject for _, subject in opened(bench)}
    assert {review, told, child} <= about
    assert not due(bench)
    bench.now = at(3)
    assert due(bench)
    RUNNER.run(bench.shard.review_due("acme"))
    assert opened(bench) == []
    assert not due(bench)


def test_what_was_derived_from_a_fact_that_was_ended_is_reviewed(bench: Bench) -> None:
    slotted, loose = tell(bench, contact("Dana"), {"text": "ana is away"})
    source = {**NOTE, "derived_from": [slotted]}
    children = tell(bench, {"text": "write to Dana", "source": source})
    children += tell(bench, {"text": "nobody is there", "source": {**source, "derived_from": [loose]}})
    for id in (slotted, loose):
        RUNNER.run(bench.shard.retire("acme", id=id, status="expired", reason="over", actor=ANA, own_only=False))
    assert opened(bench) == [("review", child) for child in children]
