"""What an owner's ruling does (API.md, ``POST /v1/conflicts/{id}/resolution``): a plan for one transaction.

A ruling beats everything effective up to it. Its losers leave, do not come back with the same value from the same
source, and take no part in the slot's history; the other open conflicts of the slot are decided anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from muniment.policies.authority import Actor, key_of, losing_pair, rank, review_date
from muniment.policies.errors import InvalidInput, NotFound
from muniment.policies.model import ConflictKind, Fact, Scalar, Scope, Source, SourceKind, Status
from muniment.policies.precedence import consequences, fact_inputs, overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import Change
from muniment.policies.slot_view import NOTHING, Consequences, OpenConflict, PastRuling, SlotView
from muniment.policies.values import sentence
from muniment.policies.weighing import DAWN, DUSK, first_recorded, over, overlap, start


class Decision(StrEnum):
    """What an owner may say to a conflict, a review or a notice."""

    ACCEPT_CHALLENGER = "accept_challenger"
    KEEP_INCUMBENT = "keep_incumbent"
    NEW_VALUE = "new_value"
    BOTH_VALID = "both_valid"
    DISMISS = "dismiss"


_SENTENCES = {
    Decision.ACCEPT_CHALLENGER: "The owner accepted the new value.",
    Decision.KEEP_INCUMBENT: "The owner kept the recorded value.",
    Decision.NEW_VALUE: "The owner gave another value.",
    Decision.BOTH_VALID: "The owner said that both hold, each for its own.",
    Decision.DISMISS: "The owner closed it without ruling on the value.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescope:
    """For whom, about what or when the challenger holds instead. What is None stays as it is."""

    scope: Scope | None = None
    user: str | None = None
    subject: str | None = None
    field: str | None = None
    effective_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A ruling as the owner gives it."""

    decision: Decision
    value: Scalar | None = None
    text: str | None = None
    rescope: Rescope | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """One fact's new state. What is None stays as it is; ``change`` is the event for the slot's history."""

    fact_id: str
    status: Status | None = None
    superseded_by: str | None = None
    corroborates: str | None = None
    expires_at: datetime | None = None
    review_at: datetime | None = None
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RulingPlan:
    """All that a ruling brings about, beside closing its conflict.

    ``new_fact``: a fact to store as the slot's current one. ``rescoped``: the challenger as it now is; in another slot
    (``moves``) it is decided there like a new fact, told by ``RulingPlan.actor``. ``past``: what later decisions of the
    slot must know. ``lost``: facts whose derived facts get a review. ``takes_effect_at``: where the accepted value's
    date lies ahead; until then the losers stay in use.
    """

    decision: Decision
    reason: str
    actor: Actor
    changes: tuple[FactChange, ...] = ()
    new_fact: Fact | None = None
    rescoped: Fact | None = None
    moves: bool = False
    past: PastRuling | None = None
    consequences: Consequences = NOTHING
    lost: tuple[str, ...] = ()
    takes_effect_at: datetime | None = None
    inputs: Mapping[str, Any] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Bench:
    """What a ruling is given on: the slot's facts on both sides of one conflict."""

    conflict: OpenConflict
    resolution: Resolution
    view: SlotView
    joined: tuple[Fact, ...]
    actor: Actor
    rules: SlotRules
    now: datetime
    new_id: str

    @property
    def live(self) -> list[Fact]:
        """The current facts whose period has not ended, the first recorded first."""
        return sorted((f for f in self.view.current if not over(f, self.now)), key=first_recorded)

    @property
    def subject(self) -> Fact | None:
        """The fact that the conflict is about, while it is current."""
        return next((f for f in self.live if f.id == self.conflict.subject_id), None)

    @property
    def incumbents(self) -> list[Fact]:
        """The current facts that stand in the challenger's way; without a challenger the one that this is about."""
        if self.conflict.challenger is not None:
            return [f for f in self.live if self.meets(f)]
        return [] if self.subject is None else [self.subject]

    @property
    def opposing(self) -> list[Fact]:
        """The incumbents with their evidence, and evidence of other facts that stands in the way."""
        found = self.with_evidence(self.incumbents)
        others = sorted((f for f in self.view.evidence if f not in found), key=first_recorded)
        return found + [f for f in others if self.meets(f)]

    def meets(self, fact: Fact) -> bool:
        """Whether the fact shares a moment with the challenger, and nothing takes over from it before that begins."""
        challenger, current = self.conflict.challenger, (*self.view.current, *self.view.evidence)
        if challenger is None or not overlap(fact, challenger):
            return False
        return not overtaken(fact, current, max(self.now, start(challenger)))

    def with_evidence(self, facts: list[Fact]) -> list[Fact]:
        """The facts and their corroborations."""
        ids = {f.id for f in facts}
        return facts + sorted((f for f in self.view.evidence if f.corroborates in ids), key=first_recorded)

    @property
    def waiting(self) -> list[Fact]:
        """The challenger and what joined it."""
        challenger = self.conflict.challenger
        return [] if challenger is None else [challenger, *sorted(self.joined, key=first_recorded)]

    def challenger(self, pointer: str = "/decision") -> Fact:
        """The challenger, or an error where the conflict has none."""
        if self.conflict.challenger is None:
            raise InvalidInput.at(pointer, f"this {self.conflict.kind.value} has no challenger")
        return self.conflict.challenger


def rule_on(
    conflict: OpenConflict,
    resolution: Resolution,
    view: SlotView,
    joined: tuple[Fact, ...],
    actor: Actor,
    rules: SlotRules,
    now: datetime,
    new_id: str,
) -> RulingPlan:
    """The plan of the ruling. ``joined``: the facts of ``conflict.evidence_ids``; ``new_id``: the id of a new fact.

    Whether the actor may rule at all is ``authority.may_rule``. Raises ``InvalidInput`` for what does not fit.
    """
    bench = _Bench(conflict, resolution, view, joined, actor, rules, now, new_id)
    _check(resolution)
    plan = _PLANS[resolution.decision](bench)
    facts = {f.id: f for f in (*view.current, *bench.waiting)}
    inputs = {
        "conflict": conflict.id,
        "kind": conflict.kind.value,
        "rule": conflict.rule.value,
        "note": resolution.note,
        "facts": [fact_inputs(f, rank(f, rules, view.parents)) for f in sorted(facts.values(), key=first_recorded)],
    }
    return replace(plan, inputs=inputs)


def _check(resolution: Resolution) -> None:
    decision = resolution.decision
    if decision is Decision.NEW_VALUE:
        if resolution.value is None:
            raise InvalidInput.at("/value", "new_value needs the value")
    elif resolution.value is not None or resolution.text is not None:
        raise InvalidInput.at("/value", f"{decision.value} takes neither value nor text")
    if decision is Decision.BOTH_VALID:
        if resolution.rescope is None or resolution.rescope == Rescope():
            raise InvalidInput.at("/rescope", "both_valid needs a rescope that says what differs")
    elif resolution.rescope is not None:
        raise InvalidInput.at("/rescope", f"{decision.value} takes no rescope")


def _accept(bench: _Bench) -> RulingPlan:
    winner = bench.challenger()
    losers = [f for f in bench.opposing if f.id != winner.id]
    status = Status.EXPIRED if over(winner, bench.now) else Status.CURRENT
    changes = [FactChange(fact_id=winner.id, status=status, change=Change.WON_RULING)]
    for fact in bench.waiting[1:]:
        changes.append(
            FactChange(fact_id=fact.id, status=Status.CURRENT, corroborates=winner.id, change=Change.ADMITTED)
        )
    return _ruled(bench, winner, losers, changes, _SENTENCES[Decision.ACCEPT_CHALLENGER])


def _keep(bench: _Bench) -> RulingPlan:
    incumbents = bench.incumbents
    reason = _SENTENCES[Decision.KEEP_INCUMBENT]
    kept = bench.subject or next(iter(incumbents), None)
    if kept is None and bench.conflict.challenger is None:
        raise NotFound("the fact under review is no longer in use")
    if kept is None:
        return replace(_dismiss(bench), reason=reason)
    value = key_of(kept, bench.rules)
    # It beats what the conflict is about and all beside it that has begun; what begins later takes over from it.
    beside = [f for f in incumbents if start(f) <= bench.now and key_of(f, bench.rules) != value]
    losers = bench.with_evidence(beside) + bench.waiting
    confirmed = FactChange(fact_id=kept.id, review_at=_next_review(bench, kept), change=Change.WON_RULING)
    return _ruled(bench, kept, losers, [confirmed], reason)


def _next_review(bench: _Bench, fact: Fact) -> datetime | None:
    """A review date that has passed moves on by the field's days, or by as long as the fact was given before."""
    due = review_date(fact, bench.rules)
    if due is None or due > bench.now:
        return None
    days = bench.rules.review_after_days
    return bench.now + (timedelta(days=days) if days is not None else max(due - fact.recorded_at, timedelta(days=1)))


def _new_value(bench: _Bench) -> RulingPlan:
    value = bench.resolution.value
    pattern = next(iter([*bench.incumbents, *bench.waiting]), None)
    if pattern is None or value is None:
        raise NotFound("the fact under review is no longer in use")
    fact = replace(
        pattern,
        id=bench.new_id,
        value=value,
        text=bench.resolution.text or sentence(pattern.subject, pattern.field, value),
        source=Source(kind=SourceKind.AUTHORIZED_PERSON, author=bench.actor.id, role="owner"),
        writer=bench.actor.id,
        recorded_at=bench.now,
        effective_at=bench.now,
        status=Status.CURRENT,
        review_at=None,
        expires_at=None,
        superseded_by=None,
        corroborates=None,
        entities=(),
        metadata={},
    )
    fact = replace(fact, review_at=review_date(fact, bench.rules))
    # It beats what the conflict is about and all that has begun; what begins later takes over from it.
    incumbents, live = bench.incumbents, bench.live
    beaten = [f for f in live if f in incumbents or start(f) <= bench.now]
    later = [f for f in live if f not in beaten and key_of(f, bench.rules) != key_of(fact, bench.rules)]
    successor = min(later, key=lambda f: (start(f), first_recorded(f)), default=None)
    fact = replace(fact, superseded_by=successor.id if successor is not None else None)
    losers = bench.with_evidence(beaten) + bench.waiting
    won = FactChange(fact_id=fact.id, change=Change.WON_RULING)
    return replace(_ruled(bench, fact, losers, [won], _SENTENCES[Decision.NEW_VALUE]), new_fact=fact)


def _dismiss(bench: _Bench) -> RulingPlan:
    """Closes it: what waited is put away, and does not open again; nothing is said about which value holds."""
    changes = [FactChange(fact_id=f.id, status=Status.SUPERSEDED) for f in bench.waiting if f.status is Status.DISPUTED]
    pairs = frozenset(losing_pair(f, bench.rules) for f in bench.waiting)
    return RulingPlan(
        decision=bench.resolution.decision,
        reason=_SENTENCES[Decision.DISMISS],
        actor=bench.actor,
        changes=tuple(changes),
        past=PastRuling(at=bench.now, winner_key=None, losers=pairs) if pairs else None,
    )


def _ruled(bench: _Bench, winner: Fact, losers: list[Fact], changes: list[FactChange], reason: str) -> RulingPlan:
    value = key_of(winner, bench.rules)
    unique = {f.id: f for f in losers if f.id != winner.id}.values()
    beaten = [f for f in unique if key_of(f, bench.rules) != value]
    same = [f for f in unique if key_of(f, bench.rules) == value]
    ahead = winner.effective_at if winner.effective_at is not None and winner.effective_at > bench.now else None
    lost = [_lost(f, winner, ahead) for f in beaten]
    evidence = [
        FactChange(fact_id=f.id, status=Status.CURRENT, corroborates=winner.id, change=Change.ADMITTED) for f in same
    ]
    others = replace(bench.view, conflicts=tuple(c for c in bench.view.conflicts if c.id != bench.conflict.id))
    settled = consequences(others, winner, frozenset(f.id for f in unique), bench.rules, anew=True)
    # The fact under review is confirmed with the ruling: what else was open about it has its answer.
    confirmed = tuple(c.id for c in others.conflicts if c.kind is ConflictKind.REVIEW and c.subject_id == winner.id)
    pairs = frozenset(losing_pair(f, bench.rules) for f in beaten)
    return RulingPlan(
        decision=bench.resolution.decision,
        reason=reason,
        actor=bench.actor,
        changes=(*changes, *lost, *evidence),
        past=PastRuling(at=bench.now, winner_key=value, losers=pairs),
        consequences=replace(settled, withdraw=tuple(sorted({*settled.withdraw, *confirmed}))),
        lost=tuple(f.id for f in beaten),
        takes_effect_at=ahead,
    )


def _lost(fact: Fact, winner: Fact, ahead: datetime | None) -> FactChange:
    if ahead is not None and fact.status is Status.CURRENT:
        return FactChange(fact_id=fact.id, superseded_by=winner.id)
    return FactChange(fact_id=fact.id, status=Status.SUPERSEDED, superseded_by=winner.id, change=Change.LOST_RULING)


def _both_valid(bench: _Bench) -> RulingPlan:
    challenger, rescope = bench.challenger(), bench.resolution.rescope
    assert rescope is not None, "checked before"
    rescoped = _rescoped(bench, challenger, rescope)
    assert challenger.slot is not None, "a challenger is in a slot"
    assert rescoped.slot is not None, "and stays in one"
    moves = rescoped.slot.key != challenger.slot.key
    rescoped, cuts = (rescoped, []) if moves else _apart(bench, rescoped)
    joined = [
        FactChange(fact_id=f.id, status=Status.CURRENT, corroborates=rescoped.id, change=Change.ADMITTED)
        for f in bench.waiting[1:]
    ]
    pairs = frozenset(losing_pair(f, bench.rules) for f in bench.waiting)
    return RulingPlan(
        decision=Decision.BOTH_VALID,
        reason=_SENTENCES[Decision.BOTH_VALID],
        actor=bench.actor,
        changes=(*cuts, *([] if moves else joined)),
        rescoped=rescoped,
        moves=moves,
        past=PastRuling(at=bench.now, winner_key=None, losers=pairs) if moves else None,
    )


def _rescoped(bench: _Bench, challenger: Fact, rescope: Rescope) -> Fact:
    scope = rescope.scope or (Scope.PERSONAL if rescope.user else challenger.scope)
    if scope is Scope.SHARED and rescope.user:
        raise InvalidInput.at("/rescope/user", "a shared fact has no user")
    user = None if scope is Scope.SHARED else rescope.user or challenger.user or challenger.writer
    fact = replace(
        challenger,
        scope=scope,
        user=user,
        subject=rescope.subject or challenger.subject,
        field=rescope.field or challenger.field,
        effective_at=rescope.effective_at or challenger.effective_at,
        expires_at=rescope.expires_at or challenger.expires_at,
        status=Status.CURRENT,
    )
    if fact.expires_at is not None and (fact.effective_at or DAWN) >= fact.expires_at:
        raise InvalidInput.at("/rescope/expires_at", "the period ends before it begins")
    return replace(fact, status=Status.EXPIRED) if over(fact, bench.now) else fact


def _apart(bench: _Bench, rescoped: Fact) -> tuple[Fact, list[FactChange]]:
    """In one slot both hold only if their periods differ: whichever begins first ends where the other begins.

    The evidence of an incumbent may outlive it, or begin before it, and would hold then: it gives way as well.
    """
    cuts: list[FactChange] = []
    for fact in bench.live:
        incumbent, *evidence = bench.with_evidence([fact])
        if fact.id == rescoped.id or not any(overlap(f, rescoped) for f in (incumbent, *evidence)):
            continue
        begins = rescoped.effective_at or DAWN
        if (incumbent.effective_at or DAWN) < begins:
            cuts += _ended([incumbent, *evidence], rescoped)
        elif incumbent.effective_at is not None and begins < incumbent.effective_at:
            rescoped = replace(rescoped, expires_at=min(rescoped.expires_at or DUSK, incumbent.effective_at))
            cuts += _ended([f for f in evidence if overlap(f, rescoped)], rescoped)
        else:
            raise InvalidInput.at("/rescope", "both would hold at the same time; give a period, a user or another slot")
    if over(rescoped, bench.now):
        rescoped = replace(rescoped, status=Status.EXPIRED)
    return rescoped, cuts


def _ended(facts: list[Fact], rescoped: Fact) -> list[FactChange]:
    """They end where the other begins; what begins only then has no period left."""
    changes = []
    for fact in facts:
        ends = rescoped.effective_at
        if ends is None or (fact.effective_at or DAWN) >= ends:
            changes.append(FactChange(fact_id=fact.id, status=Status.SUPERSEDED, superseded_by=rescoped.id))
        elif fact.expires_at is None or fact.expires_at > ends:
            changes.append(FactChange(fact_id=fact.id, expires_at=ends))
    return changes


_PLANS = {
    Decision.ACCEPT_CHALLENGER: _accept,
    Decision.KEEP_INCUMBENT: _keep,
    Decision.NEW_VALUE: _new_value,
    Decision.BOTH_VALID: _both_valid,
    Decision.DISMISS: _dismiss,
}
