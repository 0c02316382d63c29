"""What a slot held at some time, as known at some time; and what it holds now (API.md, ``as_of`` and ``known_at``).

A slot's history is a set of facts and what happened to them. Which fact held at an instant follows from the set, not
from the order in which it was told: a fact holds if nothing admitted beats it. One fact beats another of a different
value with which it shares a moment if it is stronger by ruling, by rank, or at equal rank by date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from muniment.policies.authority import key_of, rank, review_date
from muniment.policies.model import Fact, Status
from muniment.policies.precedence import overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.weighing import DUSK, first_recorded, over, overlap, start

RulesAt = Callable[[datetime], SlotRules]
"""The slot's rules as the policy stood at a moment, so that a changed policy does not rewrite what was decided."""


class Change(StrEnum):
    """What happened to a fact that decides whether it counts. A superseded fact needs no entry: it was true once."""

    HELD = "held"
    ADMITTED = "admitted"
    WON_RULING = "won_ruling"
    LOST_RULING = "lost_ruling"
    EXPIRED = "expired"
    CORRECTED = "corrected"
    DELETED = "deleted"


_OUT = frozenset({Change.HELD, Change.LOST_RULING, Change.CORRECTED, Change.DELETED})


@dataclass(frozen=True, slots=True)
class SlotEvent:
    """A change of one fact, and when it was recorded."""

    at: datetime
    change: Change


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A fact of the slot, corroborations included, with its events in any order. No event: admitted when recorded."""

    fact: Fact
    events: tuple[SlotEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """A fact as it counts at one knowledge time."""

    fact: Fact
    value: str
    ruled_at: datetime | None
    ends: datetime | None


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
    latest = rules_at(known_at)
    strongest_first = sorted(known, key=lambda k: _strength(k, latest, parents))
    for candidate in strongest_first:
        if candidate.ends is not None and candidate.ends <= instant:
            continue
        if not any(_beats(other, candidate, known, instant, rules_at, parents) for other in strongest_first):
            return candidate.fact
    return None


def _known(record: SlotRecord, known_at: datetime, rules_at: RulesAt) -> _Known | None:
    fact = record.fact
    if fact.recorded_at > known_at or fact.value is None:
        return None
    events = sorted((e for e in record.events if e.at <= known_at), key=lambda e: e.at)
    standing = [e.change for e in events if e.change is not Change.EXPIRED]
    if standing and standing[-1] in _OUT:
        return None
    ruled_at = max((e.at for e in events if e.change is Change.WON_RULING), default=None)
    ends = [e.at for e in events if e.change is Change.EXPIRED]
    if fact.expires_at is not None:
        ends.append(fact.expires_at)
    return _Known(fact, key_of(fact, rules_at(known_at)), ruled_at, min(ends, default=None))


def _strength(known: _Known, rules: SlotRules, parents: Mapping[str, Fact]) -> tuple[int, timedelta, datetime, str]:
    """Sorts the strongest first; the first recorded of equals before the others."""
    fact = known.fact
    return rank(fact, rules, parents), DUSK - start(fact), *first_recorded(fact)


def _beats(
    winner: _Known,
    loser: _Known,
    known: Sequence[_Known],
    instant: datetime,
    rules_at: RulesAt,
    parents: Mapping[str, Fact],
) -> bool:
    if winner.value == loser.value or not overlap(winner.fact, loser.fact):
        return False
    met_at = max(winner.fact.recorded_at, loser.fact.recorded_at)
    if winner.ends is not None and winner.ends <= min(max(met_at, winner.ruled_at or met_at), instant):
        return False
    if _ruled_over(loser, winner):
        return False
    if _ruled_over(winner, loser):
        return True
    rules = rules_at(met_at)
    ours, theirs = rank(winner.fact, rules, parents), rank(loser.fact, rules, parents)
    if ours != theirs:
        return ours < theirs
    if _dated_elsewhere(winner, loser, known, rules, parents):
        return False
    return _later(winner.fact, loser.fact, rules, met_at)


def _ruled_over(winner: _Known, loser: _Known) -> bool:
    """A ruling beats everything effective up to it; the later of two rulings stands."""
    if winner.ruled_at is None:
        return False
    if loser.ruled_at is not None:
        return winner.ruled_at > loser.ruled_at
    return start(loser.fact) <= winner.ruled_at


def _dated_elsewhere(
    undated: _Known, other: _Known, known: Sequence[_Known], rules: SlotRules, parents: Mapping[str, Fact]
) -> bool:
    """Whether it is an undated corroboration, and an equally strong one gives its value a date: that one counts."""
    fact = undated.fact
    if fact.effective_at is not None or fact.corroborates is None:
        return False
    place = rank(fact, rules, parents)
    return any(
        k.value == undated.value
        and k.fact.effective_at is not None
        and overlap(k.fact, other.fact)
        and rank(k.fact, rules, parents) == place
        for k in known
    )


def _later(winner: Fact, loser: Fact, rules: SlotRules, met_at: datetime) -> bool:
    if start(winner) != start(loser):
        return start(winner) > start(loser)
    # Equal dates: whoever was there first stands, unless it was past its review when the other came.
    first, second = sorted((winner, loser), key=first_recorded)
    review_at = review_date(first, rules)
    stale = review_at is not None and review_at <= met_at
    return winner is (second if stale else first)


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
    active = [f for f in facts if f.status is Status.CURRENT and f.in_force(now) and not over(f, now)]
    heads = [f for f in active if f.corroborates is None and not overtaken(f, tuple(facts), now)]
    if not heads:
        return Reading(None)
    records = [SlotRecord(f) for f in active if f in heads or any(f.corroborates == h.id for h in heads)]
    chosen = as_of(records, now, max(now, *(f.recorded_at for f in active)), lambda _: rules, parents)
    value = key_of(chosen, rules) if chosen is not None else key_of(min(heads, key=first_recorded), rules)
    incumbent = min((f for f in heads if key_of(f, rules) == value), key=first_recorded)
    others = [f for f in heads if key_of(f, rules) != value]
    others.sort(key=lambda f: (rank(f, rules, parents), first_recorded(f)))
    return Reading(incumbent, tuple(others))
