"""What a slot held at some time, as known at some time; and what it holds now (API.md, ``as_of`` and ``known_at``).

A slot's history is a set of facts and what happened to them. The strongest fact (by ruling, by rank, at equal rank by
date) holds for its whole period; every weaker one of another value holds until a stronger one that meets it takes over.
Two facts meet when the later of them is told, if the other is still in the slot then, so that ``as_of`` says of each
moment what was current then. Otherwise the order in which they were told does not matter.
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
    """A fact as it counts at one knowledge time. ``since``: when it was told, or, where it was held, admitted."""

    fact: Fact
    since: datetime
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
    reigns: list[_Reign] = []
    deferred: set[str] = set()
    queue = sorted(known, key=cmp_to_key(court.compare))
    while queue:
        candidate = queue.pop(0)
        reign = court.reign(candidate, reigns)
        if any(begins <= instant < ends for begins, ends in reign.spans):
            # Review dates can make the order a circle: whoever beats the candidate is to be heard before it.
            beaten_by = court.rivals_over(candidate, queue)
            if not beaten_by or candidate.fact.id in deferred:
                return candidate.fact
            deferred.add(candidate.fact.id)
            queue.insert(queue.index(beaten_by[-1]) + 1, candidate)
            continue
        reigns.append(reign)
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
    since = max([e.at for e in events if e.change is Change.ADMITTED], default=fact.recorded_at)
    return _Known(fact, since, key_of(fact, rules_at(known_at)), ruled_at, min((*ends, fact.expires_at or DUSK)))


@dataclass(frozen=True, slots=True)
class _Reign:
    """When a fact holds (``spans``), and when it had left the slot (``gone``). ``overtaken``: since when it was known
    that another fact takes over from it for good, and from which date on."""

    known: _Known
    spans: list[_Span]
    overtaken: list[_Span]
    gone: datetime

    def ends(self, known_at: datetime) -> datetime:
        """The end of the fact's claim, as it was known then."""
        return min(self.known.ends, *(begins for known, begins in self.overtaken if known <= known_at), DUSK)


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

    def rivals_over(self, fact: _Known, others: Sequence[_Known]) -> list[_Known]:
        """Those of other values that are stronger."""
        return [other for other in others if other.value != fact.value and self.compare(other, fact) < 0]

    def reign(self, fact: _Known, stronger: Sequence[_Reign]) -> _Reign:
        """When the fact holds: its period, up to where the first stronger fact takes over from it for good.

        What had left the slot when the two met was not weighed, and has settled its own time only; so has what left
        before the day on which it was to take over.
        """
        begins, ends = start(fact.fact), fact.ends
        spans, met = [(begins, ends)], []
        for other in stronger:
            winner = other.known
            if not self.rivals_over(fact, [winner]):
                continue
            met_at = max(winner.since, fact.since, winner.ruled_at or DAWN)
            takes_over = start(winner.fact)
            came_later = (fact.since, *first_recorded(fact.fact)) > (winner.since, *first_recorded(winner.fact))
            # What comes to one that would be there before it is not taken in at all.
            left_at = met_at if came_later and takes_over <= max(met_at, begins) else max(met_at, takes_over)
            if other.gone <= left_at:
                for span in other.spans:
                    spans = _without(spans, *span)
            elif max(begins, takes_over) < min(ends, other.ends(met_at)):
                spans = _without(spans, takes_over, DUSK)
                met.append((met_at, takes_over, left_at))
        overtaken, gone = [], ends
        for met_at, takes_over, left_at in sorted(met):
            if met_at < gone:
                overtaken.append((met_at, takes_over))
                gone = min(gone, left_at)
        return _Reign(fact, spans, overtaken, gone)

    def _newer(self, winner: Fact, loser: Fact, rules: SlotRules, met_at: datetime) -> bool:
        """Whether it is the stronger of two of one rank: by date; whoever was there first stands where that is equal.

        Where no two dates tell, the first loses if it was past its review when the other came, unless it was still to
        begin: then it takes over on its day. Evidence is past its review when what it stands by is.
        """
        first, second = sorted((winner, loser), key=first_recorded)
        undated = winner.effective_at is None or loser.effective_at is None or start(winner) == start(loser)
        if undated and start(first) <= max(met_at, start(second)):
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


def _without(spans: list[_Span], begins: datetime, until: datetime) -> list[_Span]:
    """The spans less everything from ``begins`` up to ``until``."""
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
