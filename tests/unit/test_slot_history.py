"""The two times of a slot: whatever the order of arrival, the same answers to ``as_of`` and the same current value."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import example, given, settings
from hypothesis import strategies as st

from muniment.policies.authority import Actor
from muniment.policies.model import Fact, Outcome, Source, SourceKind, Status
from muniment.policies.precedence import decide, overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import Change, SlotEvent, SlotRecord, as_of, read
from muniment.policies.slot_view import Ruling, SlotView, promoted

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ANYBODY = Actor(id="key:1")
OPEN_RULES = SlotRules(proposers=("*",))
EVER = NOW + timedelta(days=1_000)


def day(number: float) -> datetime:
    """A moment, in days before (negative) or after NOW."""
    return NOW + timedelta(days=number)


def told(
    name: str, value: str, recorded: datetime, kind: SourceKind = SourceKind.AUTHORIZED_PERSON, **more: object
) -> Fact:
    """A fact of the one slot that these tests are about."""
    source = Source(
        kind=kind, id=str(more.pop("source", name)), role="clerk", external=bool(more.pop("external", False))
    )
    return Fact(
        id=name,
        company="acme",
        text=f"address {value}",
        subject="client",
        field="address",
        value=value,
        source=source,
        writer="key:1",
        recorded_at=recorded,
        importance=0.5,
        **more,  # type: ignore[arg-type]
    )


@dataclass
class Slot:
    """What a store does with the rulings of one slot, in memory."""

    rules: SlotRules = OPEN_RULES
    facts: dict[str, Fact] = field(default_factory=dict)
    events: dict[str, list[SlotEvent]] = field(default_factory=dict)
    parents: dict[str, Fact] = field(default_factory=dict)

    def tell(self, fact: Fact, actor: Actor = ANYBODY) -> Ruling:
        now = fact.recorded_at
        self.settle(now)
        current = [f for f in self.facts.values() if f.status is Status.CURRENT]
        view = SlotView(
            current=tuple(f for f in current if f.corroborates is None),
            evidence=tuple(f for f in current if f.corroborates is not None),
            parents=self.parents,
        )
        ruling = decide(view, fact, actor, self.rules, now)
        corroborates = ruling.incumbent_id if ruling.outcome is Outcome.CORROBORATED else None
        successor = self.facts[corroborates].superseded_by if corroborates else ruling.successor_id
        self.facts[fact.id] = replace(fact, status=ruling.status, corroborates=corroborates, superseded_by=successor)
        if ruling.status is Status.DISPUTED:
            self.events[fact.id] = [SlotEvent(now, Change.HELD)]
        for follower in ruling.consequences.adopt:
            self.facts[follower] = replace(self.facts[follower], status=Status.CURRENT, corroborates=fact.id)
        for evidence in ruling.release:
            self.facts[evidence] = replace(self.facts[evidence], corroborates=None)
        if corroborates and ruling.supersede:
            self.facts[corroborates] = replace(self.facts[corroborates], superseded_by=ruling.successor_id)
        for loser in ruling.supersede:
            status = Status.CURRENT if ruling.takes_effect_at else Status.SUPERSEDED
            self.facts[loser] = replace(self.facts[loser], status=status, superseded_by=corroborates or fact.id)
        return ruling

    def settle(self, now: datetime) -> None:
        """What time has brought about: who was to take over on a day that has come has taken over."""
        current = promoted([f for f in self.facts.values() if f.status is Status.CURRENT], now)
        self.facts.update({f.id: f for f in current})
        gone = {f.id for f in current if overtaken(f, current, now)}
        for fact in current:
            if fact.id in gone or fact.corroborates in gone:
                self.facts[fact.id] = replace(fact, status=Status.SUPERSEDED)

    def as_of(self, instant: datetime, known_at: datetime = EVER) -> Fact | None:
        records = [SlotRecord(f, tuple(self.events.get(f.id, ()))) for f in self.facts.values()]
        return as_of(records, instant, known_at, lambda _: self.rules, self.parents)

    def current(self, now: datetime) -> Fact | None:
        return read(tuple(self.facts.values()), self.rules, self.parents, now).current


def values(*facts: Fact | None) -> list[object]:
    return [None if f is None else f.value for f in facts]


RANKED = st.sampled_from(
    [SourceKind.SYSTEM_OF_RECORD, SourceKind.APPROVED_DOCUMENT, SourceKind.AUTHORIZED_PERSON, SourceKind.AGENT_SUMMARY]
)


@st.composite
def dated_facts(draw: st.DrawFn, *, ending: bool, ahead: bool) -> list[Fact]:
    """Up to four facts dated at distinct instants, attributed, of few values; told at NOW unless a test moves them."""
    latest = 20 if ahead else -1
    days = draw(st.lists(st.integers(-20, latest), min_size=2, max_size=4, unique=True))
    facts = []
    for number, begins in enumerate(days):
        length = draw(st.none() | st.integers(1, 25)) if ending else None
        facts.append(
            told(
                f"f{number}",
                draw(st.sampled_from("ABC")),
                NOW,
                draw(RANKED),
                effective_at=day(begins),
                expires_at=None if length is None else day(begins + length + 0.5),
                source=draw(st.sampled_from(["crm", "letter", "call"])),
                external=draw(st.booleans()),
            )
        )
    return facts


def arrivals(facts: list[Fact]) -> list[Slot]:
    """The slot after each order of arrival."""
    slots = []
    for order in itertools.permutations(facts):
        slot = Slot()
        for second, fact in enumerate(order):
            ruling = slot.tell(replace(fact, recorded_at=NOW + timedelta(seconds=second)))
            assert ruling.outcome is not Outcome.HELD
        slots.append(slot)
    return slots


def answers_of_every_order(facts: list[Fact]) -> tuple[list[list[object]], list[list[object]]]:
    """For each order of arrival: what ``as_of`` says over time, and what will be current."""
    instants = sorted({day(d) for d in range(-21, 48, 2)} | {f.effective_at for f in facts if f.effective_at})
    slots = arrivals(facts)
    coming = [i for i in instants if i > NOW + timedelta(minutes=1)]
    return (
        [[values(slot.as_of(i)) for i in instants] for slot in slots],
        [[values(slot.current(i)) for i in coming] for slot in slots],
    )


@settings(max_examples=60, deadline=None)
@given(dated_facts(ending=False, ahead=True))
def test_every_order_of_arrival_answers_as_of_alike(facts: list[Fact]) -> None:
    (first, *others), _ = answers_of_every_order(facts)
    assert all(other == first for other in others)


@settings(max_examples=60, deadline=None)
@given(dated_facts(ending=True, ahead=True))
def test_where_facts_end_as_of_differs_by_the_order_of_arrival_only_where_what_is_current_does(
    facts: list[Fact],
) -> None:
    """What is told after a stronger fact was taken over from is not weighed against it; told before, it has lost."""
    (first, *others), currents = answers_of_every_order(facts)
    assert any(current != currents[0] for current in currents) or all(other == first for other in others)


def dated(name: str, value: str, begins: float, kind: SourceKind) -> Fact:
    return told(name, value, NOW, kind, effective_at=day(begins))


WEAK, MIDDLE, STRONG = SourceKind.AGENT_SUMMARY, SourceKind.APPROVED_DOCUMENT, SourceKind.SYSTEM_OF_RECORD
#: A weak value that lies ahead, with evidence that is strong and begins later still.
STRONG_LATER = [dated("f0", "B", 0, STRONG), dated("f1", "A", 2, STRONG), dated("f2", "A", 1, WEAK)]


@settings(max_examples=60, deadline=None)
@given(dated_facts(ending=False, ahead=True))
@example([*STRONG_LATER, dated("f3", "B", -1, WEAK)])
def test_what_is_current_is_what_as_of_says_now_and_later(facts: list[Fact]) -> None:
    for slot in arrivals(facts):
        for later in (day(0.5), day(10.5), day(30)):
            assert values(slot.current(later)) == values(slot.as_of(later))


@st.composite
def histories(draw: st.DrawFn) -> list[Fact]:
    """Up to six facts of three values, told one after another: dated before that or undated, some ending, to be
    reviewed, external."""
    facts: list[Fact] = []
    recorded = 0.0
    for number in range(draw(st.integers(2, 6))):
        recorded += draw(st.sampled_from([0.5, 1, 3]))
        before = draw(st.none() | st.integers(0, 8))
        begins = recorded if before is None else recorded - before - number / 10 - 0.01
        length = draw(st.none() | st.integers(1, 4))
        review = draw(st.none() | st.integers(1, 2))
        facts.append(
            told(
                f"f{number}",
                draw(st.sampled_from("ABC")),
                day(recorded),
                draw(RANKED),
                effective_at=None if before is None else day(begins),
                expires_at=None if length is None else day(begins + length + 0.05),
                review_at=None if review is None else day(recorded + review),
                external=draw(st.sampled_from([False, False, True])),
            )
        )
    return facts


UNDATED = told("f0", "A", NOW, review_at=day(1))


@settings(max_examples=200, deadline=None)
@given(histories())
@example([UNDATED, told("f1", "B", day(2), effective_at=day(-3))])
@example([UNDATED, told("f1", "A", day(1), effective_at=day(-5)), told("f2", "B", day(2), effective_at=day(-3))])
@example(
    [
        told("f0", "A", NOW, WEAK, review_at=day(1)),
        told("f1", "A", day(0.5), STRONG),
        told("f2", "B", day(2), STRONG, effective_at=day(-3)),
    ]
)
# What was over when it was told takes nothing back from what is superseded.
@example(
    [
        told("f0", "C", day(3), STRONG, expires_at=day(5)),
        told("f1", "B", day(4), MIDDLE),
        told("f2", "B", day(7), STRONG, effective_at=day(3.5), expires_at=day(6)),
    ]
)
# Nothing stands against what is stored where supersession and expiry have left nothing.
@example(
    [
        told("f0", "A", NOW, MIDDLE, effective_at=day(-3)),
        told("f1", "C", day(2), STRONG, expires_at=day(4)),
        told("f2", "C", day(6), WEAK, effective_at=day(-1)),
    ]
)
def test_as_of_says_of_each_moment_what_was_current_then(facts: list[Fact]) -> None:
    slot = Slot()
    seen: list[tuple[datetime, list[object]]] = []
    for fact, following in itertools.zip_longest(facts, facts[1:]):
        slot.tell(fact)
        moment = fact.recorded_at
        while moment < (following.recorded_at if following else fact.recorded_at + timedelta(days=9)):
            seen.append((moment, values(slot.current(moment))))
            assert values(slot.as_of(moment, moment)) == seen[-1][1]
            moment += timedelta(days=0.49)
    for moment, current in seen:  # also once more is known
        assert values(slot.as_of(moment, moment)) == current


@settings(max_examples=60, deadline=None)
@given(dated_facts(ending=False, ahead=False), st.integers(-21, 0), st.integers(0, 5))
def test_known_at_ignores_what_came_later(facts: list[Fact], instant: int, seen: int) -> None:
    ordered = [replace(f, recorded_at=NOW + timedelta(seconds=n)) for n, f in enumerate(facts)]
    whole, part = Slot(), Slot()
    for fact in ordered:
        whole.tell(fact)
    for fact in ordered[:seen]:
        part.tell(fact)
    then = NOW + timedelta(seconds=seen, microseconds=-1)
    assert values(whole.as_of(day(instant), then)) == values(part.as_of(day(instant), then))


def test_a_late_arriving_old_fact_does_not_overwrite_the_current_one() -> None:
    slot = Slot()
    slot.tell(told("new", "Rua B", NOW, effective_at=day(-10)))
    late = slot.tell(told("late", "Rua A", day(1), effective_at=day(-30)))
    assert (late.outcome, late.rule) == (Outcome.KEPT, "earlier_date")
    assert values(slot.current(day(1)), slot.as_of(day(-20)), slot.as_of(day(-5))) == ["Rua B", "Rua A", "Rua B"]
    assert slot.as_of(day(-20), known_at=NOW) is None


def test_a_future_fact_becomes_current_at_its_instant() -> None:
    slot = Slot()
    slot.tell(told("now", "Rua A", NOW, effective_at=day(-10)))
    ruling = slot.tell(told("next", "Rua B", NOW, effective_at=day(10)))
    assert (ruling.outcome, ruling.takes_effect_at) == (Outcome.REPLACED, day(10))
    assert values(slot.current(day(9)), slot.current(day(10))) == ["Rua A", "Rua B"]


def test_an_expired_winner_leaves_nothing_older() -> None:
    slot = Slot()
    slot.tell(told("old", "Rua A", NOW, effective_at=day(-10)))
    slot.tell(told("new", "Rua B", NOW, effective_at=day(-5), expires_at=day(5)))
    assert values(slot.as_of(day(-7)), slot.as_of(day(4)), slot.as_of(day(5))) == ["Rua A", "Rua B", None]
    assert slot.current(day(5)) is None


def test_an_empty_slot_takes_a_weaker_fact_once_the_stronger_one_has_expired() -> None:
    slot = Slot()
    slot.tell(told("crm", "Rua A", NOW, SourceKind.SYSTEM_OF_RECORD, effective_at=day(-10), expires_at=day(1)))
    ruling = slot.tell(told("note", "Rua B", day(2), SourceKind.AGENT_SUMMARY, effective_at=day(-5)))
    assert (ruling.outcome, ruling.rule) == (Outcome.STORED, "empty_slot")
    instants = (day(-1), day(0.5), day(2))
    assert values(*(slot.as_of(i) for i in instants)) == ["Rua A", "Rua A", "Rua B"]


def test_what_was_over_before_it_was_told_is_history_only() -> None:
    slot = Slot()
    slot.tell(told("note", "Rua B", NOW, SourceKind.AGENT_SUMMARY, effective_at=day(-5)))
    ended = told("crm", "Rua A", NOW, SourceKind.SYSTEM_OF_RECORD, effective_at=day(-10), expires_at=day(-1))
    ruling = slot.tell(ended)
    assert (ruling.outcome, ruling.rule, ruling.status) == (Outcome.KEPT, "already_over", Status.EXPIRED)
    assert values(slot.as_of(day(-3)), slot.as_of(NOW), slot.current(NOW)) == ["Rua A", "Rua B", "Rua B"]


def test_a_corroboration_takes_the_place_of_an_incumbent_that_expires() -> None:
    slot = Slot()
    slot.tell(told("short", "Rua A", NOW, effective_at=day(-5), expires_at=day(5)))
    slot.tell(told("long", "Rua A", NOW, effective_at=day(-4)))
    reading = slot.current(day(6))
    assert reading is not None
    assert reading.id == "long"
    later = slot.tell(told("other", "Rua B", day(7), effective_at=day(-4.5)))
    assert (later.outcome, later.incumbent_id) == (Outcome.KEPT, "long")


def test_undated_facts_count_from_when_they_were_stored() -> None:
    slot = Slot()
    slot.tell(told("undated", "Rua A", NOW))
    assert values(slot.as_of(day(-1)), slot.as_of(NOW)) == [None, "Rua A"]


def test_an_undated_corroboration_does_not_outdate_its_value() -> None:
    slot = Slot()
    slot.tell(told("first", "Rua A", NOW, effective_at=day(-10)))
    slot.tell(told("again", "Rua A", day(1)))
    assert slot.tell(told("move", "Rua B", day(2), effective_at=day(-1))).outcome is Outcome.REPLACED
    assert values(slot.as_of(day(3)), slot.current(day(3))) == ["Rua B", "Rua B"]


def test_held_facts_and_the_losers_of_a_ruling_are_not_admitted() -> None:
    slot = Slot()
    slot.tell(told("one", "Rua A", NOW))
    assert slot.tell(told("two", "Rua B", day(1))).outcome is Outcome.HELD
    assert values(slot.as_of(day(2))) == ["Rua A"]
    slot.events["two"] += [SlotEvent(day(3), Change.WON_RULING)]
    slot.events["one"] = [SlotEvent(day(3), Change.LOST_RULING)]
    assert values(slot.as_of(day(2), known_at=day(2)), slot.as_of(day(2)), slot.as_of(NOW)) == ["Rua A", "Rua B", None]


def test_a_ruling_beats_everything_effective_up_to_it() -> None:
    slot = Slot()
    slot.tell(told("call", "Rua A", NOW, SourceKind.COUNTERPARTY, effective_at=day(-10)))
    slot.events["call"] = [SlotEvent(day(1), Change.WON_RULING)]
    slot.facts["crm"] = told("crm", "Rua B", day(2), SourceKind.SYSTEM_OF_RECORD, effective_at=day(0.5))
    assert values(slot.as_of(day(3))) == ["Rua A"]
    slot.facts["crm2"] = told("crm2", "Rua C", day(2), SourceKind.SYSTEM_OF_RECORD, effective_at=day(1.5))
    assert values(slot.as_of(day(1)), slot.as_of(day(3))) == ["Rua A", "Rua C"]


def test_corrected_deleted_and_expired_facts() -> None:
    slot = Slot()
    slot.tell(told("one", "Rua A", NOW, effective_at=day(-10)))
    for change, expected in ((Change.CORRECTED, None), (Change.DELETED, None), (Change.EXPIRED, "Rua A")):
        slot.events["one"] = [SlotEvent(day(2), change)]
        assert values(slot.as_of(day(1)), slot.as_of(day(3))) == [expected, None]
        assert values(slot.as_of(day(3), known_at=day(1))) == ["Rua A"]


def test_two_overlapping_current_values_are_never_read_in_silence() -> None:
    facts = (
        told("note", "Rua A", NOW, SourceKind.AGENT_SUMMARY),
        told("crm", "Rua B", day(1), SourceKind.SYSTEM_OF_RECORD),
        told("call", "Rua C", day(2), SourceKind.AUTHORIZED_PERSON),
    )
    for order in itertools.permutations(facts):
        reading = read(order, OPEN_RULES, {}, day(3))
        assert reading.current is not None
        assert (reading.current.id, [f.id for f in reading.others]) == ("crm", ["call", "note"])


def test_a_changed_policy_does_not_rewrite_what_was_decided() -> None:
    weak = SlotRules(proposers=("*",), ranks=((SourceKind.AGENT_SUMMARY,), (SourceKind.SYSTEM_OF_RECORD,)))
    crm = told("crm", "Rua A", day(-5), SourceKind.SYSTEM_OF_RECORD, effective_at=day(-9))
    note = told("note", "Rua B", day(-4), SourceKind.AGENT_SUMMARY, effective_at=day(-8))
    late = told("late", "Rua C", day(1), SourceKind.SYSTEM_OF_RECORD, effective_at=day(0.5))

    def rules_at(moment: datetime) -> SlotRules:
        return weak if moment < NOW else OPEN_RULES

    records = [SlotRecord(f) for f in (crm, note, late)]
    assert values(*(as_of(records, i, day(9), rules_at, {}) for i in (day(-1), day(2)))) == ["Rua B", "Rua C"]
