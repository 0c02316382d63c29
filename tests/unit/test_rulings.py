"""What owners' rulings do, and the story of Dana and Lee from the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muniment.policies.audit import audit, derived_reviews, found_on_reading, most_overruled, overdue_reviews
from muniment.policies.authority import Actor
from muniment.policies.errors import InvalidInput, NotFound
from muniment.policies.model import ConflictKind, Fact, Outcome, Scope, Source, SourceKind, Status
from muniment.policies.precedence import decide
from muniment.policies.precedence_policy import SlotRules, parse_policy, resolve
from muniment.policies.rulings import Decision, Rescope, Resolution, RulingPlan, rule_on
from muniment.policies.slot_history import Change, SlotEvent, SlotRecord, as_of, read
from muniment.policies.slot_view import OpenConflict, PastRuling, Ruling, SlotView
from muniment.policies.weighing import Rule

NOW = datetime(2026, 6, 1, tzinfo=UTC)
OWNER = Actor(id="ana")
AGENT = Actor(id="key:agent")
CRM = Actor(id="key:crm", may_claim_record=True)


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


def fact(name: str, value: str, origin: Source, **more: Any) -> Fact:
    defaults = {"writer": "key:agent", "recorded_at": NOW, "subject": "Acme", "field": "primary_contact"}
    return Fact(id=name, company="us", text=value, value=value, importance=0.5, source=origin, **(defaults | more))


@dataclass
class Memory:
    """A company's slots as a store keeps them, driven by the pure decisions alone."""

    policy: dict[str, Any]
    facts: dict[str, Fact] = field(default_factory=dict)
    conflicts: dict[str, OpenConflict] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    rulings: list[PastRuling] = field(default_factory=list)
    events: dict[str, list[SlotEvent]] = field(default_factory=dict)

    def rules(self, told: Fact) -> SlotRules:
        slot = told.slot
        return SlotRules() if slot is None else resolve(parse_policy(self.policy), slot)

    def view(self, about: Fact) -> SlotView:
        slot = about.slot
        here = [f for f in self.facts.values() if f.slot == slot and f.status is Status.CURRENT]
        return SlotView(
            current=tuple(f for f in here if f.corroborates is None),
            evidence=tuple(f for f in here if f.corroborates is not None),
            conflicts=tuple(self.conflicts.values()),
            rulings=tuple(self.rulings),
            parents={f.id: f for f in self.facts.values() if f.status not in (Status.CORRECTED, Status.DELETED)},
        )

    def tell(self, told: Fact, actor: Actor) -> Ruling | None:
        if told.slot is None:
            self.facts[told.id] = told
            return None
        ruling = decide(self.view(told), told, actor, self.rules(told), told.recorded_at)
        held_by = ruling.incumbent_id if ruling.outcome is Outcome.CORROBORATED else None
        self.facts[told.id] = replace(told, status=ruling.status, corroborates=held_by)
        if ruling.status is Status.DISPUTED:
            self.events[told.id] = [SlotEvent(told.recorded_at, Change.HELD)]
        for name in ruling.supersede:
            self.facts[name] = replace(self.facts[name], status=Status.SUPERSEDED, superseded_by=told.id)
        for opening in ruling.open:
            name = f"c{len(self.conflicts) + len(self.closed)}"
            self.conflicts[name] = OpenConflict(
                id=name,
                kind=opening.kind,
                rule=opening.rule,
                opened_at=told.recorded_at,
                subject_id=opening.subject_id,
                challenger=self.facts.get(opening.challenger_id or ""),
                proposer=actor,
            )
        if ruling.join:
            joined = self.conflicts[ruling.join]
            self.conflicts[joined.id] = replace(joined, evidence_ids=(*joined.evidence_ids, told.id))
        for name in ruling.consequences.withdraw:
            self.close(name, "withdrawn")
        return ruling

    def close(self, name: str, how: str) -> None:
        del self.conflicts[name]
        self.closed[name] = how

    def resolve(self, name: str, resolution: Resolution, now: datetime, actor: Actor = OWNER) -> RulingPlan:
        conflict = self.conflicts[name]
        about = conflict.challenger or self.facts[conflict.subject_id or ""]
        joined = tuple(self.facts[i] for i in conflict.evidence_ids)
        plan = rule_on(conflict, resolution, self.view(about), joined, actor, self.rules(about), now, "new")
        for made in filter(None, (plan.new_fact, plan.rescoped)):
            self.facts[made.id] = made
        for change in plan.changes:
            updates = {n: getattr(change, n) for n in ("status", "superseded_by", "expires_at", "review_at")}
            known = {n: v for n, v in updates.items() if v is not None}
            if change.status is not None:
                known["corroborates"] = change.corroborates
            self.facts[change.fact_id] = replace(self.facts[change.fact_id], **known)
            if change.change is not None:
                self.events.setdefault(change.fact_id, []).append(SlotEvent(now, change.change))
        self.rulings += [plan.past] if plan.past else []
        self.close(name, plan.decision.value)
        for other in plan.consequences.withdraw:
            self.close(other, "withdrawn")
        return plan

    def current(self, like: Fact, now: datetime) -> Fact | None:
        return read([f for f in self.facts.values() if f.slot == like.slot], self.rules(like), {}, now).current

    def as_of(self, instant: datetime, known_at: datetime, like: Fact) -> Fact | None:
        here = (f for f in self.facts.values() if f.slot == like.slot)
        records = [SlotRecord(f, tuple(self.events.get(f.id, ()))) for f in here]
        return as_of(records, instant, known_at, lambda _: self.rules(like), self.view(like).parents)

    def audit(self, now: datetime) -> list[Any]:
        alive = [f for f in self.facts.values() if f.status in (Status.CURRENT, Status.DISPUTED)]
        return audit(alive, {}, lambda slot: resolve(parse_policy(self.policy), slot), {}, now)


DANA = fact(
    "dana",
    "Dana",
    Source(kind=SourceKind.SYSTEM_OF_RECORD, id="crm/acme"),
    writer="key:crm",
    recorded_at=day(-90),
    effective_at=day(-90),
)
MAIL = Source(kind=SourceKind.COUNTERPARTY, id="mail-7", author="lee@acme", party="Acme", external=True)
MESSAGE = fact("lee", "Lee", MAIL, recorded_at=day(-14), effective_at=day(-14))
HEARD = replace(MESSAGE, id="mail", subject=None, field=None, value=None, text="Lee now runs the project.")
NOTE = fact(
    "lee",
    "Lee",
    Source(kind=SourceKind.AGENT_SUMMARY, author="assistant", derived_from=("mail",)),
    recorded_at=day(-14),
    effective_at=day(-14),
)
ACCOUNT = {
    "fields": {"primary_contact": {"owner": "ana", "sensitive": True, "self_authority": True}},
}


@pytest.mark.parametrize("told", [[MESSAGE], [HEARD, NOTE]], ids=["the client's own message", "the agent's note"])
def test_dana_and_lee(told: list[Fact]) -> None:
    memory = Memory(ACCOUNT)
    memory.tell(replace(DANA, writer="ana"), OWNER)
    for heard in told:
        ruling = memory.tell(heard, AGENT)
    assert ruling is not None
    # The two are equal in rank and Lee is newer; the field is sensitive, so Dana stays and the owner is asked.
    assert (ruling.outcome, ruling.rule) == (Outcome.HELD, "sensitive_needs_owner")
    assert [f["rank"] for f in (ruling.inputs["challenger"], *ruling.inputs["incumbents"])] == [0, 0]
    assert memory.current(DANA, NOW) == replace(DANA, writer="ana")
    (conflict,) = memory.conflicts.values()
    assert (conflict.kind, conflict.subject_id, conflict.challenger) == (
        ConflictKind.CONFLICT,
        "dana",
        memory.facts["lee"],
    )
    assert len(memory.audit(NOW)) == 1

    plan = memory.resolve(conflict.id, Resolution(decision=Decision.ACCEPT_CHALLENGER, note="phoned them"), NOW)
    assert plan.lost == ("dana",)
    assert (memory.facts["dana"].status, memory.facts["dana"].superseded_by) == (Status.SUPERSEDED, "lee")
    current = memory.current(DANA, NOW)
    assert current is not None
    assert current.value == "Lee"
    assert memory.audit(NOW) == []

    # The CRM is synchronised before anybody has updated it: the conflict does not come back.
    sync = memory.tell(replace(DANA, id="sync", recorded_at=day(1), effective_at=day(1)), CRM)
    assert sync is not None
    assert (sync.outcome, sync.rule, memory.conflicts) == (Outcome.KEPT, "lost_ruling", {})
    updated = memory.tell(replace(DANA, id="sync2", value="Lee", recorded_at=day(2), effective_at=day(2)), CRM)
    assert updated is not None
    assert updated.outcome is Outcome.CORROBORATED


FREE = {"fields": {"primary_contact": {"owner": "ana", "proposers": ["*"]}}}


def disputed() -> tuple[Memory, str]:
    """Two undated values of equal rank from the record: one held, with a second witness, and a sibling."""
    memory = Memory(FREE)
    for name, value in (("one", "Dana"), ("two", "Lee"), ("two-b", "lee"), ("three", "Kim")):
        memory.tell(fact(name, value, Source(kind=SourceKind.SYSTEM_OF_RECORD, id=name), recorded_at=day(-5)), CRM)
    assert [c.challenger and c.challenger.id for c in memory.conflicts.values()] == ["two", "three"]
    return memory, "c0"


def status(memory: Memory) -> dict[str, str]:
    return {f.id: f.status.value for f in memory.facts.values()}


def test_accepting_makes_the_witnesses_evidence_and_asks_the_siblings_anew() -> None:
    memory, conflict = disputed()
    plan = memory.resolve(conflict, Resolution(decision=Decision.ACCEPT_CHALLENGER), NOW)
    assert status(memory) == {"one": "superseded", "two": "current", "two-b": "current", "three": "disputed"}
    assert memory.facts["two-b"].corroborates == "two"
    assert plan.consequences.redecide == ("c1",)
    like = memory.facts["one"]
    assert memory.as_of(day(-1), day(-1), like) is not None
    before, after = memory.as_of(day(-1), day(-1), like), memory.as_of(day(-1), NOW, like)
    assert (before and before.value, after and after.value) == ("Dana", "Lee")
    kim = memory.conflicts["c1"].challenger
    assert kim is not None
    memory.conflicts.clear()
    anew = decide(memory.view(kim), kim, CRM, memory.rules(kim), NOW)
    assert (anew.outcome, anew.rule) == (Outcome.KEPT, "ruled_before")


def test_keeping_puts_the_challenger_and_its_witnesses_away_for_good() -> None:
    memory, conflict = disputed()
    memory.resolve(conflict, Resolution(decision=Decision.KEEP_INCUMBENT), NOW)
    assert status(memory) == {"one": "current", "two": "superseded", "two-b": "superseded", "three": "disputed"}
    again = memory.tell(replace(memory.facts["two"], id="two-c", recorded_at=day(1)), CRM)
    assert again is not None
    assert (again.rule, list(memory.conflicts)) == ("lost_ruling", ["c1"])


def test_another_value_supersedes_both_and_comes_from_the_owner() -> None:
    memory, conflict = disputed()
    plan = memory.resolve(conflict, Resolution(decision=Decision.NEW_VALUE, value="Rui", text="It is Rui."), NOW)
    made = memory.facts["new"]
    assert (made.value, made.text, made.writer, made.source.kind) == ("Rui", "It is Rui.", "ana", "authorized_person")
    assert set(plan.lost) == {"one", "two", "two-b"}
    assert memory.current(made, NOW) == made


@pytest.mark.parametrize(("value", "said"), [(True, "true"), (3, "3"), ("Zoë", "Zoë")])
def test_a_new_value_without_a_text_gets_one_that_is_not_pythons(value: bool | int | str, said: str) -> None:
    memory, conflict = disputed()
    memory.resolve(conflict, Resolution(decision=Decision.NEW_VALUE, value=value), NOW)
    assert memory.facts["new"].text.endswith(f" = {said}")


def test_both_valid_as_somebodys_own_moves_to_another_slot() -> None:
    memory, conflict = disputed()
    plan = memory.resolve(
        conflict, Resolution(decision=Decision.BOTH_VALID, rescope=Rescope(scope=Scope.PERSONAL, user="eva")), NOW
    )
    assert plan.moves
    assert plan.rescoped is not None
    assert (plan.rescoped.scope, plan.rescoped.user, memory.facts["one"].status) == ("personal", "eva", "current")


def test_both_valid_in_their_periods_cuts_the_earlier_one() -> None:
    memory, conflict = disputed()
    rescope = Rescope(effective_at=day(-2))
    plan = memory.resolve(conflict, Resolution(decision=Decision.BOTH_VALID, rescope=rescope), NOW)
    assert not plan.moves
    assert memory.facts["one"].expires_at == day(-2)
    current = memory.current(memory.facts["one"], NOW)
    assert current is not None
    assert current.id == "two"


def test_both_valid_at_the_same_time_is_refused() -> None:
    memory, conflict = disputed()
    with pytest.raises(InvalidInput, match="/rescope: both would hold"):
        memory.resolve(conflict, Resolution(decision=Decision.BOTH_VALID, rescope=Rescope(expires_at=day(9))), NOW)


def test_dismissing_rules_on_nothing_and_does_not_ask_again() -> None:
    memory, conflict = disputed()
    memory.resolve(conflict, Resolution(decision=Decision.DISMISS), NOW)
    assert status(memory)["two"] == "superseded"
    assert memory.rulings[0].winner_key is None
    again = memory.tell(replace(memory.facts["two"], id="two-c", recorded_at=day(1)), CRM)
    assert again is not None
    assert again.rule == "lost_ruling"
    assert memory.as_of(NOW, day(9), memory.facts["one"]) == memory.facts["one"]


@pytest.mark.parametrize(
    ("resolution", "pointer"),
    [
        (Resolution(decision=Decision.NEW_VALUE), "/value"),
        (Resolution(decision=Decision.ACCEPT_CHALLENGER, value="x"), "/value"),
        (Resolution(decision=Decision.BOTH_VALID), "/rescope"),
        (Resolution(decision=Decision.BOTH_VALID, rescope=Rescope()), "/rescope"),
        (Resolution(decision=Decision.DISMISS, rescope=Rescope(user="x")), "/rescope"),
        (Resolution(decision=Decision.BOTH_VALID, rescope=Rescope(scope=Scope.SHARED, user="x")), "/rescope/user"),
        (Resolution(decision=Decision.BOTH_VALID, rescope=Rescope(expires_at=day(-9), effective_at=NOW)), "/rescope/"),
    ],
)
def test_a_ruling_that_does_not_fit_names_its_field(resolution: Resolution, pointer: str) -> None:
    memory, conflict = disputed()
    with pytest.raises(InvalidInput) as caught:
        memory.resolve(conflict, resolution, NOW)
    assert caught.value.fields["errors"][0]["pointer"].startswith(pointer)


def test_an_accepted_value_of_a_coming_date_waits_for_it() -> None:
    memory = Memory(ACCOUNT)
    memory.tell(DANA, OWNER)
    memory.tell(replace(MESSAGE, effective_at=day(10)), AGENT)
    plan = memory.resolve("c0", Resolution(decision=Decision.ACCEPT_CHALLENGER), NOW)
    assert plan.takes_effect_at == day(10)
    now, then = memory.current(DANA, day(9)), memory.current(DANA, day(10))
    assert (now and now.value, then and then.value) == ("Dana", "Lee")
    answers = [memory.as_of(i, NOW, DANA) for i in (day(9), day(10))]
    assert [a and a.value for a in answers] == ["Dana", "Lee"]


def review_of(name: str, rule: Rule = Rule.PAST_REVIEW) -> OpenConflict:
    return OpenConflict(id="r1", kind=ConflictKind.REVIEW, rule=rule, opened_at=NOW, subject_id=name)


def test_a_review_that_is_confirmed_moves_the_review_date() -> None:
    stale = replace(DANA, review_at=day(-60))
    for rules, due in ((SlotRules(review_after_days=10), day(10)), (SlotRules(), day(30))):
        keep = Resolution(decision=Decision.KEEP_INCUMBENT)
        plan = rule_on(review_of("dana"), keep, SlotView(current=(stale,)), (), OWNER, rules, NOW, "new")
        (change,) = plan.changes
        assert (change.fact_id, change.review_at, change.status) == ("dana", due, None)


def test_a_review_has_no_challenger_and_may_have_lost_its_fact() -> None:
    view = SlotView(current=(DANA,))
    with pytest.raises(InvalidInput, match="no challenger"):
        rule_on(
            review_of("dana"), Resolution(decision=Decision.ACCEPT_CHALLENGER), view, (), OWNER, SlotRules(), NOW, "n"
        )
    with pytest.raises(NotFound):
        rule_on(review_of("x"), Resolution(decision=Decision.KEEP_INCUMBENT), view, (), OWNER, SlotRules(), NOW, "n")


def test_a_deleted_incumbent_promotes_nothing_until_the_owner_rules() -> None:
    memory, conflict = disputed()
    memory.facts["one"] = replace(memory.facts["one"], status=Status.DELETED)
    assert memory.current(memory.facts["one"], NOW) is None
    memory.resolve(conflict, Resolution(decision=Decision.ACCEPT_CHALLENGER), NOW)
    current = memory.current(memory.facts["one"], NOW)
    assert current is not None
    assert current.id == "two"


def test_the_audit_puts_the_most_damaging_first() -> None:
    def pair(field_name: str, first: str, second: str) -> list[Fact]:
        return [
            fact(name, name, Source(kind=SourceKind.AGENT_SUMMARY, id=name), field=field_name)
            for name in (first, second)
        ]

    facts = [*pair("hobby", "a", "b"), *pair("iban", "c", "d"), *pair("city", "e", "f")]
    facts.append(fact("g", "g", Source(kind=SourceKind.SYSTEM_OF_RECORD, id="g"), field="lonely"))
    rules_for = lambda slot: resolve(parse_policy({}), slot)  # noqa: E731
    found = audit(facts, {"e": 2, "f": 1, "a": 1}, rules_for, {}, NOW)
    assert [(d.slot.field, d.sensitive, d.usage) for d in found] == [
        ("iban", True, 0),
        ("city", False, 3),
        ("hobby", False, 1),
    ]
    opening = found_on_reading(found[0].incumbent, found[0].challenger)
    assert (opening.kind, opening.subject_id, opening.challenger_id) == (ConflictKind.CONFLICT, "c", "d")


def test_the_fields_most_often_overruled() -> None:
    rulings = [("City", True), ("city ", True), ("IBAN", True), ("hobby", False), ("area", True)]
    assert most_overruled(rulings) == [("City", 2), ("IBAN", 1), ("area", 1)]
    assert most_overruled(rulings, limit=1) == [("City", 2)]


def test_overdue_facts_get_one_review() -> None:
    stale = replace(DANA, review_at=day(-1))
    free_text = replace(stale, id="text", subject=None, field=None, value=None)
    facts = [stale, free_text, replace(DANA, id="fresh", review_at=day(1)), replace(stale, status=Status.SUPERSEDED)]
    openings = overdue_reviews(facts, lambda _: SlotRules(), [], NOW)
    assert [(o.kind, o.rule, o.subject_id) for o in openings] == [
        (ConflictKind.REVIEW, "past_review", "dana"),
        (ConflictKind.REVIEW, "past_review", "text"),
    ]
    assert [o.subject_id for o in overdue_reviews(facts, lambda _: SlotRules(), [review_of("dana")], NOW)] == ["text"]
    by_policy = overdue_reviews([DANA], lambda _: SlotRules(review_after_days=89), [], NOW)
    assert len(by_policy) == 1


def test_what_was_derived_from_a_loser_gets_a_review() -> None:
    summary = replace(NOTE, id="summary", source=Source(kind=SourceKind.AGENT_SUMMARY, derived_from=("dana", "x")))
    gone = replace(summary, id="gone", status=Status.SUPERSEDED)
    other = replace(summary, id="other", source=Source(kind=SourceKind.AGENT_SUMMARY, derived_from=("x",)))
    openings = derived_reviews(["dana"], [summary, gone, other], [])
    assert [(o.rule, o.subject_id) for o in openings] == [("source_changed", "summary")]
    assert derived_reviews(["dana"], [summary], [review_of("summary", Rule.SOURCE_CHANGED)]) == []
