"""The shard against its own invariants: random tells, rulings, corrections, retirements, days that pass, restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muniment.actors.ids import new_id
from muniment.actors.slot_pages import SlotNote
from muniment.actors.slot_reader import SlotPage, SlotReader
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.memory_store import Stored
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.wire import fact_from_dict
from muniment.policies.authority import key_of
from muniment.policies.errors import MunimentError
from muniment.policies.model import ConflictKind, Fact, Scope, Slot, Status, Tier
from muniment.policies.weighing import Rule
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, BOT, CRM, DIMENSION, MAIL, Bench, Words

BOB = {"id": "bob", "groups": [], "may_claim_record": False}
SLOTS = [
    Slot("acme", Scope.SHARED, "", "Aurora", "contact"),
    Slot("acme", Scope.SHARED, "", "Aurora", "bank_account"),
    Slot("acme", Scope.PERSONAL, "bob", "Aurora", "contact"),
]
POLICY = {
    "fields": {
        "contact": {"owner": "ana", "self_authority": True, "review_after_days": 6},
        "bank_account": {"owner": "accounts", "sensitive": True},
    }
}
SOURCES = [
    CRM,
    MAIL,
    {"kind": "approved_document", "id": "handbook"},
    {"kind": "agent_summary", "id": "note"},
    {"kind": "unattributed"},
    {"kind": "counterparty", "id": "web", "party": "Aurora", "external": True},
]
DECISIONS = ["accept_challenger", "keep_incumbent", "new_value", "both_valid", "dismiss"]
VALUES = st.sampled_from(["Dana", "Lee", "Kim"])
DAYS = st.none() | st.integers(-6, 6)
RESCOPES = st.sampled_from([{"field": "deputy"}, {"user": "bob"}, {"effective": 0}, {"effective": 2}, {"expires": 3}])


def shown(note: SlotNote | None) -> Any:
    """What of a note decides what is handed out; of the facts that others are derived from, their source."""
    if note is None:
        return None
    return note.facts, note.conflicts, {id: fact.source for id, fact in note.parents.items()}, note.due


def stands(fact: Fact) -> bool:
    """Whether it is current, and evidence of no other."""
    return fact.status is Status.CURRENT and fact.corroborates is None


class ShardMachine(RuleBasedStateMachine):
    """One company over one store; every step is checked against what the store and the index must agree on."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muniment-machine-"))
        self.runner = asyncio.Runner()
        stores = Stores(self.folder)
        self.bench = Bench(stores)
        stores.hasten(self.bench.control.engine).dispose()
        self.bench.policy(**POLICY)
        self.policies = PolicyBook(self.bench.control)
        self.reader = SlotReader(self.policies)
        self.ever_retired: set[str] = set()
        self.brought_in: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            self.runner.close()
            shutil.rmtree(self.folder)

    # --- what happens

    @rule(
        slot=st.sampled_from(SLOTS),
        told=st.lists(
            st.tuples(VALUES, st.sampled_from(SOURCES), DAYS, st.none() | st.integers(1, 5)), min_size=1, max_size=3
        ),
        actor=st.sampled_from([ANA, BOT]),
        derive=st.booleans(),
    )
    def tell(self, slot: Slot, told: list[Any], actor: Any, derive: bool) -> None:
        who = BOB if slot.scope is Scope.PERSONAL else actor
        facts = []
        for value, source, day, lasts in told:
            fact: dict[str, Any] = {"subject": slot.subject, "field": slot.field, "value": value}
            fact |= {"text": f"the {slot.field} of Aurora is {value}", "source": source}
            if slot.scope is Scope.PERSONAL:
                fact |= {"scope": "personal", "user": "bob"}
            if derive and source["kind"] == "agent_summary" and self._ids():
                fact["source"] = {**source, "derived_from": [self._ids()[-1]]}
            if day is not None:
                fact["effective_at"] = self.bench.now + timedelta(days=day)
                if lasts is not None:
                    fact["expires_at"] = fact["effective_at"] + timedelta(days=lasts)
            facts.append(fact)
        self.runner.run(self.bench.tell(*facts, actor=who))

    @rule(hours=st.sampled_from([1, 12, 24, 60, 200]))
    def wait(self, hours: int) -> None:
        self.bench.now += timedelta(hours=hours)

    @precondition(lambda self: self.bench.conflicts())
    @rule(data=st.data(), decision=st.sampled_from(DECISIONS), rescope=RESCOPES, value=VALUES)
    def resolve(self, data: st.DataObject, decision: str, rescope: dict[str, Any], value: str) -> None:
        conflict = self._pick(data, [row.id for row in self.bench.conflicts()])
        ruling: dict[str, Any] = {"decision": decision}
        if decision == "new_value":
            ruling |= {"value": value, "text": f"it is {value}"}
        if decision == "both_valid":
            dates = {f"{name}_at": self.bench.now + timedelta(days=rescope[name]) for name in rescope if name[0] == "e"}
            ruling["rescope"] = dates or rescope
        arguments = {"conflict_id": conflict, "actor": ANA, "rules_all": True}
        self._try(self.bench.router.resolve("acme", ruling, ruling.get("text"), **arguments))

    @precondition(lambda self: self._ids())
    @rule(data=st.data(), how=st.sampled_from(["expired", "deleted", "corrected"]), value=VALUES)
    def retire(self, data: st.DataObject, how: str, value: str) -> None:
        id = self._pick(data, self._ids())
        arguments: dict[str, Any] = {"id": id, "reason": "r", "actor": self._who_sees(id), "own_only": False}
        if how == "corrected":
            self._try(self.bench.router.correct("acme", f"it is {value}", value=value, **arguments))
        elif self._try(self.bench.shard.retire("acme", status=how, **arguments)):
            self.ever_retired.add(id)

    @precondition(lambda self: self._ids())
    @rule(slot=st.sampled_from(SLOTS), value=VALUES, source=st.sampled_from(SOURCES), day=DAYS)
    def bring_in(self, slot: Slot, value: str, source: dict[str, Any], day: int | None) -> None:
        """A current fact that nobody decided about, as an import leaves it, and the audit after it."""
        text, now = f"the {slot.field} of Aurora is {value}", self.bench.shard._writer._tick()
        named = {"subject": slot.subject, "field": slot.field, "scope": slot.scope, "user": slot.user or None}
        dated = {"recorded_at": now, "effective_at": None if day is None else now + timedelta(days=day)}
        told = {"id": new_id("f", now), "company": "acme", "text": text, "value": value, "source": source}
        fact = fact_from_dict({**told, **named, **dated, "writer": slot.user or "ana", "importance": 0.5})
        vector = self.runner.run(Words().embed([text], 0))
        with self.bench.engine.begin() as connection:
            memory_store.insert_facts(connection, [Stored(fact, Tier.L1, 0, vector)])
        self.brought_in.add(slot.key)
        self.restart()
        self.runner.run(self.bench.shard.flag("acme", [self._names(slot)]))

    @rule()
    def restart(self) -> None:
        self.bench.shard.close()
        self.bench.start()

    # --- what always holds

    @invariant()
    def one_value_of_a_slot_is_handed_out_and_recall_and_facts_agree(self) -> None:
        for slot in SLOTS:
            page = self._page(slot)
            if page.stale:
                self.runner.run(self.bench.shard.flag("acme", [self._names(slot)]))
                page = self._page(slot)
            assert not page.stale
            user = slot.user or "nobody"
            found = [r for r in self._recall(slot, user) if r["fact"].get("user", "") == slot.user]
            assert [r["fact"]["id"] for r in found] == ([page.current.id] if page.current is not None else [])
            if page.current is not None:
                assert page.current.status is Status.CURRENT
                assert page.current.in_force(self.bench.shard._writer.now())
                assert page.current.id not in self.ever_retired
                dispute = found[0].get("dispute")
                assert (dispute and dispute["conflict_id"]) == (page.dispute and page.dispute[0].id)

    @invariant()
    def a_value_waits_in_one_conflict_and_nothing_waits_in_none(self) -> None:
        with self.bench.engine.connect() as connection:
            conflicts = conflict_store.open_conflicts(connection, "acme")
            facts = memory_store.get_facts(connection, "acme", self._ids())
        waiting: set[str] = set()
        seen: set[tuple[str, str]] = set()
        for conflict in conflicts:
            waiting.update(conflict.evidence_ids)
            if conflict.kind is ConflictKind.REVIEW:
                assert facts[conflict.subject_id or ""].status is Status.CURRENT
                continue
            assert conflict.slot is not None
            rules = self.policies.rules(conflict.slot)
            challenger = facts[conflict.challenger_id or ""]
            told = [challenger, *(facts[id] for id in conflict.evidence_ids)]
            ((key, value),) = {(fact.slot.key, key_of(fact, rules)) for fact in told if fact.slot is not None}
            assert key == conflict.slot.key
            assert len({fact.id for fact in told}) == len(told)
            assert {fact.status for fact in told[1:]} <= {Status.DISPUTED, Status.SUPERSEDED}
            assert (key, value) not in seen
            seen.add((key, value))
            # Decisions leave nothing for a reader to find.
            assert conflict.rule is not Rule.FOUND_ON_READING or key in self.brought_in
            # It is shown beside a fact in use, unless there is none.
            in_use = [f.id for f in facts.values() if f.slot is not None and f.slot.key == key and stands(f)]
            assert conflict.subject_id in in_use or not set(in_use) - {challenger.id}
            allowed = (
                (Status.DISPUTED, Status.CURRENT)
                if conflict.kind is ConflictKind.CONFLICT
                else (Status.SUPERSEDED, Status.EXPIRED)
            )
            assert challenger.status in allowed
            waiting.add(challenger.id)
        assert {id for id, fact in facts.items() if fact.status is Status.DISPUTED} <= waiting

    @invariant()
    def evidence_stands_by_a_current_fact_of_its_value(self) -> None:
        with self.bench.engine.connect() as connection:
            facts = memory_store.get_facts(connection, "acme", self._ids())
        for fact in facts.values():
            if fact.status is Status.CURRENT and fact.superseded_by is not None:
                assert facts[fact.superseded_by].status is Status.CURRENT
            if fact.status is Status.CURRENT and fact.corroborates is not None and fact.slot is not None:
                head = facts[fact.corroborates]
                rules = self.policies.rules(fact.slot)
                assert (head.status, head.corroborates) == (Status.CURRENT, None)
                assert head.slot is not None
                assert (head.slot.key, key_of(head, rules)) == (fact.slot.key, key_of(fact, rules))

    @invariant()
    def memory_is_what_the_store_says(self) -> None:
        tenant = self.bench.shard._tenants.by_company.get("acme")
        if tenant is None:
            return
        with self.bench.engine.connect() as connection:
            fresh = self.bench.shard._tenants._loader.load(connection, "acme", DIMENSION)
        assert {id: (r.fact, r.tier) for id, r in tenant.residents.items()} == {
            id: (r.fact, r.tier) for id, r in fresh.residents.items()
        }
        for tier, space in tenant.spaces.items():
            assert {r.fact.id: r.fact for r in space.residents.values} == {
                r.fact.id: r.fact for r in fresh.spaces[tier].residents.values
            }
        keys = tenant.notes.keys() | fresh.notes.keys()
        pairs = [(shown(tenant.notes.get(key)), shown(fresh.notes.get(key))) for key in keys]
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        assert not differing, differing
        fresh.close()

    @invariant()
    def the_log_verifies(self) -> None:
        with self.bench.engine.connect() as connection:
            assert DecisionLog(t.decisions, t.decision_heads).verify(connection)[1] is None

    # --- helpers

    def _pick(self, data: st.DataObject, ids: list[str]) -> str:
        return ids[data.draw(st.integers(0, 99)) % len(ids)]

    def _ids(self) -> list[str]:
        with self.bench.engine.connect() as connection:
            return list(connection.execute(sa.select(t.facts.c.id).order_by(t.facts.c.id)).scalars())

    def _who_sees(self, id: str) -> Any:
        with self.bench.engine.connect() as connection:
            fact: Fact = memory_store.get_facts(connection, "acme", [id])[id]
        return BOB if fact.user == "bob" else ANA

    def _names(self, slot: Slot) -> list[str]:
        return [slot.scope.value, slot.user, slot.subject, slot.field]

    def _page(self, slot: Slot) -> SlotPage:
        with self.bench.engine.connect() as connection:
            # At the time of the recall beside it: the writer is some microseconds ahead, and a fact may begin in them.
            return self.reader.page(connection, slot, None, None, self.bench.shard._writer.now())

    def _recall(self, slot: Slot, user: str) -> list[Any]:
        query = f"the {slot.field} of Aurora"
        answer = self.runner.run(
            self.bench.router.recall("acme", query, 50, "fast", user, {"subject": slot.subject, "field": slot.field})
        )
        found: list[Any] = answer["results"]
        return found

    def _try(self, call: Any) -> bool:
        try:
            self.runner.run(call)
        except MunimentError:
            return False
        return True


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
