"""What a decision about a slot may look at, and what it may bring about; the sentence that goes with each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from datetime import datetime
from typing import Any

from muniment.policies.authority import Actor
from muniment.policies.model import ConflictKind, Fact, Outcome, Status
from muniment.policies.weighing import Rule, first_recorded, over


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenConflict:
    """A conflict, review or notice that is open on the slot.

    ``subject_id``: the fact it is about, the incumbent when it was opened. ``proposer``: who brought the
    challenger, for the day it is decided anew. ``evidence_ids``: facts that said the challenger's value again
    while it was open.
    """

    id: str
    kind: ConflictKind
    rule: Rule
    opened_at: datetime
    subject_id: str | None = None
    challenger: Fact | None = None
    proposer: Actor | None = None
    evidence_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRuling:
    """What an owner ruled on the slot. ``winner_key`` is None where the ruling only closed a conflict (dismissed).

    A ruling beats everything effective up to ``at``; the pairs of ``losers`` (value key, source key) do not open again.
    """

    at: datetime
    winner_key: str | None
    losers: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """All that a decision about one slot may look at.

    ``current``: facts of status current that are not corroborations; several where their periods differ. ``evidence``:
    corroborations of those. ``elsewhere``: current facts of the same subject and field in other scopes. ``parents``:
    the facts named by ``derived_from`` of all these and of the challenger, by id, without corrected and deleted ones.
    """

    current: tuple[Fact, ...] = ()
    evidence: tuple[Fact, ...] = ()
    conflicts: tuple[OpenConflict, ...] = ()
    rulings: tuple[PastRuling, ...] = ()
    elsewhere: tuple[Fact, ...] = ()
    parents: Mapping[str, Fact] = dataclass_field(default_factory=dict)


def promoted(facts: Sequence[Fact], now: datetime) -> list[Fact]:
    """The facts, incumbents and corroborations, as they stand when some incumbents have gone.

    A corroboration stands by an incumbent: where what it stood by has become a corroboration too, by that one's. Where
    corroborations outlive their incumbent, the first recorded of them takes its place and the others follow it: the
    same value still holds.
    """
    heads = {f.id for f in facts if f.corroborates is None and not over(f, now)}
    leaders = {f.id: f.corroborates for f in facts if f.corroborates is not None}
    heirs: dict[str, str] = {}
    regrouped = []
    for fact in sorted(facts, key=first_recorded):
        leader = fact.corroborates
        if leader is not None and leader not in heads and not over(fact, now):
            passed = {fact.id}
            while leader in leaders and leader not in passed:
                passed.add(leader)
                leader = leaders[leader]
            head = leader if leader in heads else heirs.setdefault(leader, fact.id)
            fact = replace(fact, corroborates=None if head == fact.id else head)
        regrouped.append(fact)
    return regrouped


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Something to put on the owner's list. ``subject_id``: the fact in use that it is about."""

    kind: ConflictKind
    rule: Rule
    reason: str
    subject_id: str | None
    challenger_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequences:
    """What follows for open conflicts when a fact takes over a slot.

    ``withdraw``: conflicts that have lost their point. ``redecide``: conflicts whose challenger is decided anew against
    the new incumbent. ``adopt``: waiting facts that say the same and become evidence of the new incumbent.
    """

    withdraw: tuple[str, ...] = ()
    redecide: tuple[str, ...] = ()
    adopt: tuple[str, ...] = ()


NOTHING = Consequences()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What becomes of the challenger and of what it met.

    ``status``: the challenger's. ``incumbent_id``: the fact it was weighed against. ``supersede``: facts that leave,
    evidence included, at ``takes_effect_at`` where that is given (the challenger's effective date lies ahead; until
    then mark them ``superseded_by`` only). A corroboration supersedes too: weaker facts that lay ahead, by the
    incumbent. ``release``: evidence of the losers that begins later than the challenger and stands on its own again.
    ``successor_id``: a current fact of a later date that will supersede the challenger; where a corroboration
    supersedes, the incumbent. ``open``: new entries for the owner's list. ``join``: the open conflict that takes the
    challenger as evidence. ``review_at``: the incumbent's new review date. ``counts``: whether a corroboration is a new
    source. ``inputs``: what the decision log keeps; empty for what is plainly stored.
    """

    outcome: Outcome
    rule: Rule
    reason: str
    status: Status
    incumbent_id: str | None = None
    supersede: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    takes_effect_at: datetime | None = None
    successor_id: str | None = None
    open: tuple[Opening, ...] = ()
    join: str | None = None
    consequences: Consequences = NOTHING
    review_at: datetime | None = None
    counts: bool = True
    warnings: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = dataclass_field(default_factory=dict)


REASONS: Mapping[Rule, str] = {
    Rule.EMPTY_SLOT: "Nothing is recorded for this yet.",
    Rule.OTHER_SCOPE: "Nothing is recorded for this in this scope; another scope has its own value.",
    Rule.EQUAL_VALUE: "The same value is recorded already; this is kept as evidence.",
    Rule.DISJOINT_PERIOD: "Both hold, each in its own period.",
    Rule.LOST_RULING: "The owner has already ruled against this value from this source.",
    Rule.RULED_BEFORE: "The owner's ruling is later than the date of this statement.",
    Rule.SENSITIVE_NEEDS_OWNER: "The field is sensitive: only its owner may change it.",
    Rule.ALREADY_OVER: "The period of this statement has ended; it is history.",
    Rule.LOWER_RANK: "The recorded value comes from a stronger source.",
    Rule.HIGHER_RANK: "This source is stronger than that of the recorded value.",
    Rule.EARLIER_DATE: "The recorded value is effective from a later date.",
    Rule.LATER_DATE: "Equally strong sources: the later effective date holds.",
    Rule.UNDATED_TIE: "Equally strong sources, and no date to tell which is newer.",
    Rule.SAME_INSTANT: "Equally strong sources, effective from the same moment.",
    Rule.PAST_REVIEW_LOSES_TIE: "Equally strong sources, and the recorded value is past its review date.",
    Rule.UNATTRIBUTED_TIE: "Nobody stands behind this statement, so it does not replace an equal one.",
    Rule.NOT_PROPOSER: "Whoever said this may not change this slot.",
    Rule.DECIDED_ANEW: "What it was weighed against has changed.",
    Rule.SENSITIVE_UNCONFIRMED: "The field is sensitive and its owner has not confirmed the value.",
    Rule.PAST_REVIEW: "The review date has passed.",
    Rule.SOURCE_CHANGED: "What this was derived from was replaced or corrected.",
    Rule.FOUND_ON_READING: "Two recorded values of one slot were found to hold at the same time.",
}
"""One readable sentence per rule."""
