"""The rules of precedence: a table written by hand, every combination against it, and each point on its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment.policies.authority import Actor, may_propose, may_rule, rank, source_key
from muniment.policies.model import ConflictKind, Fact, Outcome, Scope, Source, SourceKind, Status
from muniment.policies.precedence import decide
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_view import OpenConflict, PastRuling, Ruling, SlotView
from muniment.policies.values import value_key
from muniment.policies.weighing import Rule

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ANA = Actor(id="ana")
BOT = Actor(id="key:1")


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


def source(kind: SourceKind, **more: Any) -> Source:
    return Source(kind=kind, **({"id": f"{kind.value}-1"} | more))


def fact(name: str, value: str, origin: Source | SourceKind = SourceKind.AUTHORIZED_PERSON, **more: Any) -> Fact:
    defaults = {"writer": "key:0", "recorded_at": day(-1), "subject": "client", "field": "contact"}
    return Fact(
        id=name,
        company="acme",
        text=value,
        value=value,
        importance=0.5,
        source=origin if isinstance(origin, Source) else source(origin),
        **(defaults | more),
    )


# --- The table -------------------------------------------------------------------------------------------------------

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "scope": ("same", "other"),
    "value": ("differs", "equal"),
    "period": ("overlaps", "disjoint"),
    "sensitive": ("no", "yes"),
    "owner": ("no", "yes"),
    "external": ("no", "yes"),
    "rank": ("higher", "equal", "lower"),
    "date": ("later", "equal", "earlier", "absent"),
    "attributed": ("yes", "no"),
    "review": ("ahead", "past"),
    "proposer": ("no", "yes"),
}
"""``external``, ``rank`` (by kind), ``date``, ``attributed``: the challenger's. ``review``: the incumbent's."""


class Row(NamedTuple):
    cells: str
    outcome: Outcome
    rule: Rule


# fmt: off
MEETS = "scope=same value=differs period=overlaps "
FREE, OWN = MEETS + "sensitive=no ", MEETS + "sensitive=yes owner=yes "
TABLE = [
    Row("scope=other",                                                   Outcome.COEXISTS, Rule.OTHER_SCOPE),
    Row("scope=same value=equal period=overlaps",                        Outcome.CORROBORATED, Rule.EQUAL_VALUE),
    Row("scope=same period=disjoint",                                    Outcome.COEXISTS, Rule.DISJOINT_PERIOD),
    Row(MEETS + "sensitive=yes owner=no",                                Outcome.HELD, Rule.SENSITIVE_NEEDS_OWNER),
    Row(FREE + "external=yes",                                           Outcome.KEPT, Rule.LOWER_RANK),
    Row(FREE + "external=no rank=lower",                                 Outcome.KEPT, Rule.LOWER_RANK),
    Row(FREE + "external=no rank=higher owner=yes",                      Outcome.REPLACED, Rule.HIGHER_RANK),
    Row(FREE + "external=no rank=higher owner=no proposer=yes",          Outcome.REPLACED, Rule.HIGHER_RANK),
    Row(FREE + "external=no rank=higher owner=no proposer=no",           Outcome.HELD, Rule.NOT_PROPOSER),
    Row(FREE + "external=no rank=equal date=earlier",                    Outcome.KEPT, Rule.EARLIER_DATE),
    Row(FREE + "external=no rank=equal date=later|equal|absent attributed=no", Outcome.HELD, Rule.UNATTRIBUTED_TIE),
    Row(FREE + "external=no rank=equal date=later attributed=yes owner=yes",   Outcome.REPLACED, Rule.LATER_DATE),
    Row(FREE + "external=no rank=equal date=later attributed=yes owner=no proposer=yes",
                                                                         Outcome.REPLACED, Rule.LATER_DATE),
    Row(FREE + "external=no rank=equal date=later attributed=yes owner=no proposer=no",
                                                                         Outcome.HELD, Rule.NOT_PROPOSER),
    Row(FREE + "external=no rank=equal date=equal attributed=yes review=ahead",  Outcome.HELD, Rule.SAME_INSTANT),
    Row(FREE + "external=no rank=equal date=absent attributed=yes review=ahead", Outcome.HELD, Rule.UNDATED_TIE),
    Row(FREE + "external=no rank=equal date=equal|absent attributed=yes review=past owner=yes",
                                                                         Outcome.REPLACED, Rule.PAST_REVIEW_LOSES_TIE),
    Row(FREE + "external=no rank=equal date=equal|absent attributed=yes review=past owner=no proposer=yes",
                                                                         Outcome.REPLACED, Rule.PAST_REVIEW_LOSES_TIE),
    Row(FREE + "external=no rank=equal date=equal|absent attributed=yes review=past owner=no proposer=no",
                                                                         Outcome.HELD, Rule.NOT_PROPOSER),
    Row(OWN + "external=yes",                                            Outcome.KEPT, Rule.LOWER_RANK),
    Row(OWN + "external=no rank=lower",                                  Outcome.KEPT, Rule.LOWER_RANK),
    Row(OWN + "external=no rank=higher",                                 Outcome.REPLACED, Rule.HIGHER_RANK),
    Row(OWN + "external=no rank=equal date=earlier",                     Outcome.KEPT, Rule.EARLIER_DATE),
    Row(OWN + "external=no rank=equal date=later|equal|absent attributed=no", Outcome.HELD, Rule.UNATTRIBUTED_TIE),
    Row(OWN + "external=no rank=equal date=later attributed=yes",        Outcome.REPLACED, Rule.LATER_DATE),
    Row(OWN + "external=no rank=equal date=equal attributed=yes review=ahead",  Outcome.HELD, Rule.SAME_INSTANT),
    Row(OWN + "external=no rank=equal date=absent attributed=yes review=ahead", Outcome.HELD, Rule.UNDATED_TIE),
    Row(OWN + "external=no rank=equal date=equal|absent attributed=yes review=past",
                                                                         Outcome.REPLACED, Rule.PAST_REVIEW_LOSES_TIE),
]
# fmt: on

CELLS = [{name: set(words.split("|")) for name, words in (c.split("=") for c in row.cells.split())} for row in TABLE]
# Agent summaries are left out of the ranks, so that even an unattributed challenger can outrank an incumbent.
TABLE_RANKS = tuple((kind,) for kind in SourceKind if kind is not SourceKind.AGENT_SUMMARY)


def question(case: dict[str, str]) -> tuple[SlotView, Fact, Actor, SlotRules]:
    """The arguments of ``decide`` that a combination of the table's dimensions describes."""
    mine = SourceKind.AUTHORIZED_PERSON if case["attributed"] == "yes" else SourceKind.UNATTRIBUTED
    theirs = {"higher": SourceKind.AGENT_SUMMARY, "equal": mine, "lower": SourceKind.SYSTEM_OF_RECORD}[case["rank"]]
    date = {"later": day(-5), "equal": day(-10), "earlier": day(-20), "absent": None}[case["date"]]
    period = (date, None) if case["period"] == "overlaps" else (day(-20), day(-15))
    incumbent = fact("old", "Dana", theirs, effective_at=day(-10))
    incumbent = replace(incumbent, review_at=day(-0.5 if case["review"] == "past" else 30))
    challenger = fact(
        "new",
        "Dana" if case["value"] == "equal" else "Lee",
        source(mine, id="call-7", external=case["external"] == "yes"),
        writer="ana",
        recorded_at=NOW,
        effective_at=period[0],
        expires_at=period[1],
    )
    rules = SlotRules(
        ranks=TABLE_RANKS,
        owner="ana" if case["owner"] == "yes" else "rui",
        proposers=("user:ana",) if case["proposer"] == "yes" else ("user:eva",),
        sensitive=case["sensitive"] == "yes",
    )
    if case["scope"] == "same":
        return SlotView(current=(incumbent,)), challenger, ANA, rules
    elsewhere = replace(incumbent, scope=Scope.PERSONAL, user="ana")
    return SlotView(elsewhere=(elsewhere,)), challenger, ANA, rules


def test_every_combination_matches_one_row_and_is_decided_so() -> None:
    reached = set()
    for words in itertools.product(*DIMENSIONS.values()):
        case = dict(zip(DIMENSIONS, words, strict=True))
        rows = [row for row, cells in zip(TABLE, CELLS, strict=True) if all(case[n] in w for n, w in cells.items())]
        assert len(rows) == 1, case
        reached.add(rows[0])
        ruling = decide(*question(case), NOW)
        assert (ruling.outcome, ruling.rule) == (rows[0].outcome, rows[0].rule), case
        _fits_its_outcome(ruling)
    assert reached == set(TABLE)


def _fits_its_outcome(ruling: Ruling) -> None:
    kinds = [opening.kind for opening in ruling.open]
    assert (ConflictKind.CONFLICT in kinds) == (ruling.outcome is Outcome.HELD)
    assert (ruling.status is Status.DISPUTED) == (ruling.outcome is Outcome.HELD)
    assert (ruling.supersede == ("old",)) == (ruling.outcome is Outcome.REPLACED)
    assert ruling.reason


# --- Order of equals -------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(SourceKind)
EVIDENCE = st.builds(
    lambda n, value, kind, date, head: fact(
        f"f{n}", value, source(kind, id=f"s{n}"), effective_at=date and day(date), recorded_at=day(-n % 3)
    ),
    st.integers(0, 99),
    st.sampled_from(["Dana", "Lee", "Kim"]),
    KINDS,
    st.none() | st.integers(-9, -1),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVIDENCE, max_size=6, unique_by=lambda f: f.id), EVIDENCE, st.randoms(use_true_random=False))
def test_a_decision_does_not_depend_on_the_order_of_what_it_is_given(
    facts: list[Fact], challenger: Fact, random: Any
) -> None:
    heads: dict[str, str] = {}
    grouped = []
    for f in facts:
        leader = heads.setdefault(str(f.value), f.id)
        grouped.append(f if leader == f.id else replace(f, corroborates=leader))
    challenger = replace(challenger, id="new", recorded_at=NOW)
    conflicts = [
        OpenConflict(
            id=f"c{n}",
            kind=ConflictKind.NOTICE,
            rule=Rule.LOWER_RANK,
            opened_at=NOW,
            subject_id=f.id,
            challenger=replace(f, id=f"w{n}"),
        )
        for n, f in enumerate(facts)
    ]
    rulings = []
    for _ in range(3):
        random.shuffle(grouped)
        random.shuffle(conflicts)
        view = SlotView(
            current=tuple(f for f in grouped if f.corroborates is None),
            evidence=tuple(f for f in grouped if f.corroborates is not None),
            conflicts=tuple(conflicts),
        )
        rulings.append(decide(view, challenger, ANA, SlotRules(), NOW))
    assert rulings[0] == rulings[1] == rulings[2]


@pytest.mark.parametrize("dates", [(None, None), (-3, -3), (None, -3)])
def test_which_of_two_equals_came_first_changes_neither_outcome_nor_rule(dates: tuple[int | None, int | None]) -> None:
    one, two = (
        fact(name, name, source(SourceKind.COUNTERPARTY, party="client", id=name), effective_at=d and day(d))
        for name, d in zip(("Dana", "Lee"), dates, strict=True)
    )
    forth = decide(SlotView(current=(one,)), two, ANA, SlotRules(), NOW)
    back = decide(SlotView(current=(two,)), one, ANA, SlotRules(), NOW)
    assert (forth.outcome, forth.rule) == (back.outcome, back.rule)
    assert forth.outcome is Outcome.HELD


# --- Points one by one -----------------------------------------------------------------------------------------------

OPEN = SlotRules(proposers=("*",))
DANA = fact("dana", "Dana", SourceKind.SYSTEM_OF_RECORD, effective_at=day(-10))


def asked(challenger: Fact, *current: Fact, rules: SlotRules = OPEN, actor: Actor = BOT, **view: Any) -> Ruling:
    return decide(SlotView(current=current, **view), replace(challenger, recorded_at=NOW), actor, rules, NOW)


def test_point_1_an_empty_slot_stores_whoever_writes_and_reviews_what_is_sensitive() -> None:
    sensitive = replace(OPEN, sensitive=True, owner="ana")
    ruling = asked(DANA, rules=sensitive)
    assert (ruling.outcome, ruling.rule) == (Outcome.STORED, "empty_slot")
    assert [(o.kind, o.rule) for o in ruling.open] == [(ConflictKind.REVIEW, "sensitive_unconfirmed")]
    assert asked(DANA, rules=sensitive, actor=ANA).open == ()


def test_point_1_another_users_personal_value_does_not_show() -> None:
    personal = replace(DANA, scope=Scope.PERSONAL, user="ana")
    assert asked(DANA, elsewhere=(personal,), actor=BOT).outcome is Outcome.STORED
    assert asked(DANA, elsewhere=(personal,), actor=ANA).outcome is Outcome.COEXISTS


def test_point_2_evidence_lends_its_rank_and_the_same_source_counts_once() -> None:
    note = fact("note", "Dana", source(SourceKind.AGENT_SUMMARY, id="n1"), effective_at=day(-9))
    confirmed = replace(DANA, corroborates="note")
    call = fact("call", "Lee", SourceKind.AUTHORIZED_PERSON, effective_at=day(-1))
    assert asked(call, note).outcome is Outcome.REPLACED
    assert asked(call, note, evidence=(confirmed,)).rule == "lower_rank"
    again = asked(replace(DANA, id="again"), note, evidence=(confirmed,))
    assert (again.outcome, again.counts, again.incumbent_id) == (Outcome.CORROBORATED, False, "note")
    assert asked(DANA, note).counts


def test_point_2_only_an_equal_or_higher_rank_moves_the_review_date() -> None:
    incumbent = replace(DANA, review_at=day(10))
    weak = fact("note", "dana ", SourceKind.AGENT_SUMMARY, review_at=day(90))
    equal = fact("crm2", "DANA", source(SourceKind.SYSTEM_OF_RECORD, id="other"), review_at=day(90))
    assert asked(weak, incumbent).review_at is None
    assert asked(equal, incumbent).review_at == day(90)
    sensitive = replace(OPEN, sensitive=True, owner="ana")
    assert asked(equal, incumbent, rules=sensitive).review_at is None
    assert asked(equal, incumbent, rules=sensitive, actor=ANA).review_at == day(90)


def test_point_2_a_moved_review_date_withdraws_the_review() -> None:
    incumbent = replace(DANA, review_at=day(-1))
    open_review = OpenConflict(
        id="c1", kind=ConflictKind.REVIEW, rule=Rule.PAST_REVIEW, opened_at=day(-1), subject_id="dana"
    )
    equal = fact("crm2", "Dana", source(SourceKind.SYSTEM_OF_RECORD, id="other"), review_at=day(90))
    assert asked(equal, incumbent, conflicts=(open_review,)).consequences.withdraw == ("c1",)


def test_point_3_several_current_facts_with_their_own_periods() -> None:
    summer = fact("summer", "A", SourceKind.SYSTEM_OF_RECORD, effective_at=day(-10), expires_at=day(10))
    winter = fact("winter", "B", SourceKind.SYSTEM_OF_RECORD, effective_at=day(20))
    between = fact("between", "C", effective_at=day(10), expires_at=day(20))
    assert asked(between, summer, winter).rule == "disjoint_period"
    touching = asked(replace(between, expires_at=day(21)), summer, winter)
    assert (touching.outcome, touching.rule, touching.successor_id) == (Outcome.COEXISTS, "disjoint_period", "winter")
    both = fact("both", "D", SourceKind.SYSTEM_OF_RECORD, effective_at=day(5))
    ruling = asked(both, summer, winter)
    assert (ruling.outcome, ruling.supersede, ruling.successor_id) == (Outcome.REPLACED, ("summer",), "winter")


def test_point_4_holds_whatever_the_ranks() -> None:
    rules = SlotRules(sensitive=True, owner="finance", proposers=("*",))
    note = fact("note", "Dana", SourceKind.AGENT_SUMMARY)
    record = fact("crm", "Lee", SourceKind.SYSTEM_OF_RECORD, effective_at=day(-1))
    assert asked(record, note, rules=rules, actor=Actor(id="key:9", may_claim_record=True)).outcome is Outcome.HELD
    owner = Actor(id="rui", groups=frozenset({"finance"}))
    assert asked(record, note, rules=rules, actor=owner).outcome is Outcome.REPLACED
    unassigned = replace(rules, owner="unassigned")
    assert asked(record, note, rules=unassigned, actor=Actor(id="unassigned")).outcome is Outcome.HELD


@pytest.mark.parametrize(
    ("origin", "rules", "place"),
    [
        (source(SourceKind.SYSTEM_OF_RECORD), OPEN, 0),
        (source(SourceKind.SYSTEM_OF_RECORD, external=True), OPEN, 7),
        (Source(kind=SourceKind.SYSTEM_OF_RECORD), OPEN, 7),
        (Source(kind=SourceKind.SYSTEM_OF_RECORD, author="Rui"), OPEN, 0),
        (source(SourceKind.COUNTERPARTY, party="CLIENT "), OPEN, 3),
        (source(SourceKind.COUNTERPARTY, party="somebody"), OPEN, 5),
        (source(SourceKind.COUNTERPARTY), OPEN, 5),
        (source(SourceKind.COUNTERPARTY, party="client", external=True), OPEN, 7),
        (source(SourceKind.COUNTERPARTY, party="client", external=True), replace(OPEN, self_authority=True), 0),
        (source(SourceKind.COUNTERPARTY, party="somebody"), replace(OPEN, self_authority=True), 5),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("crm",)), OPEN, 0),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("crm",), external=True), OPEN, 7),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("crm", "mail")), OPEN, 4),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("unknown",)), OPEN, 4),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("mail",)), OPEN, 7),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("mail",)), replace(OPEN, self_authority=True), 0),
        (source(SourceKind.AGENT_SUMMARY, derived_from=("loop",)), OPEN, 4),
        (source(SourceKind.AUTHORIZED_PERSON), replace(OPEN, ranks=((SourceKind.COUNTERPARTY,),)), 1),
    ],
)
def test_point_5_ranks(origin: Source, rules: SlotRules, place: int) -> None:
    mail = source(SourceKind.COUNTERPARTY, party="client", external=True)
    loop = source(SourceKind.AGENT_SUMMARY, derived_from=("loop",))
    parents = {
        "crm": fact("crm", "x", SourceKind.SYSTEM_OF_RECORD),
        "mail": fact("mail", "x", mail, subject=None, field=None),
        "loop": fact("loop", "x", loop),
    }
    assert rank(fact("f", "x", origin), rules, parents) == place


@pytest.mark.parametrize(("date", "notices"), [(-5, 1), (None, 1), (-10, 0), (-20, 0)])
def test_point_5_a_weaker_but_newer_statement_opens_a_notice(date: int | None, notices: int) -> None:
    weak = fact("note", "Lee", SourceKind.AGENT_SUMMARY, effective_at=date and day(date))
    ruling = asked(weak, DANA)
    assert (ruling.outcome, ruling.status) == (Outcome.KEPT, Status.SUPERSEDED)
    assert [o.kind for o in ruling.open] == [ConflictKind.NOTICE] * notices


def test_point_5_missing_labels_are_warned_of() -> None:
    document = fact("doc", "x", Source(kind=SourceKind.APPROVED_DOCUMENT, uri="file:policy"))
    assert asked(document).warnings == (
        "an approved document without owner",
        "an approved document without review date",
    )
    person = fact("call", "x", Source(kind=SourceKind.AUTHORIZED_PERSON, author="Rui"), effective_at=day(-1))
    assert asked(person).warnings == ("an authorized person without role",)
    assert asked(DANA).warnings == ()


def test_point_6_a_field_with_a_review_period_goes_stale_by_itself() -> None:
    rules = replace(OPEN, review_after_days=30)
    old = replace(DANA, recorded_at=day(-31), effective_at=None)
    fresh = replace(old, recorded_at=day(-29))
    lee = fact("lee", "Lee", source(SourceKind.SYSTEM_OF_RECORD, id="other"))
    assert asked(lee, old, rules=rules).rule == "past_review_loses_tie"
    assert asked(lee, fresh, rules=rules).rule == "undated_tie"


def test_point_6_a_summary_of_one_fact_is_as_attributed_as_that_fact() -> None:
    pasted = fact("pasted", "x", Source(kind=SourceKind.UNATTRIBUTED), subject=None, field=None)
    origin = source(SourceKind.AGENT_SUMMARY, id="n2", derived_from=("pasted",))
    note = fact("note", "Lee", origin, effective_at=day(-1))
    old = fact("old", "Dana", Source(kind=SourceKind.UNATTRIBUTED), effective_at=day(-9))
    assert asked(note, old, parents={"pasted": pasted}).rule == "unattributed_tie"


@pytest.mark.parametrize(
    ("proposers", "actor", "allowed"),
    [
        (("*",), BOT, True),
        (("self",), Actor(id="Client"), True),
        (("self",), Actor(id="colleague"), False),
        (("user:rui",), Actor(id="rui"), True),
        (("user:sales",), Actor(id="x", groups=frozenset({"sales"})), False),
        (("group:sales",), Actor(id="x", groups=frozenset({"sales"})), True),
        (("group:sales",), Actor(id="sales"), False),
        ((), ANA, True),
        ((), BOT, False),
        (None, Actor(id="key:0"), True),
        (None, BOT, False),
        (None, Actor(id="key:1", may_claim_record=True), True),
    ],
)
def test_point_7_who_may_propose(proposers: tuple[str, ...] | None, actor: Actor, allowed: bool) -> None:
    rules = SlotRules(owner="ana", proposers=proposers)
    assert may_propose(rules, actor, "client", {"key:0"}) is allowed


def test_point_8_the_losers_leave_with_their_evidence_and_what_was_open_about_them() -> None:
    note = fact("note", "Dana", source(SourceKind.AGENT_SUMMARY, id="n1"))
    seconded = replace(note, id="note2", corroborates="note")
    waiting = fact("kim", "Kim", SourceKind.COUNTERPARTY, status=Status.DISPUTED)
    same = fact("lee0", "Lee", SourceKind.COUNTERPARTY, status=Status.DISPUTED)
    open_now = (
        OpenConflict(id="c1", kind=ConflictKind.REVIEW, rule=Rule.PAST_REVIEW, opened_at=NOW, subject_id="note"),
        OpenConflict(
            id="c2",
            kind=ConflictKind.CONFLICT,
            rule=Rule.UNDATED_TIE,
            opened_at=NOW,
            subject_id="note",
            challenger=waiting,
        ),
        OpenConflict(
            id="c3",
            kind=ConflictKind.CONFLICT,
            rule=Rule.NOT_PROPOSER,
            opened_at=NOW,
            subject_id="note",
            challenger=same,
            evidence_ids=("lee1",),
        ),
    )
    lee = fact("lee", "Lee", SourceKind.SYSTEM_OF_RECORD)
    ruling = asked(lee, note, evidence=(seconded,), conflicts=open_now)
    assert ruling.supersede == ("note", "note2")
    assert ruling.consequences.withdraw == ("c1", "c3")
    assert ruling.consequences.redecide == ("c2",)
    assert ruling.consequences.adopt == ("lee0", "lee1")


def test_the_same_value_again_joins_its_conflict() -> None:
    held = fact("lee", "Lee", source(SourceKind.SYSTEM_OF_RECORD, id="a"), status=Status.DISPUTED)
    conflict = OpenConflict(
        id="c1", kind=ConflictKind.CONFLICT, rule=Rule.UNDATED_TIE, opened_at=NOW, subject_id="dana", challenger=held
    )
    again = asked(fact("lee2", "LEE", source(SourceKind.SYSTEM_OF_RECORD, id="b")), DANA, conflicts=(conflict,))
    assert (again.outcome, again.join, again.open) == (Outcome.HELD, "c1", ())
    weak = asked(fact("lee3", "Lee", SourceKind.AGENT_SUMMARY), DANA, conflicts=(conflict,))
    assert (weak.outcome, weak.join, weak.open) == (Outcome.KEPT, "c1", ())
    third = asked(fact("kim", "Kim", source(SourceKind.SYSTEM_OF_RECORD, id="c")), DANA, conflicts=(conflict,))
    assert (third.outcome, third.join, len(third.open)) == (Outcome.HELD, None, 1)


def test_rulings_stand() -> None:
    crm = source(SourceKind.SYSTEM_OF_RECORD)
    lee = fact("lee", "Lee", source(SourceKind.COUNTERPARTY, party="client"), effective_at=day(-9))
    past = PastRuling(at=day(-2), winner_key=value_key("Lee"), losers=frozenset({(value_key("Dana"), source_key(crm))}))
    back = asked(fact("sync", "Dana", crm, effective_at=day(-1)), lee, rulings=(past,))
    assert (back.outcome, back.rule, back.open) == (Outcome.KEPT, "lost_ruling", ())
    other = source(SourceKind.SYSTEM_OF_RECORD, id="billing")
    before = asked(fact("old", "Kim", other, effective_at=day(-3)), lee, rulings=(past,))
    assert (before.outcome, before.rule, len(before.open)) == (Outcome.KEPT, "ruled_before", 1)
    after = asked(fact("new", "Kim", other, effective_at=day(-1)), lee, rulings=(past,))
    assert (after.outcome, after.rule) == (Outcome.REPLACED, "higher_rank")


def test_more_than_two_values_overlapping_in_one_slot() -> None:
    record = fact("crm", "A", SourceKind.SYSTEM_OF_RECORD, effective_at=day(-9))
    note = fact("note", "B", SourceKind.AGENT_SUMMARY, effective_at=day(-8))
    person = fact("call", "C", SourceKind.AUTHORIZED_PERSON, effective_at=day(-1))
    assert asked(person, record, note).rule == "lower_rank"
    strong = fact("crm2", "D", source(SourceKind.SYSTEM_OF_RECORD, id="two"), effective_at=day(-1))
    assert asked(strong, record, note).supersede == ("crm", "note")
    tied = fact("crm3", "E", source(SourceKind.SYSTEM_OF_RECORD, id="three"))
    assert asked(tied, record, note).rule == "undated_tie"


def test_who_may_rule() -> None:
    rules = SlotRules(owner="ana", due_days=2, delegate="board")
    board = Actor(id="eva", groups=frozenset({"board"}))
    assert may_rule(rules, ANA, NOW, NOW)
    assert not may_rule(rules, BOT, NOW, day(9))
    assert [may_rule(rules, board, NOW, day(d)) for d in (1.9, 2)] == [False, True]
    assert may_rule(SlotRules(), BOT, NOW, NOW)


def test_a_fact_without_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="no slot"):
        asked(replace(DANA, subject=None))
