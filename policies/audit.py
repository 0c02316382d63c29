"""What already lies in memory and needs somebody's eye: contradicting values, overdue reviews, faulty derivations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from muniment.policies.authority import key_of, rank, review_date
from muniment.policies.model import ConflictKind, Fact, Slot, Status, fold
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import read
from muniment.policies.slot_view import REASONS, OpenConflict, Opening
from muniment.policies.weighing import Rule, first_recorded

RulesFor = Callable[[Slot], SlotRules]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two values of one slot at one time. ``challenger`` stands for all facts of its value."""

    slot: Slot
    incumbent: Fact
    challenger: Fact
    sensitive: bool
    usage: int


def audit(
    facts: Iterable[Fact],
    usage: Mapping[str, int],
    rules_for: RulesFor,
    parents: Mapping[str, Fact],
    now: datetime,
) -> list[Disagreement]:
    """All disagreements among ``facts`` (status current or disputed), the most damaging first.

    Sensitive fields come first, then the most recalled, then the slot's key. Disputed facts disagree with the current
    one of their slot; current ones with each other. ``usage``: recalls by fact id.
    """
    by_slot: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.slot is not None:
            by_slot.setdefault(fact.slot.key, []).append(fact)
    found = [d for group in by_slot.values() for d in _disagreements(group, usage, rules_for, parents, now)]
    found.sort(key=lambda d: (not d.sensitive, -d.usage, d.slot.key, first_recorded(d.challenger)))
    return found


def _disagreements(
    group: Sequence[Fact],
    usage: Mapping[str, int],
    rules_for: RulesFor,
    parents: Mapping[str, Fact],
    now: datetime,
) -> list[Disagreement]:
    slot = group[0].slot
    assert slot is not None, "grouped by slot"
    rules = rules_for(slot)
    reading = read(group, rules, parents, now)
    if reading.current is None:
        return []
    disputed = [f for f in group if f.status is Status.DISPUTED]
    disputed.sort(key=lambda f: (rank(f, rules, parents), first_recorded(f)))
    values = {key_of(reading.current, rules)}
    found = []
    for fact in (*reading.others, *disputed):
        value = key_of(fact, rules)
        if value in values:
            continue
        values.add(value)
        used = usage.get(reading.current.id, 0) + usage.get(fact.id, 0)
        found.append(
            Disagreement(slot=slot, incumbent=reading.current, challenger=fact, sensitive=rules.sensitive, usage=used)
        )
    return found


def most_overruled(rulings: Iterable[tuple[str, bool]], limit: int = 20) -> list[tuple[str, int]]:
    """The fields whose recorded value lost most often: ``rulings`` are (field, whether the incumbent lost).

    A field is one however it is spelt, and is named as it was first spelt here.
    """
    names: dict[str, str] = {}
    times: dict[str, int] = {}
    for field, lost in rulings:
        if lost:
            name = names.setdefault(fold(field), field)
            times[name] = times.get(name, 0) + 1
    return sorted(times.items(), key=lambda item: (-item[1], item[0]))[:limit]


def found_on_reading(incumbent: Fact, other: Fact) -> Opening:
    """The conflict to open for two current values that nobody decided about."""
    return Opening(
        kind=ConflictKind.CONFLICT,
        rule=Rule.FOUND_ON_READING,
        reason=REASONS[Rule.FOUND_ON_READING],
        subject_id=incumbent.id,
        challenger_id=other.id,
    )


def overdue_reviews(
    facts: Iterable[Fact], rules_for: RulesFor, conflicts: Iterable[OpenConflict], now: datetime
) -> list[Opening]:
    """A review for each current fact past its review date that has none open. Nothing is deleted."""
    pending = {c.subject_id for c in conflicts if c.rule is Rule.PAST_REVIEW}
    openings = []
    for fact in sorted(facts, key=first_recorded):
        due = fact.review_at if fact.slot is None else review_date(fact, rules_for(fact.slot))
        if fact.status is Status.CURRENT and fact.in_force(now) and due is not None and due <= now:
            openings += [] if fact.id in pending else [_review(Rule.PAST_REVIEW, fact)]
    return openings


def derived_reviews(
    lost: Iterable[str], dependants: Iterable[Fact], conflicts: Iterable[OpenConflict]
) -> list[Opening]:
    """A review for each current fact derived from one that was superseded or corrected, unless one is open.

    ``lost``: the ids of those; ``dependants``: facts whose ``derived_from`` names any of them.
    """
    gone = set(lost)
    pending = {c.subject_id for c in conflicts if c.rule is Rule.SOURCE_CHANGED}
    return [
        _review(Rule.SOURCE_CHANGED, fact)
        for fact in sorted(dependants, key=first_recorded)
        if fact.status is Status.CURRENT and gone & set(fact.source.derived_from) and fact.id not in pending | gone
    ]


def _review(rule: Rule, fact: Fact) -> Opening:
    return Opening(kind=ConflictKind.REVIEW, rule=rule, reason=REASONS[rule], subject_id=fact.id)
