"""Whose word counts how much about a slot, and who may change it: ranks, ownership, proposers (seed 000).

Ranks are integers; the smaller one is the stronger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muniment.policies.model import Fact, Scope, Slot, Source, SourceKind, Status, fold
from muniment.policies.precedence_policy import UNASSIGNED, SlotRules
from muniment.policies.values import value_key

PARENT_STEPS: Final = 8
"""How far summaries of summaries are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts: a user id or ``key:ID``, the groups its key vouches for, and whether that key may claim the record."""

    id: str
    groups: frozenset[str] = frozenset()
    may_claim_record: bool = False


def owner_of(fact: Fact, rules_for: Callable[[Slot], SlotRules]) -> str:
    """Who answers for a fact: by policy for one of a slot, else its user, or its writer where it is shared."""
    if fact.slot is not None:
        return rules_for(fact.slot).owner
    return fact.user if fact.scope is Scope.PERSONAL and fact.user else fact.writer


def follow_parents(facts: Iterable[Fact], read: Callable[[set[str]], Mapping[str, Fact]]) -> dict[str, Fact]:
    """The facts that these are derived from, and theirs, a few steps far, without corrected and deleted ones.

    ``read``: those of the named facts that there are.
    """
    found: dict[str, Fact] = {}
    wanted = {id for fact in facts for id in fact.source.derived_from}
    for _ in range(PARENT_STEPS):
        if not wanted:
            break
        fresh = {id: f for id, f in read(wanted).items() if f.status not in (Status.CORRECTED, Status.DELETED)}
        found.update(fresh)
        wanted = {id for fact in fresh.values() for id in fact.source.derived_from} - found.keys()
    return found


def is_owner(rules: SlotRules, actor: Actor) -> bool:
    """Whether the actor is the slot's owner, or is in the group that is. Nobody owns what is unassigned."""
    return rules.owner != UNASSIGNED and (rules.owner == actor.id or rules.owner in actor.groups)


def may_rule(rules: SlotRules, actor: Actor, opened_at: datetime, now: datetime) -> bool:
    """Whether an actor with the role of owner may rule on a conflict that was opened then.

    The owner may; anybody with the role where there is no owner; the delegate once the conflict is overdue.
    """
    if rules.owner == UNASSIGNED or is_owner(rules, actor):
        return True
    due_at = rules.due_at(opened_at)
    overdue = due_at is not None and due_at <= now
    return overdue and rules.delegate is not None and (rules.delegate == actor.id or rules.delegate in actor.groups)


def may_propose(rules: SlotRules, actor: Actor, subject: str, writers: Iterable[str]) -> bool:
    """Whether what the actor says may replace what ``writers`` said.

    The owner always; then the written proposers; where none are written, the writers themselves and keys that may claim
    the system of record.
    """
    if is_owner(rules, actor):
        return True
    if rules.proposers is None:
        return actor.may_claim_record or actor.id in writers
    return any(_names(proposer, actor, subject) for proposer in rules.proposers)


def _names(proposer: str, actor: Actor, subject: str) -> bool:
    if proposer == "*":
        return True
    if proposer == "self":
        return fold(actor.id) == fold(subject)
    kind, _, name = proposer.partition(":")
    return name in actor.groups if kind == "group" else name == actor.id


def rank(fact: Fact, rules: SlotRules, parents: Mapping[str, Fact]) -> int:
    """How much the fact's source counts in its slot; smaller is stronger, ``len(rules.ranks) + 1`` the weakest.

    ``parents``: the facts that summaries are derived from, by id. In order: a party about itself ranks with the system
    of record where the field says so; a summary of one single fact ranks as that fact's source; what is external or
    names nobody ranks below everything; a counterparty about somebody else ranks as unattributed.
    """
    return _rank(fact, fact.subject or "", rules, parents, frozenset((fact.id,)))


def _rank(fact: Fact, subject: str, rules: SlotRules, parents: Mapping[str, Fact], seen: frozenset[str]) -> int:
    source = fact.source
    if rules.self_authority and about_itself(source, subject):
        return _place(SourceKind.SYSTEM_OF_RECORD, rules)
    parent = _single_parent(fact, parents, seen)
    if parent is not None and not source.external:
        return _rank(parent, subject, rules, parents, seen | {parent.id})
    if source.external or not _named(source):
        return len(rules.ranks) + 1
    if source.kind is SourceKind.COUNTERPARTY and not about_itself(source, subject):
        return _place(SourceKind.UNATTRIBUTED, rules)
    return _place(source.kind, rules)


def _place(kind: SourceKind, rules: SlotRules) -> int:
    return next((place for place, level in enumerate(rules.ranks) if kind in level), len(rules.ranks))


def _named(source: Source) -> bool:
    return bool(source.id or source.uri or source.author)


def _single_parent(fact: Fact, parents: Mapping[str, Fact], seen: frozenset[str]) -> Fact | None:
    """The one fact that a summary is of; what its writer cannot see lends it nothing."""
    source = fact.source
    if source.kind is not SourceKind.AGENT_SUMMARY or len(set(source.derived_from)) != 1:
        return None
    parent = parents.get(source.derived_from[0])
    return None if parent is None or parent.id in seen or not parent.visible_to(fact.writer) else parent


def about_itself(source: Source, subject: str) -> bool:
    """Whether a counterparty speaks of its own data."""
    return source.kind is SourceKind.COUNTERPARTY and source.party is not None and fold(source.party) == fold(subject)


def unattributed(fact: Fact, parents: Mapping[str, Fact]) -> bool:
    """Whether nobody stands behind the fact: unattributed by kind, or without author, id and uri.

    A counterparty about somebody else counts as unattributed; a summary of one single fact is as attributed as it is.
    """
    return _unattributed(fact, fact.subject or "", parents, frozenset((fact.id,)))


def _unattributed(fact: Fact, subject: str, parents: Mapping[str, Fact], seen: frozenset[str]) -> bool:
    source = fact.source
    parent = _single_parent(fact, parents, seen)
    if parent is not None:
        return _unattributed(parent, subject, parents, seen | {parent.id})
    if source.kind is SourceKind.UNATTRIBUTED or not _named(source):
        return True
    return source.kind is SourceKind.COUNTERPARTY and not about_itself(source, subject)


def source_key(source: Source) -> str:
    """What makes two sources the same one: kind, id, uri and, where neither is given, author and party."""
    named = (source.id or "", source.uri or "")
    who = ("", "") if any(named) else (fold(source.author or ""), fold(source.party or ""))
    origin = () if any(named) or any(who) else tuple(sorted(source.derived_from))
    return "\x1f".join((source.kind.value, *named, *who, *origin))


def losing_pair(fact: Fact, rules: SlotRules) -> tuple[str, str]:
    """The (value, source) of a fact, as a ruling remembers its losers."""
    return key_of(fact, rules), source_key(fact.source)


def key_of(fact: Fact, rules: SlotRules) -> str:
    """The fact's value key in its slot. Raises ``ValueError`` for a fact that is in none."""
    if fact.value is None:
        raise ValueError(f"{fact.id} has no value")
    return value_key(fact.value, rules.comparator)


def review_date(fact: Fact, rules: SlotRules) -> datetime | None:
    """When the fact must be checked: its own date, else the field's number of days after it was stored."""
    if fact.review_at is not None or rules.review_after_days is None:
        return fact.review_at
    return fact.recorded_at + timedelta(days=rules.review_after_days)


def label_warnings(fact: Fact, rules: SlotRules) -> tuple[str, ...]:
    """The labels that a source of this kind should carry and does not (seed 000, the order of precedence)."""
    source = fact.source
    if source.kind is SourceKind.APPROVED_DOCUMENT:
        missing = [("owner", source.author or source.role), ("review date", review_date(fact, rules))]
    elif source.kind is SourceKind.AUTHORIZED_PERSON:
        missing = [("role", source.role), ("date", fact.effective_at)]
    else:
        return ()
    kind = source.kind.value.replace("_", " ")
    return tuple(f"an {kind} without {label}" for label, present in missing if not present)
