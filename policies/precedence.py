"""What becomes of a new fact in a slot: the written rules of precedence as one pure function (seed 000; API.md).

``decide`` is told everything it may know: the slot's facts, its open conflicts, its past rulings, the actor, the rules
and the time. The same question always has the same answer, whatever the order of what it is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from muniment.policies.authority import (
    Actor,
    is_owner,
    key_of,
    label_warnings,
    losing_pair,
    may_propose,
    rank,
    review_date,
    source_key,
)
from muniment.policies.model import ConflictKind, Fact, Outcome, Scalar, Source, Status
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_view import NOTHING, REASONS, Consequences, Opening, Ruling, SlotView, promoted
from muniment.policies.weighing import Rule, Stance, Weight, first_recorded, over, overlap, start, weigh

_LOGGED_TEXT = 500


@dataclass(frozen=True, slots=True)
class _Case:
    """One question: the arguments of ``decide``, and what of the view concerns the challenger."""

    view: SlotView
    challenger: Fact
    actor: Actor
    rules: SlotRules
    now: datetime
    live: tuple[Fact, ...]
    rivals: tuple[Fact, ...]
    later: tuple[Fact, ...]

    @property
    def horizon(self) -> datetime:
        """The moment from which the challenger would hold."""
        return max(self.now, self.challenger.effective_at or self.now)

    def standing(self, incumbent: Fact) -> list[Fact]:
        """The incumbent and its evidence, as far as they meet the challenger and do not begin after it would hold."""
        evidence = [f for f in _evidence_of(self.view, incumbent.id) if self.holds(f) and start(f) <= self.horizon]
        return [f for f in (incumbent, *evidence) if overlap(f, self.challenger)]

    def holds(self, fact: Fact) -> bool:
        """Whether the fact is in force when the challenger would be, or comes into force after that."""
        known = (*self.view.current, *self.view.evidence)
        return not over(fact, self.now) and not overtaken(fact, known, max(self.horizon, start(fact)))


def decide(view: SlotView, challenger: Fact, actor: Actor, rules: SlotRules, now: datetime) -> Ruling:
    """What becomes of ``challenger``, told by ``actor`` at ``now``. Raises ``ValueError`` for a fact without a slot."""
    if challenger.slot is None:
        raise ValueError(f"{challenger.id} is in no slot")
    case = _case(view, challenger, actor, rules, now)
    ruling = next(filter(None, (step(case) for step in _STEPS)))
    warnings = label_warnings(challenger, rules)
    if ruling.outcome is Outcome.STORED and not ruling.open:
        return replace(ruling, warnings=warnings) if warnings else ruling
    return replace(ruling, warnings=warnings, inputs=_inputs(case))


def _case(view: SlotView, challenger: Fact, actor: Actor, rules: SlotRules, now: datetime) -> _Case:
    if view.current or view.evidence:
        facts = promoted((*view.current, *view.evidence), now)
        view = replace(
            view,
            current=tuple(f for f in facts if f.corroborates is None),
            evidence=tuple(f for f in facts if f.corroborates is not None),
        )
    bare = _Case(view, challenger, actor, rules, now, (), (), ())
    live = tuple(f for f in view.current if f.id != challenger.id and bare.holds(f))
    met = [f for f in live if bare.standing(f)]
    # What begins later than the challenger takes over from it in time, unless the challenger is the stronger one.
    later = [f for f in met if start(f) > bare.horizon and (_same(bare, f) or not _outranks(bare, f))]
    rivals = tuple(f for f in met if f not in later)
    return replace(bare, live=live, rivals=rivals, later=tuple(later))


def overtaken(fact: Fact, current: Sequence[Fact], now: datetime) -> bool:
    """Whether the successor that was decided for the fact is among the current facts and has come into force."""
    return fact.superseded_by is not None and any(f.id == fact.superseded_by and start(f) <= now for f in current)


def _outranks(case: _Case, other: Fact) -> bool:
    standing = case.standing(other)
    if not standing:
        return False
    return weigh(case.challenger, standing, case.rules, case.view.parents, case.now).rule is Rule.HIGHER_RANK


def _same(case: _Case, other: Fact) -> bool:
    return key_of(other, case.rules) == key_of(case.challenger, case.rules)


def _empty_slot(case: _Case) -> Ruling | None:
    """Point 1: whoever writes. A sensitive field that its owner did not fill is to be reviewed."""
    if case.rivals or [f for f in case.live if f not in case.later]:
        return None
    beside = any(f.visible_to(case.actor.id) and not over(f, case.now) for f in case.view.elsewhere)
    rule, outcome = (Rule.OTHER_SCOPE, Outcome.COEXISTS) if beside else (Rule.EMPTY_SLOT, Outcome.STORED)
    return _admitted(case, outcome, rule, None)


def _admitted(case: _Case, outcome: Outcome, rule: Rule, incumbent: Fact | None) -> Ruling:
    status = Status.EXPIRED if over(case.challenger, case.now) else Status.CURRENT
    unconfirmed = not _may_change(case) and status is Status.CURRENT
    review = Opening(
        kind=ConflictKind.REVIEW,
        rule=Rule.SENSITIVE_UNCONFIRMED,
        reason=REASONS[Rule.SENSITIVE_UNCONFIRMED],
        subject_id=case.challenger.id,
    )
    settled = consequences(case.view, case.challenger, frozenset(), case.rules) if case.view.conflicts else NOTHING
    if case.later:
        settled = replace(settled, adopt=tuple(sorted({*settled.adopt, *_adopted(case)})))
    return Ruling(
        outcome=outcome,
        rule=rule,
        reason=REASONS[rule],
        status=status,
        incumbent_id=incumbent.id if incumbent else None,
        successor_id=_successor(case),
        open=(review,) if unconfirmed else (),
        consequences=settled if status is Status.CURRENT else NOTHING,
    )


def _ahead(case: _Case, released: Sequence[Fact]) -> list[Fact]:
    return sorted((*case.later, *released), key=lambda f: (start(f), first_recorded(f)))


def _adopted(case: _Case, released: Sequence[Fact] = ()) -> set[str]:
    """Facts of the same value that begin later, with nothing else between: they become the challenger's evidence."""
    heads = {f.id for f in itertools.takewhile(lambda f: _same(case, f), _ahead(case, released))}
    return heads | {f.id for f in case.view.evidence if f.corroborates in heads}


def _successor(case: _Case, released: Sequence[Fact] = ()) -> str | None:
    """The fact of another value that will take over first."""
    return next((f.id for f in _ahead(case, released) if not _same(case, f)), None)


def _equal_value(case: _Case) -> Ruling | None:
    """Point 2: evidence. Only an equal or higher rank moves the review date; where it is sensitive, only the owner."""
    incumbent = next((f for f in case.rivals if _same(case, f)), None)
    if incumbent is None:
        return None
    standing = case.standing(incumbent)
    best = min(rank(f, case.rules, case.view.parents) for f in standing)
    moves = _may_change(case) and rank(case.challenger, case.rules, case.view.parents) <= best
    review_at, old = review_date(case.challenger, case.rules), review_date(incumbent, case.rules)
    moved = review_at if moves and review_at is not None and (old is None or review_at > old) else None
    settled = {Rule.PAST_REVIEW} if moved is not None and moved > case.now else set()
    if is_owner(case.rules, case.actor):
        settled.add(Rule.SENSITIVE_UNCONFIRMED)
    about_it = (c for c in case.view.conflicts if c.kind is ConflictKind.REVIEW and c.subject_id == incumbent.id)
    known = {source_key(f.source) for f in (incumbent, *_evidence_of(case.view, incumbent.id))}
    leaving, released = _parted(case, _outdone(case, incumbent))
    return Ruling(
        outcome=Outcome.CORROBORATED,
        rule=Rule.EQUAL_VALUE,
        reason=REASONS[Rule.EQUAL_VALUE],
        status=Status.CURRENT,
        incumbent_id=incumbent.id,
        supersede=tuple(sorted(leaving)),
        release=tuple(sorted(f.id for f in released)),
        successor_id=_follower(case, incumbent, leaving, released) if leaving else None,
        review_at=moved,
        counts=source_key(case.challenger.source) not in known,
        consequences=Consequences(withdraw=tuple(sorted(c.id for c in about_it if c.rule in settled))),
    )


def _outdone(case: _Case, incumbent: Fact) -> set[str]:
    """Facts of other values that lie ahead and are too weak to take over from a value with this new evidence."""
    ahead = [f for f in case.rivals if start(f) > case.horizon and not _same(case, f)]
    writers = {f.writer for f in ahead}
    if not _may_change(case) or not may_propose(case.rules, case.actor, incumbent.subject or "", writers):
        return set()
    return {f.id for f in ahead}


def _follower(case: _Case, incumbent: Fact, leaving: set[str], released: Sequence[Fact]) -> str | None:
    """The fact that takes over from the incumbent first, once some of those that were to have left."""
    known = {f.id: f for f in (*case.view.current, *case.view.evidence)}
    next_id = incumbent.superseded_by
    while next_id in leaving:
        leaving = leaving - {next_id}
        next_id = known[next_id].superseded_by
    ahead = [*released, *(f for f in known.values() if f.id == next_id)]
    return min(ahead, key=lambda f: (start(f), first_recorded(f))).id if ahead else None


def _parted(case: _Case, losers: set[str]) -> tuple[set[str], list[Fact]]:
    """The losers with their evidence that leaves, and the evidence that begins later and is not outranked."""
    evidence = [f for f in case.view.evidence if f.corroborates in losers]
    released = [f for f in evidence if case.holds(f) and start(f) > case.horizon and not _outranks(case, f)]
    return losers | {f.id for f in evidence if f not in released}, released


def _may_change(case: _Case) -> bool:
    return not case.rules.sensitive or is_owner(case.rules, case.actor)


def _evidence_of(view: SlotView, fact_id: str) -> list[Fact]:
    return sorted((f for f in view.evidence if f.corroborates == fact_id), key=first_recorded)


def _disjoint_period(case: _Case) -> Ruling | None:
    """Point 3: two truths, each in its time."""
    if case.rivals:
        return None
    return _admitted(case, Outcome.COEXISTS, Rule.DISJOINT_PERIOD, case.live[0])


def _ruled(case: _Case) -> Ruling | None:
    """Rulings stand: the losing (value, source) does not come back, nor does anything effective up to the ruling."""
    value, source = losing_pair(case.challenger, case.rules)
    if any((value, source) in past.losers for past in case.view.rulings):
        return _kept(case, Rule.LOST_RULING, case.rivals[0], notice=False)
    begins = start(case.challenger)
    if any(past.winner_key not in (None, value) and begins <= past.at for past in case.view.rulings):
        return _kept(case, Rule.RULED_BEFORE, case.rivals[0], notice=_newer(case, case.rivals[0]))
    return None


def _sensitive(case: _Case) -> Ruling | None:
    """Point 4: whatever the ranks."""
    if _may_change(case):
        return None
    return _held(case, Rule.SENSITIVE_NEEDS_OWNER, case.rivals[0])


def _already_over(case: _Case) -> Ruling | None:
    """What has ended before it was told is history: it cannot take the place of what holds now."""
    if not over(case.challenger, case.now):
        return None
    return _kept(case, Rule.ALREADY_OVER, case.rivals[0], notice=False)


def _weighed(case: _Case) -> Ruling:
    """Points 5, 6 and 7: kept if any rival stands, else held if any tie remains, else it replaces them all."""
    weights = [
        (f, weigh(case.challenger, case.standing(f), case.rules, case.view.parents, case.now)) for f in case.rivals
    ]
    severity = list(Stance)
    incumbent, weight = min(weights, key=lambda pair: severity.index(pair[1].stance))
    if weight.stance is Stance.KEPT:
        notice = weight.rule is Rule.LOWER_RANK and _newer(case, incumbent)
        return _kept(case, weight.rule, incumbent, notice=notice)
    if weight.stance is Stance.HELD:
        return _held(case, weight.rule, incumbent)
    writers = {f.writer for f in case.rivals}
    if not may_propose(case.rules, case.actor, case.challenger.subject or "", writers):
        return _held(case, Rule.NOT_PROPOSER, incumbent)
    return _replaced(case, weight, incumbent)


def _newer(case: _Case, incumbent: Fact) -> bool:
    effective_at = case.challenger.effective_at
    return effective_at is None or effective_at > start(incumbent)


def _kept(case: _Case, rule: Rule, incumbent: Fact, *, notice: bool) -> Ruling:
    ended = over(case.challenger, case.now)
    opened, join = _escalate(case, ConflictKind.NOTICE, rule, incumbent) if notice else ((), _same_open(case))
    return Ruling(
        outcome=Outcome.KEPT,
        rule=rule,
        reason=REASONS[rule],
        status=Status.EXPIRED if ended else Status.SUPERSEDED,
        incumbent_id=incumbent.id,
        open=opened,
        join=None if rule is Rule.LOST_RULING else join,
    )


def _held(case: _Case, rule: Rule, incumbent: Fact) -> Ruling:
    opened, join = _escalate(case, ConflictKind.CONFLICT, rule, incumbent)
    return Ruling(
        outcome=Outcome.HELD,
        rule=rule,
        reason=REASONS[rule],
        status=Status.DISPUTED,
        incumbent_id=incumbent.id,
        open=opened,
        join=join,
    )


def _same_open(case: _Case, *kinds: ConflictKind) -> str | None:
    value = key_of(case.challenger, case.rules)
    same = [
        c.id
        for c in case.view.conflicts
        if c.kind in (kinds or (ConflictKind.CONFLICT, ConflictKind.NOTICE))
        and c.challenger is not None
        and c.challenger.id != case.challenger.id
        and key_of(c.challenger, case.rules) == value
    ]
    return min(same, default=None)


def _escalate(case: _Case, kind: ConflictKind, rule: Rule, incumbent: Fact) -> tuple[tuple[Opening, ...], str | None]:
    """One conflict per (slot, value): the same value again joins. A notice joins a conflict, never the reverse."""
    kinds = (ConflictKind.CONFLICT,) if kind is ConflictKind.CONFLICT else (ConflictKind.CONFLICT, ConflictKind.NOTICE)
    join = _same_open(case, *kinds)
    if join is not None:
        return (), join
    opening = Opening(
        kind=kind, rule=rule, reason=REASONS[rule], subject_id=incumbent.id, challenger_id=case.challenger.id
    )
    return (opening,), None


def _replaced(case: _Case, weight: Weight, incumbent: Fact) -> Ruling:
    """Point 8: the losers leave with their evidence. What lies ahead takes effect on its date."""
    effective_at = case.challenger.effective_at
    ahead = effective_at if effective_at is not None and effective_at > case.now else None
    leaving, released = _parted(case, {f.id for f in case.rivals})
    settled = consequences(case.view, case.challenger, frozenset(leaving), case.rules)
    settled = replace(settled, adopt=tuple(sorted({*settled.adopt, *_adopted(case, released)})))
    return Ruling(
        outcome=Outcome.REPLACED,
        rule=weight.rule,
        reason=REASONS[weight.rule],
        status=Status.CURRENT,
        incumbent_id=incumbent.id,
        supersede=tuple(sorted(leaving)),
        takes_effect_at=ahead,
        successor_id=_successor(case, released),
        release=tuple(sorted(f.id for f in released)),
        consequences=NOTHING if ahead else settled,
    )


_STEPS = (_empty_slot, _equal_value, _disjoint_period, _ruled, _sensitive, _already_over, _weighed)


def consequences(
    view: SlotView, winner: Fact, leaving: frozenset[str], rules: SlotRules, *, anew: bool = False
) -> Consequences:
    """What follows for the slot's open conflicts once ``winner`` holds it and the facts of ``leaving`` do not.

    Reviews and notices of a fact that leaves are withdrawn; so is what waited with the winner's own value, its facts
    becoming evidence; every other conflict is decided anew against the winner, if any fact leaves or ``anew`` says so.
    """
    value = key_of(winner, rules)
    withdraw, redecide, adopt = [], [], []
    for conflict in sorted(view.conflicts, key=lambda c: c.id):
        challenger = conflict.challenger
        if challenger is not None and key_of(challenger, rules) == value:
            withdraw.append(conflict.id)
            adopt += [i for i in (challenger.id, *conflict.evidence_ids) if i != winner.id]
        elif conflict.kind is not ConflictKind.CONFLICT:
            withdraw += [conflict.id] if conflict.subject_id in leaving else []
        elif (leaving or anew) and challenger is not None:
            redecide.append(conflict.id)
    return Consequences(withdraw=tuple(withdraw), redecide=tuple(redecide), adopt=tuple(sorted(set(adopt))))


def _inputs(case: _Case) -> dict[str, Any]:
    parents = case.view.parents
    return {
        "challenger": fact_inputs(case.challenger, rank(case.challenger, case.rules, parents)),
        "incumbents": [fact_inputs(f, rank(f, case.rules, parents)) for f in case.rivals],
        "evidence": [
            fact_inputs(e, rank(e, case.rules, parents)) for f in case.rivals for e in _evidence_of(case.view, f.id)
        ],
        "actor": {
            "id": case.actor.id,
            "groups": sorted(case.actor.groups),
            "owner": is_owner(case.rules, case.actor),
            "may_claim_record": case.actor.may_claim_record,
        },
        "rules": case.rules.to_dict(),
        "now": _moment(case.now),
    }


def fact_inputs(fact: Fact, place: int) -> dict[str, Any]:
    """What the decision log keeps of a fact that was weighed; long values are cut."""
    return {
        "id": fact.id,
        "value": _cut(fact.value),
        "rank": place,
        "source": _source_inputs(fact.source),
        "writer": fact.writer,
        "effective_at": _moment(fact.effective_at),
        "expires_at": _moment(fact.expires_at),
        "review_at": _moment(fact.review_at),
        "recorded_at": _moment(fact.recorded_at),
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def _cut(value: Scalar | None) -> Scalar | None:
    return value[:_LOGGED_TEXT] if isinstance(value, str) else value


def _source_inputs(source: Source) -> dict[str, Any]:
    names = {name: getattr(source, name) for name in ("id", "uri", "author", "role", "party")}
    kept = {name: _cut(value) for name, value in names.items() if value}
    return {"kind": source.kind.value, **kept, "external": source.external, "derived_from": list(source.derived_from)}
