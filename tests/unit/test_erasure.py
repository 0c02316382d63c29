"""What stays of what was erased: of a company while writes are under way, and of facts that a ruling has moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import DecisionLog
from muniment.policies.errors import NotFound
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, Bench, contact

#: A shard belongs to one event loop.
RUNNER = asyncio.Runner()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    made = Bench(stores)
    yield made
    made.close()


def tell(bench: Bench, *facts: dict[str, Any], since: int | None = None) -> list[str]:
    told = RUNNER.run(bench.tell(*facts, actor={**ANA, "company_since": since}))
    return [result["outcome"] for result in told]


def since(bench: Bench) -> int | None:
    return bench.control.in_force(["acme"])["acme"][-1]


def erase(bench: Bench, again: bool) -> None:
    bench.control.close_company("acme")
    RUNNER.run(bench.shard.erase_company("acme"))
    bench.control.erase_company("acme", "operator")
    bench.now += timedelta(seconds=1)
    if again:
        bench.control.create_company("acme", "operator")


def test_a_write_that_was_under_way_does_not_reach_an_erased_company_nor_the_next_of_its_name(bench: Bench) -> None:
    before = since(bench)
    assert tell(bench, contact("Dana"), since=before) == ["stored"]
    bench.control.close_company("acme")
    with pytest.raises(NotFound):
        tell(bench, contact("Lee"), since=before)
    erase(bench, again=False)
    for known in (before, None):
        with pytest.raises(NotFound):
            tell(bench, contact("Lee"), since=known)
    bench.control.create_company("acme", "operator")
    with pytest.raises(NotFound):
        tell(bench, contact("Lee"), since=before)
    assert RUNNER.run(bench.ask("the contact of Aurora"))["results"] == []
    assert tell(bench, contact("Kim"), since=since(bench)) == ["stored"]


def test_a_company_is_decided_by_its_own_policy_and_not_by_that_of_one_that_had_its_name(bench: Bench) -> None:
    bench.policy(fields={"contact": {"owner": "bob"}})
    assert tell(bench, contact("Dana", -9), contact("Lee", -5)) == ["stored", "replaced"]
    erase(bench, again=True)
    bench.policy(fields={"contact": {"owner": "cfo", "sensitive": True}})
    assert tell(bench, contact("Dana", -9), contact("Lee", -5)) == ["stored", "held"]


def logged(bench: Bench) -> bytes:
    with bench.engine.connect() as connection:
        return b"".join(found for found in connection.execute(sa.select(t.decisions.c.details)).scalars() if found)


@pytest.mark.parametrize("by", ["user", "fact"])
def test_a_moved_fact_is_erased_from_the_decisions_about_where_it_was(bench: Bench, by: str) -> None:
    _, held = RUNNER.run(bench.tell(contact("Dana"), contact("Zoe")))
    _, control = RUNNER.run(bench.tell(contact("Kim", subject="Borealis"), contact("Moe", subject="Borealis")))
    rescope = {"user": "ana", "scope": "personal"} if by == "user" else {"field": "deputy"}
    ruling = {"decision": "both_valid", "rescope": rescope}
    arguments = {"conflict_id": held["conflict_id"], "actor": ANA, "rules_all": True}
    RUNNER.run(bench.router.resolve("acme", ruling, None, **arguments))
    assert b"Zoe" in logged(bench)
    if by == "user":
        RUNNER.run(bench.shard.erase_user("acme", "ana", ANA))
    else:
        retirement = {"status": "deleted", "reason": "r", "actor": ANA, "own_only": False}
        RUNNER.run(bench.shard.retire("acme", id=held["id"], **retirement))
    assert b"Zoe" not in logged(bench)
    assert control["id"].encode() in logged(bench)
    with bench.engine.connect() as connection:
        assert DecisionLog(t.decisions, t.decision_heads).verify(connection, "acme")[1] is None
