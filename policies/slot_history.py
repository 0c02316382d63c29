"""What a slot held at some time, as known at some time; and what it holds now (API.md, ``as_of`` and ``known_at``).

A slot's history is a set of facts and what happened to them. Which fact held at an instant follows from the set, not
from the order in which it was told. The strongest fact (by ruling, by rank, at equal rank by date) holds for its whole
period; every weaker one of another value holds until a stronger one that meets it takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cmp_to_key

from muniment.policies.authority import key_of, rank, review_date
from muniment.policies.model import Fact, Status
from muniment.policies.precedence import overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_view import promoted
from muniment.policies.weighing import DAWN, DUSK, first_recorded, overlap, start

RulesAt = Callable[[datetime], SlotRules]
"""The slot's rules as the policy stood at a moment, so that a changed policy does not rewrite what was decided.

It should return one object for one version of the policy: the rules are compared by identity.
"""


class Change(StrEnum):
    """What happened to a fact that decides whether it counts. A superseded fact needs no entry: it was true once."""

    HELD = "held"
    ADMITTED = "admitted"
    WON_RULING = "won_ruling"
    LOST_RULING = "lost_ruling"
    EXPIRED = "expired"
    REDATED = "redated"
    CORRECTED = "corrected"
    DELETED = "deleted"


_DATES = frozenset({Change.EXPIRED, Change.REDATED})
_OUT = frozenset({Change.HELD, Change.LOST_RULING, Change.CORRECTED, Change.DELETED})


@dataclass(frozen=True, slots=True)
class SlotEvent:
    """A change of one fact, and when it was recorded. ``was``: its ``effective_at`` and ``expires_at`` before, where
    the change gave it others."""

    at: datetime
    change: Change
    was: tuple[datetime | None, datetime | None] | None = None


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A fact of the slot, corroborations included, with its events in any order. No event: admitted when recorded."""

    fact: Fact
    events: tuple[SlotEvent, ...] = ()


_Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class _Known:
    """A fact as it counts at one knowledge time."""

    fact: Fact
    value: str
    ruled_at: datetime | None
    ends: datetime


def as_of(
    history: Sequence[SlotRecord],
    instant: datetime,
    known_at: datetime,
    rules_at: RulesAt,
    parents: Mapping[str, Fact],
) -> Fact | None:
    """The fact that held at ``instant``, as far as it was recorded by ``known_at``; None where none did.

    Admitted facts with an effective date up to ``instant`` count (undated ones from when they were stored). Held ones,
    those that lost a ruling, corrected and deleted ones do not. A winner that has expired leaves None: nothing that it
    beat rises. What was over before the other fact was recorded settles its own time only. The answer does not depend
    on the order of ``history``. ``parents``: as in ``SlotView``.
    """
    known = [k for record in history if (k := _known(record, known_at, rules_at)) and start(k.fact) <= instant]
    known.sort(key=lambda k: first_recorded(k.fact))
    latest = rules_at(known_at)
    places = {k.fact.id: rank(k.fact, latest, parents) for k in known}
    court = _Court(tuple(known), rules_at, latest, places, parents)
    reigns: list[tuple[_Known, list[_Span]]] = []
    for candidate in sorted(known, key=cmp_to_key(court.compare)):
        spans = court.reign(candidate, reigns)
        if any(begins <= instant < ends for begins, ends in spans):
            return candidate.fact
        reigns.append((candidate, spans))
    return None


def _known(record: SlotRecord, known_at: datetime, rules_at: RulesAt) -> _Known | None:
    fact = record.fact
    if fact.recorded_at > known_at or fact.value is None:
        return None
    redated = min((e for e in record.events if e.at > known_at and e.was), key=lambda e: e.at, default=None)
    if redated is not None and redated.was is not None:
        fact = replace(fact, effective_at=redated.was[0], expires_at=redated.was[1])
    events = sorted((e for e in record.events if e.at <= known_at), key=lambda e: e.at)
    standing = [e.change for e in events if e.change not in _DATES]
    if standing and standing[-1] in _OUT:
        return None
    ruled_at = max((e.at for e in events if e.change is Change.WON_RULING), default=None)
    ends = [e.at for e in events if e.change is Change.EXPIRED]
    return _Known(fact, key_of(fact, rules_at(known_at)), ruled_at, min((*ends, fact.expires_at or DUSK)))


@dataclass(frozen=True, slots=True)
class _Court:
    """The facts of one question, and who of two is the stronger."""

    known: tuple[_Known, ...]
    rules_at: RulesAt
    latest: SlotRules
    places: Mapping[str, int]
    parents: Mapping[str, Fact]

    def place(self, fact: Fact, rules: SlotRules) -> int:
        """The fact's rank under the rules; those under the latest are known already."""
        return self.places[fact.id] if rules is self.latest else rank(fact, rules, self.parents)

    def compare(self, left: _Known, right: _Known) -> int:
        """Negative where ``left`` is the stronger: by ruling, by rank, by date, by who was there first."""
        if _ruled_over(left, right) or _ruled_over(right, left):
            return -1 if _ruled_over(left, right) else 1
        met_at = max(left.fact.recorded_at, right.fact.recorded_at)
        rules = self.rules_at(met_at)
        ranks = self.place(left.fact, rules) - self.place(right.fact, rules)
        if ranks != 0:
            return ranks
        undated = self._dated_elsewhere(left, right, rules, met_at) - self._dated_elsewhere(right, left, rules, met_at)
        if undated != 0:
            return undated
        return -1 if self._newer(left.fact, right.fact, rules, met_at) else 1

    def reign(self, fact: _Known, stronger: Sequence[tuple[_Known, list[_Span]]]) -> list[_Span]:
        """When the fact holds: its period, up to where the first stronger fact takes over from it for good."""
        spans = [(start(fact.fact), fact.ends)]
        for other, reign in stronger:
            if other.value == fact.value or self.compare(other, fact) > 0:
                continue
            met_at = max(other.fact.recorded_at, fact.fact.recorded_at, other.ruled_at or DAWN)
            for span in reign:
                # What was over when the two met has settled its own time only.
                spans = _without(spans, span, span[1] if other.ends <= met_at else DUSK)
        return spans

    def _newer(self, winner: Fact, loser: Fact, rules: SlotRules, met_at: datetime) -> bool:
        """Whether it is the stronger of two of one rank: by date; whoever was there first stands where that is equal.

        Where no two dates tell, the first loses if it was past its review when the other came. Evidence is past its
        review when what it stands by is.
        """
        first, second = sorted((winner, loser), key=first_recorded)
        if winner.effective_at is None or loser.effective_at is None or start(winner) == start(loser):
            head = next((k.fact for k in self.known if k.fact.id == first.corroborates), first)
            review_at = review_date(head, rules)
            if review_at is not None and review_at <= met_at:
                return winner is second
        if start(winner) != start(loser):
            return start(winner) > start(loser)
        return winner is first

    def _dated_elsewhere(self, undated: _Known, other: _Known, rules: SlotRules, met_at: datetime) -> bool:
        """Whether it is undated, and an equally strong fact that stood with it had a date: that one counts."""
        fact = undated.fact
        if fact.effective_at is not None:
            return False
        place = self.place(fact, rules)
        return any(
            k.value == undated.value
            and k.fact.effective_at is not None
            and (fact.corroborates is not None or k.fact.corroborates == fact.id)
            and k.fact.recorded_at <= met_at
            and overlap(k.fact, other.fact)
            and self.place(k.fact, rules) == place
            for k in self.known
        )


def _without(spans: list[_Span], reign: _Span, until: datetime) -> list[_Span]:
    """The spans less everything from where ``reign`` meets them up to ``until``; all of them where it meets none."""
    begins, ends = reign
    if not any(max(first, begins) < min(last, ends) for first, last in spans):
        return spans
    kept = [part for first, last in spans for part in ((first, min(last, begins)), (max(first, until), last))]
    return [(first, last) for first, last in kept if first < last]


def _ruled_over(winner: _Known, loser: _Known) -> bool:
    """A ruling beats everything effective up to it; the later of two rulings stands."""
    if winner.ruled_at is None:
        return False
    if loser.ruled_at is not None:
        return winner.ruled_at > loser.ruled_at
    return start(loser.fact) <= winner.ruled_at


@dataclass(frozen=True, slots=True)
class Reading:
    """What a slot holds now. ``others``: current facts of other values that nobody decided about, strongest first."""

    current: Fact | None
    others: tuple[Fact, ...] = ()


def read(facts: Sequence[Fact], rules: SlotRules, parents: Mapping[str, Fact], now: datetime) -> Reading:
    """The slot's fact in force among those of status current, so that no two values are ever handed out in silence.

    Where two overlap undecided (an import, a changed comparator) the rules name the incumbent, and the others are to be
    shown as a dispute and put on the owner's list. ``facts`` may hold corroborations; they lend their rank and dates.
    """
    current = promoted([f for f in facts if f.status is Status.CURRENT], now)
    active = [f for f in current if f.in_force(now)]
    heads = [f for f in active if f.corroborates is None and not overtaken(f, current, now)]
    if not heads:
        return Reading(None)
    records = [SlotRecord(f) for f in active if f in heads or any(f.corroborates == h.id for h in heads)]
    chosen = as_of(records, now, max(now, *(f.recorded_at for f in active)), lambda _: rules, parents)
    value = key_of(chosen, rules) if chosen is not None else key_of(min(heads, key=first_recorded), rules)
    incumbent = min((f for f in heads if key_of(f, rules) == value), key=first_recorded)
    others = [f for f in heads if key_of(f, rules) != value]
    others.sort(key=lambda f: (rank(f, rules, parents), first_recorded(f)))
    return Reading(incumbent, tuple(others))
