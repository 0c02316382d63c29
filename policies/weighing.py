"""One fact weighed against another value of its slot: periods, ranks, dates (API.md, points 3, 5 and 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from muniment.policies.authority import rank, review_date, unattributed
from muniment.policies.model import Fact
from muniment.policies.precedence_policy import SlotRules

DAWN = datetime.min.replace(tzinfo=UTC)
DUSK = datetime.max.replace(tzinfo=UTC)


class Rule(StrEnum):
    """The names under which decisions are logged; each is one sentence of API.md, "How a conflict is decided"."""

    EMPTY_SLOT = "empty_slot"
    OTHER_SCOPE = "other_scope"
    EQUAL_VALUE = "equal_value"
    DISJOINT_PERIOD = "disjoint_period"
    LOST_RULING = "lost_ruling"
    RULED_BEFORE = "ruled_before"
    SENSITIVE_NEEDS_OWNER = "sensitive_needs_owner"
    ALREADY_OVER = "already_over"
    LOWER_RANK = "lower_rank"
    HIGHER_RANK = "higher_rank"
    EARLIER_DATE = "earlier_date"
    LATER_DATE = "later_date"
    UNDATED_TIE = "undated_tie"
    SAME_INSTANT = "same_instant"
    PAST_REVIEW_LOSES_TIE = "past_review_loses_tie"
    UNATTRIBUTED_TIE = "unattributed_tie"
    NOT_PROPOSER = "not_proposer"
    # What a ruling or a date brings about.
    DECIDED_ANEW = "decided_anew"
    SENSITIVE_UNCONFIRMED = "sensitive_unconfirmed"
    PAST_REVIEW = "past_review"
    SOURCE_CHANGED = "source_changed"
    FOUND_ON_READING = "found_on_reading"


class Stance(StrEnum):
    """Where a challenger stands after it was weighed."""

    KEPT = "kept"
    HELD = "held"
    CANDIDATE = "candidate"


_STANCE = {
    Rule.LOWER_RANK: Stance.KEPT,
    Rule.EARLIER_DATE: Stance.KEPT,
    Rule.UNDATED_TIE: Stance.HELD,
    Rule.SAME_INSTANT: Stance.HELD,
    Rule.UNATTRIBUTED_TIE: Stance.HELD,
    Rule.HIGHER_RANK: Stance.CANDIDATE,
    Rule.LATER_DATE: Stance.CANDIDATE,
    Rule.PAST_REVIEW_LOSES_TIE: Stance.CANDIDATE,
}


@dataclass(frozen=True, slots=True)
class Weight:
    """How one challenger weighs against one incumbent with its evidence. Smaller ranks are stronger."""

    rule: Rule
    challenger_rank: int
    incumbent_rank: int

    @property
    def stance(self) -> Stance:
        """What the rule says of the challenger."""
        return _STANCE[self.rule]


def first_recorded(fact: Fact) -> tuple[datetime, str]:
    """The order of equals: the first recorded stands, ids settle the rest."""
    return fact.recorded_at, fact.id


def start(fact: Fact) -> datetime:
    """When the fact counts from: its date, or for an undated one the moment it was stored."""
    return fact.effective_at or fact.recorded_at


def overlap(left: Fact, right: Fact) -> bool:
    """Whether the periods [effective_at, expires_at) share a moment; an absent bound is open."""
    begins = max(left.effective_at or DAWN, right.effective_at or DAWN)
    ends = min(left.expires_at or DUSK, right.expires_at or DUSK)
    return begins < ends


def over(fact: Fact, now: datetime) -> bool:
    """Whether the fact's period has ended."""
    return fact.expires_at is not None and fact.expires_at <= now


def weigh(
    challenger: Fact,
    standing: Sequence[Fact],
    rules: SlotRules,
    parents: Mapping[str, Fact],
    now: datetime,
) -> Weight:
    """Ranks first, dates within a rank.

    ``standing``: the incumbent, then its evidence, as far as they share a moment with the challenger; not empty. Their
    value has the best rank among them, and at that rank the latest of their dates, so that the answer does not depend
    on which of the equal facts came first.
    """
    mine = rank(challenger, rules, parents)
    ranked = [(rank(fact, rules, parents), fact) for fact in standing]
    theirs = min(place for place, _ in ranked)
    if mine != theirs:
        return Weight(Rule.LOWER_RANK if mine > theirs else Rule.HIGHER_RANK, mine, theirs)
    dates = [fact.effective_at for place, fact in ranked if place == theirs and fact.effective_at is not None]
    rule = Rule.UNDATED_TIE
    if challenger.effective_at is not None and dates:
        latest = max(dates)
        if challenger.effective_at < latest:
            return Weight(Rule.EARLIER_DATE, mine, theirs)
        rule = Rule.LATER_DATE if challenger.effective_at > latest else Rule.SAME_INSTANT
    if unattributed(challenger, parents):
        return Weight(Rule.UNATTRIBUTED_TIE, mine, theirs)
    if rule is not Rule.LATER_DATE:
        review_at = review_date(standing[0], rules)
        if review_at is not None and review_at <= now:
            rule = Rule.PAST_REVIEW_LOSES_TIE
    return Weight(rule, mine, theirs)
