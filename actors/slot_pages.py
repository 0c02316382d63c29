"""The slots that one write touches, as they stand inside its transaction, and what the write changes of them.

All of it is kept until ``flush`` writes it in as few statements as there are kinds of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from muniment.actors.ids import new_id
from muniment.actors.store import conflict_store
from muniment.actors.store import memory_store as store
from muniment.actors.store.conflict_store import OPEN, WITHDRAWN, Conflict
from muniment.actors.store.decision_log import Decision
from muniment.policies.audit import derived_reviews
from muniment.policies.authority import PARENT_STEPS, Actor, follow_parents, key_of
from muniment.policies.model import ConflictKind, Fact, Scope, Slot, Status
from muniment.policies.precedence import overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import Change, SlotEvent
from muniment.policies.slot_view import Opening, PastRuling, SlotView
from muniment.policies.weighing import start

LIVE: Final = (Status.CURRENT, Status.DISPUTED)
#: What has no content or was never true; nothing brings it back.
GONE: Final = (Status.DELETED, Status.CORRECTED)


@dataclass(frozen=True, slots=True)
class SlotNote:
    """What searches must know of a slot in which more than one fact speaks: its current facts, corroborations
    included, its open conflicts with the other side of each, and the facts they are derived from.

    ``due``: when time alone changes which fact is in force, and the slot is to be looked at again.
    """

    facts: tuple[Fact, ...]
    conflicts: tuple[tuple[Conflict, Fact | None], ...]
    parents: dict[str, Fact]
    due: datetime | None


def beside(slot: Slot, user: str) -> Slot:
    """The same subject and field in the other scope that ``user`` can see."""
    if slot.scope is Scope.PERSONAL:
        return Slot(slot.company, Scope.SHARED, "", slot.subject, slot.field)
    return Slot(slot.company, Scope.PERSONAL, user, slot.subject, slot.field)


def next_turn(current: Sequence[Fact]) -> datetime | None:
    """When time alone next changes what holds among a slot's current facts: one expires, or its successor's day."""
    by_id = {fact.id: fact for fact in current}
    heads = [fact for fact in current if fact.corroborates is None]
    turns = [fact.expires_at for fact in heads if fact.expires_at is not None]
    turns += [start(by_id[f.superseded_by]) for f in heads if f.superseded_by in by_id]
    return min(turns, default=None)


def slot_of(fact: Fact) -> Slot:
    """The slot of a fact that is in one."""
    slot = fact.slot
    assert slot is not None, "the caller brings facts of slots only"
    return slot


class SlotPages:
    """See the module. ``rules_of`` is the company's policy; ``tick`` gives a later time at each call."""

    def __init__(
        self,
        connection: sa.Connection,
        company: str,
        rules_of: Callable[[Slot], SlotRules],
        policy_version: int,
        actor: Actor,
        tick: Callable[[], datetime],
    ) -> None:
        self.connection = connection
        self.company = company
        self.actor = actor
        self.rules_of = rules_of
        self.tick = tick
        self.now = tick()
        self._policy_version = policy_version
        self.facts: dict[str, Fact] = {}
        self.members: dict[str, dict[str, None]] = {}
        self.slots: dict[str, Slot] = {}
        self._conflicts: dict[str, Conflict] = {}
        self._rulings: dict[str, list[PastRuling]] = {}
        self._parents: dict[str, Fact | None] = {}
        self._changed: dict[str, None] = {}
        self._changed_conflicts: dict[str, None] = {}
        self._opened: list[str] = []
        self._events: list[tuple[str, SlotEvent]] = []
        self._lost: dict[str, None] = {}
        self.decisions: list[Decision] = []
        self.touched: dict[str, None] = {}
        self.new: dict[str, Fact] = {}

    # --- reading

    def read(self, slots: Iterable[Slot]) -> list[str]:
        """Reads these slots, and what lies beside them in the other scope, as far as they are not read yet: their
        keys."""
        wanted = {s.key: s for slot in slots for s in (slot, beside(slot, self.actor.id))}
        keys = [key for key in wanted if key not in self.members]
        if not keys:
            return []
        for key, facts in store.slot_facts(self.connection, self.company, keys, LIVE).items():
            self.slots[key] = wanted[key]
            self.members[key] = dict.fromkeys(fact.id for fact in facts)
            for fact in facts:
                self.facts.setdefault(fact.id, fact)
        found = conflict_store.open_conflicts(self.connection, self.company, keys)
        for conflict in found:
            self._conflicts.setdefault(conflict.id, conflict)
        self.fetch(id for c in found for id in (c.challenger_id, *c.evidence_ids) if id is not None)
        self._rulings.update(conflict_store.past_rulings(self.connection, self.company, keys))
        return keys

    def open(self, slots: Iterable[Slot]) -> None:
        """Makes these slots ready for a decision."""
        self.read(slots)

    def fetch(self, ids: Iterable[str]) -> None:
        """Reads these facts, wherever they are, as far as they are not known yet."""
        missing = [id for id in dict.fromkeys(ids) if id not in self.facts]
        self.facts.update(store.get_facts(self.connection, self.company, missing))

    def touch(self, slots: Iterable[Slot]) -> None:
        """What searches know of these slots will be made anew."""
        self.touched.update(dict.fromkeys(slot.key for slot in slots))

    def conflict(self, id: str) -> Conflict:
        """A conflict that was read, as it is now."""
        return self._conflicts[id]

    def conflicts_of(self, key: str) -> list[Conflict]:
        """The open conflicts of a slot, by id."""
        open_here = (c for c in self._conflicts.values() if c.status == OPEN and c.slot and c.slot.key == key)
        return sorted(open_here, key=lambda c: c.id)

    def live(self, key: str) -> list[Fact]:
        """The slot's facts that are current or wait, in the order of recording."""
        found = (self.facts[id] for id in self.members.get(key, ()))
        return sorted((f for f in found if f.status in LIVE), key=lambda f: (f.recorded_at, f.id))

    def current(self, key: str) -> list[Fact]:
        """The slot's current facts, corroborations included, in the order of recording."""
        return [fact for fact in self.live(key) if fact.status is Status.CURRENT]

    def evidence_of(self, fact: Fact) -> list[Fact]:
        """The current corroborations of a fact of an open slot."""
        return [f for f in self.current(slot_of(fact).key) if f.corroborates == fact.id]

    def view(self, slot: Slot, challenger: Fact | None = None, without: str | None = None) -> SlotView:
        """What a decision about the slot may look at; ``without``: a conflict that it must not."""
        self.open([slot])
        current = self.current(slot.key)
        elsewhere = self.current(beside(slot, self.actor.id).key)
        conflicts = [
            c.opened(self.facts.get(c.challenger_id or "")) for c in self.conflicts_of(slot.key) if c.id != without
        ]
        involved = [*current, *elsewhere, *(c.challenger for c in conflicts if c.challenger)]
        if challenger is not None:
            involved.append(challenger)
        return SlotView(
            current=tuple(f for f in current if f.corroborates is None),
            evidence=tuple(f for f in current if f.corroborates is not None),
            conflicts=tuple(conflicts),
            rulings=tuple(self._rulings.get(slot.key, ())),
            elsewhere=tuple(f for f in elsewhere if f.corroborates is None),
            parents=self.parents(involved),
        )

    def parents(self, facts: Iterable[Fact]) -> dict[str, Fact]:
        """The facts that these are derived from, and theirs, without corrected and deleted ones."""

        def read(ids: set[str]) -> dict[str, Fact]:
            unread = [id for id in ids if id not in self._parents and id not in self.new]
            if unread:
                stored = store.get_facts(self.connection, self.company, unread)
                self._parents.update({id: stored.get(id) for id in unread})
            known = ((id, self.facts.get(id) or self._parents.get(id)) for id in ids)
            return {id: fact for id, fact in known if fact is not None}

        return follow_parents(facts, read)

    # --- changing

    def add(self, fact: Fact) -> None:
        """A fact, new or moved, is in its slot now, which is open."""
        slot = slot_of(fact)
        self.slots.setdefault(slot.key, slot)
        self.members.setdefault(slot.key, {})[fact.id] = None
        self.facts[fact.id] = fact
        self._changed[fact.id] = None
        self.touched[slot.key] = None

    def put_new(self, fact: Fact) -> None:
        """A fact of a slot that nobody told: a ruling or a correction made it."""
        self.open([slot_of(fact)])
        self.new[fact.id] = fact
        self.add(fact)

    def change(self, id: str, **fields: Any) -> Fact:
        """A fact with other values of what may change."""
        before = self.facts[id]
        fact = replace(before, **fields)
        self.facts[id] = fact
        self._changed[id] = None
        slot = fact.slot
        if slot is not None:
            self.touched[slot.key] = None
            if fact.status in LIVE and slot.key in self.members:
                self.members[slot.key][id] = None  # what had left may come back
            if before.status is Status.CURRENT and fact.status is not Status.CURRENT:
                self._hand_on(slot, fact, before.superseded_by)
        return fact

    def _hand_on(self, slot: Slot, gone: Fact, next_id: str | None) -> None:
        """What the fact was to take over from some day goes to whoever has its place now, or was to follow it."""
        rules, winner = self.rules_of(slot), self.facts.get(gone.superseded_by or "")
        value = key_of(winner, rules) if winner is not None and winner.status is Status.CURRENT else None
        for id in self.members.get(slot.key, ()):
            fact = self.facts[id]
            if fact.superseded_by == gone.id and fact.status is Status.CURRENT:
                succeeds = value not in (None, key_of(fact, rules))
                self.change(id, superseded_by=gone.superseded_by if succeeds else next_id)

    def redate(self, id: str, change: Change = Change.REDATED, **dates: datetime | None) -> Fact:
        """A fact with other dates; those before stay known, for what was believed then."""
        old = self.facts[id]
        new = self.change(id, **dates)
        was = (old.effective_at, old.expires_at)
        if change is not Change.REDATED or was != (new.effective_at, new.expires_at):
            self._events.append((id, SlotEvent(self.tick(), change, was)))
        return new

    def event(self, id: str, change: Change, at: datetime | None = None) -> None:
        """Something that decides whether the fact counts at a knowledge time; it happens now, if not ``at``."""
        self._events.append((id, SlotEvent(at or self.tick(), change)))

    def supersede(self, id: str, winner: str) -> None:
        """The fact leaves; what was derived from it will be reviewed."""
        self.change(id, status=Status.SUPERSEDED, superseded_by=winner)
        self._lost[id] = None

    def lose(self, id: str) -> None:
        """What was derived from the fact will be reviewed."""
        self._lost[id] = None

    def rule(self, key: str, slot: Slot, ruling: PastRuling) -> None:
        """Records a ruling that later decisions of the slot must know; ``key``: of the conflict, or the right fact."""
        conflict_store.add_ruling(self.connection, self.company, key, slot.key, ruling)
        self._rulings.setdefault(slot.key, []).append(ruling)

    def escalate(
        self, slot: Slot | None, opening: Opening, proposer: Actor | None, evidence_ids: tuple[str, ...] = ()
    ) -> Conflict:
        """Puts something on the list of the slot's owner; of a slotless fact, its user's or its writer's."""
        subject = self.facts.get(opening.subject_id or "")
        user = subject.user if subject else None
        rules = self.rules_of(slot) if slot else SlotRules(owner=user or (subject.writer if subject else ""))
        now = self.tick()
        conflict = Conflict(
            id=new_id("c", now),
            company=self.company,
            kind=opening.kind,
            slot=slot,
            user=(slot.user or None) if slot else user,
            rule=opening.rule,
            reason=opening.reason,
            owner=rules.owner,
            opened_at=now,
            subject_id=opening.subject_id,
            challenger_id=opening.challenger_id,
            due_at=rules.due_at(now),
            delegate=rules.delegate,
            proposer=proposer,
            evidence_ids=evidence_ids,
        )
        self.put_conflict(conflict)
        self._opened.append(conflict.id)
        return conflict

    def withdraw(self, id: str, by: str) -> None:
        """An open conflict has lost its point."""
        conflict = self._conflicts.get(id)
        if conflict is not None and conflict.status == OPEN:
            self.put_conflict(conflict.ended(WITHDRAWN, {"by": by, "at": self.now}))

    def take(self, conflicts: Iterable[Conflict]) -> list[Conflict]:
        """Makes conflicts known that were read elsewhere; as they are now."""
        return [self._conflicts.setdefault(conflict.id, conflict) for conflict in conflicts]

    def withdraw_about(self, id: str, by: str) -> None:
        """What is open about a fact without a slot has lost its point."""
        for conflict in self.take(conflict_store.about(self.connection, self.company, [id])):
            self.withdraw(conflict.id, by)

    def put_conflict(self, conflict: Conflict) -> None:
        """Another version of a conflict, or a new one."""
        self._conflicts[conflict.id] = conflict
        self._changed_conflicts[conflict.id] = None
        if conflict.slot is not None:
            self.touched[conflict.slot.key] = None

    def log(
        self, kind: str, rule: str, reason: str, outcome: str, inputs: dict[str, Any], slot: Slot | None = None
    ) -> str:
        """Adds an entry to the decision log; its id."""
        decision = Decision(
            id=new_id("d", self.now),
            company=self.company,
            at=self.now,
            kind=kind,
            rule=rule,
            reason=reason,
            actor=self.actor.id,
            outcome=outcome,
            policy_version=self._policy_version,
            inputs=inputs,
            subject=slot.subject if slot else None,
            field=slot.field if slot else None,
            user=(slot.user or None) if slot else None,
        )
        self.decisions.append(decision)
        return decision.id

    # --- ending

    def flush(self) -> None:
        """Writes all that changed of facts that were there before, and of conflicts. New facts are the caller's."""
        self._review_derived()
        store.update_facts(self.connection, [self.facts[id] for id in self._changed if id not in self.new])
        store.add_events(self.connection, self.company, self._events)
        conflict_store.put_conflicts(self.connection, [self._conflicts[id] for id in self._changed_conflicts])

    def changed(self) -> list[Fact]:
        """Facts that were there before and are other now, and the new ones, as they are now."""
        return [self.facts[id] for id in self._changed]

    def opened(self) -> list[Conflict]:
        """What was put on an owner's list, and is still there."""
        return [c for id in self._opened if (c := self._conflicts[id]).status == OPEN]

    def notes(self) -> dict[str, SlotNote | None]:
        """What searches must know of the touched slots; None where one fact speaks alone."""
        found: dict[str, SlotNote | None] = {}
        for key in self.touched:
            current = tuple(self.current(key))
            conflicts = tuple((c, self.facts.get(c.challenger_id or "")) for c in self.conflicts_of(key))
            alone = len(current) <= 1 and not conflicts
            found[key] = None if alone else SlotNote(current, conflicts, self.parents(current), next_turn(current))
        return found

    def _review_derived(self) -> None:
        done: set[str] = set()
        while lost := [id for id in self._lost if id not in done]:
            done.update(lost)
            ids = store.children(self.connection, self.company, lost)
            self.fetch(ids)
            self.open([slot for id in ids if id in self.facts and (slot := self.facts[id].slot) is not None])
            dependants = [self.facts[id] for id in ids if id in self.facts]
            self._touch_derived(dependants)
            pending = self.take(conflict_store.about(self.connection, self.company, ids))
            reviews = [c.opened(None) for c in pending if c.status == OPEN and c.kind is ConflictKind.REVIEW]
            for opening in derived_reviews(lost, dependants, reviews):
                self.escalate(self.facts[opening.subject_id or ""].slot, opening, None)

    def _touch_derived(self, facts: Sequence[Fact]) -> None:
        """A summary's rank is that of what it was derived from, so what searches know of its slot is made anew."""
        for _ in range(PARENT_STEPS):
            self.touch([fact.slot for fact in facts if fact.slot is not None])
            ids = store.children(self.connection, self.company, [fact.id for fact in facts])
            self.fetch(ids)
            facts = [self.facts[id] for id in ids if id in self.facts]
            if not facts:
                return
            self.open([fact.slot for fact in facts if fact.slot is not None])


def is_unsettled(current: Sequence[Fact], now: datetime) -> bool:
    """Whether time has changed what holds among a slot's current facts, and the store does not say so yet."""
    heads = [fact for fact in current if fact.corroborates is None]
    return any((f.expires_at is not None and f.expires_at <= now) or overtaken(f, current, now) for f in heads)
