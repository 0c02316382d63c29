"""The shard over a real store, without Ray: slots, conflicts, rulings, the two times, eviction, restart."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from muniment.actors.memory_shard import MemoryShard, ShardSettings
from muniment.actors.router import NO_RERANKER, Router
from muniment.actors.store import memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.engine import create_schema, open_engine
from muniment.actors.store.policy_book import PolicyBook
from muniment.policies.errors import (
    AlreadyRuled,
    ConfigurationError,
    Fenced,
    Forbidden,
    IdempotencyMismatch,
    ModelUnavailable,
    NotFound,
)
from tests.stores import Stores

DIMENSION = 32
ANA = {"id": "ana", "groups": ["accounts"], "may_claim_record": True}
BOT = {"id": "key:bot", "groups": [], "may_claim_record": False}
CRM = {"kind": "system_of_record", "id": "crm"}
MAIL = {"kind": "counterparty", "id": "mail-7", "party": "Aurora"}


def at(day: float) -> datetime:
    return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=day)


class Words:
    """An embedder that knows words: texts that share words are near."""

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        rows = np.zeros((len(texts), DIMENSION), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.casefold().split():
                row[zlib.crc32(word.encode()) % DIMENSION] += 1
            row[0] += 0.01
            row /= np.linalg.norm(row)
        return rows.tobytes()

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        raise ModelUnavailable("none here")

    async def describe(self) -> dict[str, Any]:
        return {"embedder": "words", "dimension": DIMENSION, "reranker": None}


class Bench:
    """A shard, its router and its clock."""

    def __init__(self, stores: Stores, **settings: Any) -> None:
        self.now = at(0)
        self.settings = ShardSettings(**settings)
        self.engine = stores.hasten(open_engine(stores.url("memory")))
        create_schema(self.engine, t.TABLES)
        self.control = ControlStore(stores.url("control"), lambda: self.now)
        self.control.create_company("acme", "operator")
        self.control.create_company("other", "operator")
        self.start()

    def start(self) -> None:
        shard = MemoryShard(self.engine, "shard-0", PolicyBook(self.control), self.settings, clock=lambda: self.now)
        self.shard, self.router = shard, Router(Words(), lambda _: shard)

    def policy(self, **body: Any) -> None:
        self.control.put_precedence("acme", body, "curator")

    async def tell(self, *facts: dict[str, Any], actor: Any = ANA, company: str = "acme", **more: Any) -> Any:
        full = [{"writer": actor["id"], "importance": 0.5, "source": CRM, **f} for f in facts]
        return (await self.router.remember(company=company, facts=full, actor=actor, **more))["results"]

    async def ask(self, query: str, top_k: int = 5, user: str = "ana", company: str = "acme", **more: Any) -> Any:
        return await self.router.recall(
            company=company, query=query, top_k=top_k, profile="default", user=user, filters={}, **more
        )

    async def texts(self, query: str, **more: Any) -> list[str]:
        return [r["fact"]["text"] for r in (await self.ask(query, **more))["results"]]

    def conflicts(self, status: str = "open") -> list[Any]:
        with self.engine.connect() as connection:
            query = sa.select(t.conflicts).where(t.conflicts.c.status == status).order_by(t.conflicts.c.id)
            return list(connection.execute(query))

    def evictions(self) -> int:
        with self.engine.connect() as connection:
            kinds = sa.select(sa.func.count()).where(t.decisions.c.kind == "eviction")
            return int(connection.execute(kinds).scalar_one())

    def statuses(self) -> dict[str, str]:
        with self.engine.connect() as connection:
            return {row.id: row.status for row in connection.execute(sa.select(t.facts))}

    def close(self) -> None:
        self.shard.close()
        with self.engine.connect() as connection:
            log = DecisionLog(t.decisions, t.decision_heads)
            assert log.verify(connection)[1] is None
            indexed = sa.select(t.facts).where(t.facts.c.tier.is_not(None))
            for row in connection.execute(indexed):
                assert (row.status, row.corroborates) == ("current", None)
        self.engine.dispose()
        self.control.close()


def contact(value: str, day: int | None = None, **more: Any) -> dict[str, Any]:
    dated = {} if day is None else {"effective_at": at(day)}
    fact = {"text": f"the contact of Aurora is {value}", "subject": "Aurora", "field": "contact", "value": value}
    return {**fact, **dated, **more}


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    bench = Bench(stores)
    yield bench
    bench.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_what_was_told_is_found_again_also_after_a_restart(bench: Bench) -> None:
    async def scenario() -> None:
        results = await bench.tell({"text": "the kettle is blue"}, {"text": "the printer is broken"})
        assert [r["outcome"] for r in results] == ["stored", "stored"]
        assert (await bench.texts("kettle blue"))[0] == "the kettle is blue"
        bench.shard.close()
        bench.start()
        answer = await bench.ask("kettle blue")
        assert answer["results"][0]["fact"]["id"] == results[0]["id"]
        assert answer["route"]["degraded"] == NO_RERANKER
        assert not answer["route"]["reranked"]

    run(scenario())


def test_companies_and_users_see_nothing_of_each_other(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "alpha secret"})
        await bench.tell({"text": "alpha diary", "scope": "personal", "user": "bob"}, actor={**ANA, "id": "bob"})
        assert await bench.texts("alpha", company="other") == []
        assert await bench.texts("alpha") == ["alpha secret"]
        assert sorted(await bench.texts("alpha", user="bob")) == ["alpha diary", "alpha secret"]

    run(scenario())


def test_dana_stays_until_the_owner_confirms_lee(bench: Bench) -> None:
    async def scenario() -> None:
        bench.policy(fields={"contact": {"sensitive": True, "owner": "ana", "self_authority": True}})
        (dana,) = await bench.tell(contact("Dana", -30))
        bench.now = at(1)
        (lee,) = await bench.tell(contact("Lee", -14, source=MAIL, text="Lee runs the project"), actor=BOT)
        assert (lee["outcome"], lee["rule"]) == ("held", "sensitive_needs_owner")
        (result,) = (await bench.ask("contact of Aurora"))["results"]
        assert result["fact"]["value"] == "Dana"
        assert result["dispute"]["conflict_id"] == lee["conflict_id"]
        assert result["dispute"]["other"]["value"] == "Lee"
        (row,) = bench.conflicts()
        assert (row.owner, row.kind) == ("ana", "conflict")
        ruling = {"decision": "accept_challenger"}
        with pytest.raises(Forbidden):
            await bench.router.resolve("acme", ruling, None, conflict_id=row.id, actor=BOT, rules_all=False)
        answer = await bench.router.resolve("acme", ruling, None, conflict_id=row.id, actor=ANA, rules_all=False)
        assert answer["current"]["value"] == "Lee"
        with pytest.raises(AlreadyRuled) as refusal:
            await bench.router.resolve("acme", ruling, None, conflict_id=row.id, actor=ANA, rules_all=False)
        assert refusal.value.fields["resolution"]["decision"] == "accept_challenger"
        (result,) = (await bench.ask("contact of Aurora"))["results"]
        assert result["fact"]["value"] == "Lee"
        assert "dispute" not in result
        assert bench.statuses()[dana["id"]] == "superseded"
        assert bench.conflicts() == []
        bench.now = at(2)
        (again,) = await bench.tell(contact("Dana", -30))
        assert (again["outcome"], bench.conflicts()) == ("kept", [])

    run(scenario())


def test_a_summary_of_a_message_counts_as_the_message_and_is_reviewed_when_the_message_is_corrected(
    bench: Bench,
) -> None:
    async def scenario() -> None:
        (mail,) = await bench.tell(
            {
                "text": "a mail from Aurora",
                "source": MAIL,
                "subject": "Aurora",
                "field": "mail",
                "value": "Lee is the contact",
            }
        )
        summary = {"kind": "agent_summary", "id": "note", "derived_from": [mail["id"]]}
        (note,) = await bench.tell(contact("Lee", source=summary))
        assert note["outcome"] == "stored"
        await bench.router.correct(
            "acme",
            "the mail spoke of Leo",
            id=mail["id"],
            value="Leo is the contact",
            reason="misread",
            actor=ANA,
            own_only=False,
        )
        (row,) = bench.conflicts()
        assert (row.kind, row.subject_id) == ("review", note["id"])
        assert bench.statuses()[mail["id"]] == "corrected"

    run(scenario())


def test_both_times_are_answered_by_recall(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell(contact("Dana", -30))
        bench.now = at(5)
        await bench.tell(contact("Lee", 3))
        bench.now = at(6)
        (late,) = await bench.tell(contact("Kim", -60))
        assert late["outcome"] == "kept"

        async def held(**moments: Any) -> list[str]:
            found = await bench.ask("contact of Aurora", moments=moments)
            assert all(r["tier"] == "history" for r in found["results"])
            return [r["fact"]["value"] for r in found["results"]]

        assert await held(as_of=at(-10)) == ["Dana"]
        assert await held(as_of=at(-40)) == ["Kim"]
        assert await held(as_of=at(-40), known_at=at(5)) == []
        assert await held(as_of=at(4)) == ["Lee"]
        assert await held(known_at=at(2)) == ["Dana"]
        assert [r["fact"]["value"] for r in (await bench.ask("contact"))["results"]] == ["Lee"]

    run(scenario())


def test_a_fact_of_the_future_takes_over_on_its_day(bench: Bench) -> None:
    async def scenario() -> None:
        (dana,) = await bench.tell(contact("Dana", -30))
        (lee,) = await bench.tell(contact("Lee", 10))
        assert lee["outcome"] == "replaced"

        async def now() -> list[str]:
            return [r["fact"]["value"] for r in (await bench.ask("contact of Aurora"))["results"]]

        assert await now() == ["Dana"]
        bench.now = at(9.999)
        assert await now() == ["Dana"]
        bench.now = at(10)
        assert await now() == ["Lee"]
        bench.shard.close()
        bench.start()
        assert await now() == ["Lee"]
        await bench.tell(contact("Lee", 10, source={"kind": "system_of_record", "id": "erp"}))
        assert bench.statuses()[dana["id"]] == "superseded"
        assert await now() == ["Lee"]

    run(scenario())


def test_the_same_value_is_evidence_and_is_not_answered_twice(bench: Bench) -> None:
    async def scenario() -> None:
        results = await bench.tell(contact("Dana"), contact("dana ", source=MAIL), contact("DANA"))
        assert [r["outcome"] for r in results] == ["stored", "corroborated", "corroborated"]
        (found,) = (await bench.ask("contact of Aurora"))["results"]
        assert [s["kind"] for s in found["evidence"]] == ["counterparty", "system_of_record"]

    run(scenario())


def test_a_changed_comparator_leaves_one_value_in_use_and_the_other_on_the_list(bench: Bench) -> None:
    async def scenario() -> None:
        bench.policy(fields={"contact": {"comparator": "exact"}})
        await bench.tell(contact("Dana", -3, expires_at=at(50)), contact("Lee", 60))
        with bench.engine.begin() as connection:  # as an import would leave it: nobody decided
            row = connection.execute(sa.select(t.facts).where(t.facts.c.expires_at.is_(None))).one()
            fact = memory_store.get_facts(connection, "acme", [row.id])[row.id]
            memory_store.update_facts(connection, [replace(fact, effective_at=at(-5))])
        bench.shard.close()
        bench.start()
        (result,) = (await bench.ask("contact of Aurora"))["results"]
        assert result["fact"]["value"] == "Dana"
        assert result["dispute"]["other"]["value"] == "Lee"
        (conflict,) = bench.conflicts()
        assert conflict.id == result["dispute"]["conflict_id"]
        await bench.ask("contact of Aurora")
        assert len(bench.conflicts()) == 1

    run(scenario())


def test_a_deleted_fact_is_gone_with_its_content_and_withdraws_what_it_started(bench: Bench) -> None:
    async def scenario() -> None:
        (dana,) = await bench.tell(contact("Dana"))
        (lee,) = await bench.tell(contact("Lee"))
        assert lee["outcome"] == "held"
        for id in (lee["id"], dana["id"]):
            await bench.shard.retire("acme", id=id, status="deleted", reason="r", actor=ANA, own_only=False)
        assert await bench.texts("contact of Aurora") == []
        assert bench.conflicts() == []
        with bench.engine.connect() as connection:
            assert connection.execute(sa.select(t.vectors)).all() == []
            assert b"Dana" not in b"".join(row.body for row in connection.execute(sa.select(t.facts)))
        with pytest.raises(NotFound):
            await bench.shard.retire("acme", id=dana["id"], status="deleted", reason="r", actor=ANA, own_only=False)
        assert (await bench.tell(contact("Kim")))[0]["outcome"] == "stored"

    run(scenario())


def test_only_its_owner_retires_a_fact(bench: Bench) -> None:
    async def scenario() -> None:
        (fact,) = await bench.tell({"text": "written by ana"})
        with pytest.raises(Forbidden):
            await bench.shard.retire("acme", id=fact["id"], status="expired", reason="r", actor=BOT, own_only=True)
        await bench.shard.retire("acme", id=fact["id"], status="expired", reason="r", actor=ANA, own_only=True)
        assert await bench.texts("written") == []

    run(scenario())


def test_the_same_key_and_body_get_the_first_answer_and_another_body_none(bench: Bench) -> None:
    async def scenario() -> None:
        request = {"key": "k", "hash": b"1" * 32, "named": True}
        first = await bench.tell({"text": "once"}, request=request)
        assert await bench.tell({"text": "once"}, request=request) == first
        assert await bench.texts("once") == ["once"]
        with pytest.raises(IdempotencyMismatch):
            await bench.tell({"text": "twice"}, request={"key": "k", "hash": b"2" * 32, "named": True})
        bench.now = at(1.01)
        assert await bench.tell({"text": "once"}, request=request) != first

    run(scenario())


def test_what_is_past_its_review_date_is_reviewed_once_and_stays(bench: Bench) -> None:
    async def scenario() -> None:
        bench.policy(fields={"contact": {"review_after_days": 5}})
        await bench.tell(contact("Dana"), {"text": "opening hours", "review_at": at(3)})
        await bench.shard.review_due("acme")
        assert bench.conflicts() == []
        bench.now = at(6)
        await bench.shard.review_due("acme")
        await bench.shard.review_due("acme")
        assert [row.kind for row in bench.conflicts()] == ["review", "review"]
        assert len(await bench.texts("contact opening hours")) == 2

    run(scenario())


def test_slotless_facts_leave_for_good_and_facts_of_slots_stay_in_the_store(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=10, l2_capacity=20)

    async def scenario() -> None:
        await bench.tell(contact("Dana", importance=0.0))
        for start in range(0, 200, 50):
            await bench.tell(*({"text": f"note {n}", "importance": 0.3} for n in range(start, start + 50)))
        await bench.tell(*({"text": f"vital {n}", "importance": 0.9} for n in range(40)))
        stats = await bench.shard.stats()
        assert stats["facts"] == {"L1": 10, "L2": 30}
        assert stats["essential_overflow"] == 10
        ids = bench.statuses()
        assert len(ids) == 41
        assert await bench.texts("contact of Aurora", top_k=1) != ["the contact of Aurora is Dana"]
        assert (await bench.tell(contact("Lee")))[0]["outcome"] == "held"
        bench.shard.close()
        bench.start()
        await bench.shard.warm("acme", DIMENSION)
        stats = await bench.shard.stats()
        assert stats["facts"] == {"L1": 10, "L2": 30}
        assert stats["essential_overflow"] == 10
        # What has not grown since it was read again is not logged as growth.
        grown = bench.evictions()
        assert (await bench.tell(contact("Moe")))[0]["outcome"] == "held"
        assert bench.evictions() == grown > 0

    run(scenario())
    bench.close()


def test_usage_survives_a_restart_and_is_what_eviction_looks_at(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=2, l2_capacity=2)

    async def scenario() -> None:
        await bench.tell({"text": "often asked"}, {"text": "never wanted"})
        for _ in range(10):
            await bench.ask("often asked", top_k=1)
        bench.shard.close()
        bench.start()
        for n in range(10):
            await bench.tell({"text": f"filler {n}"})
        assert (await bench.texts("often asked", top_k=1)) == ["often asked"]
        assert "never wanted" not in await bench.texts("never wanted", top_k=4)

    run(scenario())
    bench.close()


def test_erasing_a_user_and_a_company_leaves_nothing_of_them(bench: Bench) -> None:
    async def scenario() -> None:
        bob = {**ANA, "id": "bob"}
        mine = {"scope": "personal", "user": "bob"}
        await bench.tell(contact("Mom", **mine), {"text": "bob likes tea", **mine}, actor=bob)
        await bench.tell(contact("Dad", **mine), actor={**bob, "id": "bob"})
        await bench.tell(contact("Dana"))
        assert (await bench.shard.erase_user("acme", "bob", ANA))["erased"]["facts"] == 3
        assert await bench.texts("tea contact", user="bob") == ["the contact of Aurora is Dana"]
        await bench.shard.erase_company("acme")
        with bench.engine.connect() as connection:
            for table in t.TABLES:
                if "company" in table.c:
                    assert connection.execute(sa.select(table).where(table.c.company == "acme")).all() == []
        assert await bench.texts("contact") == []
        assert (await bench.tell(contact("Lee")))[0]["outcome"] == "stored"

    run(scenario())


def test_a_replaced_shard_writes_nothing(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "before"})
        old, old_router = bench.shard, bench.router
        bench.start()
        with pytest.raises(Fenced):
            await old_router.remember(
                company="acme", facts=[{"text": "x", "writer": "a", "importance": 0.5, "source": CRM}], actor=ANA
            )
        assert await bench.texts("before x") == ["before"]
        old.close()

    run(scenario())


def test_vectors_of_another_model_are_refused(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "before"})
        with pytest.raises(ConfigurationError, match="words"):
            await bench.shard.remember(
                "acme",
                [{"text": "x", "writer": "a", "importance": 0.5, "source": CRM}],
                np.ones(DIMENSION, np.float32).tobytes(),
                actor=ANA,
                model="another",
            )

    run(scenario())


@pytest.mark.parametrize(
    ("ruling", "text", "value", "challenger"),
    [
        ({"decision": "keep_incumbent"}, None, "Dana", "superseded"),
        ({"decision": "accept_challenger"}, None, "Lee", "current"),
        ({"decision": "new_value", "value": "Kim"}, "Kim it is", "Kim", "superseded"),
        ({"decision": "dismiss"}, None, "Dana", "superseded"),
        ({"decision": "both_valid", "rescope": {"field": "deputy"}}, None, "Dana", "current"),
        ({"decision": "both_valid", "rescope": {"effective_at": at(50)}}, None, "Dana", "current"),
    ],
)
def test_a_ruling_is_what_the_next_recall_says_also_after_a_restart(
    bench: Bench, ruling: dict[str, Any], text: str | None, value: str, challenger: str
) -> None:
    async def scenario() -> None:
        await bench.tell(contact("Dana"))
        (lee,) = await bench.tell(contact("Lee"))
        await bench.router.resolve("acme", ruling, text, conflict_id=lee["conflict_id"], actor=ANA, rules_all=True)
        assert bench.statuses()[lee["id"]] == challenger
        assert bench.conflicts() == []
        for later in (0.1, 0.2):
            bench.now = at(later)
            found = (await bench.ask("contact of Aurora"))["results"]
            assert [r["fact"]["value"] for r in found if r["fact"]["field"] == "contact"] == [value]
            assert all("dispute" not in r for r in found)
            bench.shard.close()
            bench.start()

    run(scenario())


def test_what_was_erased_or_deleted_stands_in_no_log_and_the_chain_still_verifies(bench: Bench) -> None:
    async def scenario() -> None:
        bob = {**ANA, "id": "bob"}
        mine = {"scope": "personal", "user": "bob"}
        await bench.tell(contact("Secret-Mom", **mine), contact("Secret-Dad", **mine), actor=bob)
        await bench.tell(contact("Secret-Dana"))
        (lee,) = await bench.tell(contact("Secret-Lee"))
        await bench.shard.erase_user("acme", "bob", ANA)
        await bench.shard.retire("acme", id=lee["id"], status="deleted", reason="r", actor=ANA, own_only=False)
        with bench.engine.connect() as connection:
            log = DecisionLog(t.decisions, t.decision_heads)
            stored = b"".join(b"".join(map(_bytes, row)) for row in connection.execute(sa.select(t.decisions)))
            assert b"Secret-Mom" not in stored
            assert b"Secret-Lee" not in stored
            entries = list(log.entries(connection, "acme"))
            assert {entry["kind"] for entry in entries} == {"conflict", "erasure", "retirement"}
            assert all(not entry["inputs"] for entry in entries if entry["kind"] == "conflict")
            assert log.verify(connection) == (len(entries), None)

    run(scenario())


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.mark.parametrize("damage", [None, b"other"])
def test_details_that_nobody_erased_must_be_there_unchanged(bench: Bench, damage: bytes | None) -> None:
    async def scenario() -> None:
        await bench.tell(contact("Dana"))
        await bench.tell(contact("Lee"))
        log = DecisionLog(t.decisions, t.decision_heads)
        with bench.engine.connect() as connection:
            assert log.verify(connection) == (1, None)
            connection.execute(t.decisions.update().values(details=damage))
            broken = log.verify(connection)[1]
            assert broken == {"stream": "memory:acme", "seq": 1}
            connection.rollback()

    run(scenario())


def test_a_recall_is_answered_at_once_where_its_company_is_loaded_and_it_asks_about_now(bench: Bench) -> None:
    async def scenario() -> None:
        assert not bench.shard.answers_at_once("acme", {"moments": {}})
        await bench.tell({"text": "one"})
        assert bench.shard.answers_at_once("acme", {"moments": {}})
        assert not bench.shard.answers_at_once("acme", {"moments": {"as_of": bench.now}})

    run(scenario())
