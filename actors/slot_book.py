"""The slots that one write touches, as they stand inside its transaction; and what the write changes of them.

Decisions are the policies' (``precedence.decide``); the book reads what they may look at, carries out what they say,
and keeps all of it until ``flush`` writes it in as few statements as there are kinds of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.ids import new_id
from muniment.actors.store import conflict_store
from muniment.actors.store import memory_store as store
from muniment.actors.store.conflict_store import OPEN, WITHDRAWN, Conflict
from muniment.actors.store.decision_log import Decision
from muniment.policies.audit import derived_reviews, found_on_reading
from muniment.policies.authority import Actor
from muniment.policies.model import ConflictKind, Fact, Outcome, Scope, Slot, Status
from muniment.policies.precedence import consequences, decide, overtaken
from muniment.policies.precedence_policy import SlotRules
from muniment.policies.slot_history import Change, read
from muniment.policies.slot_view import Consequences, Opening, PastRuling, Ruling, SlotView
from muniment.policies.weighing import Rule

_LIVE = (Status.CURRENT, Status.DISPUTED)
#: How far summaries of summaries are followed.
_PARENT_STEPS = 8


@dataclass(frozen=True, slots=True)
class SlotNote:
    """What searches must know of a slot in which more than one fact speaks: its current facts, corroborations
    included, its open conflicts with the other side of each, and the facts they are derived from."""

    facts: tuple[Fact, ...]
    conflicts: tuple[tuple[Conflict, Fact | None], ...]
    parents: dict[str, Fact]


def beside(slot: Slot, user: str) -> Slot:
    """The same subject and field in the other scope that ``user`` can see."""
    if slot.scope is Scope.PERSONAL:
        return Slot(slot.company, Scope.SHARED, "", slot.subject, slot.field)
    return Slot(slot.company, Scope.PERSONAL, user, slot.subject, slot.field)


class SlotBook:
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
        self._connection = connection
        self.company = company
        self.actor = actor
        self.rules_of = rules_of
        self.tick = tick
        self.now = tick()
        self._policy_version = policy_version
        self.facts: dict[str, Fact] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._slots: dict[str, Slot] = {}
        self._conflicts: dict[str, Conflict] = {}
        self._rulings: dict[str, list[PastRuling]] = {}
        self._parents: dict[str, Fact | None] = {}
        self._changed: dict[str, None] = {}
        self._changed_conflicts: dict[str, None] = {}
        self._events: list[tuple[str, Change]] = []
        self._lost: dict[str, None] = {}
        self.decisions: list[Decision] = []
        self.touched: dict[str, None] = {}
        self.new: dict[str, Fact] = {}
        self._settles = True

    # --- reading

    def open(self, slots: Iterable[Slot]) -> None:
        """Reads these slots, and what lies beside them in the other scope, as far as they are not open yet."""
        wanted = {s.key: s for slot in slots for s in (slot, beside(slot, self.actor.id))}
        keys = [key for key in wanted if key not in self._members]
        if not keys:
            return
        for key, facts in store.slot_facts(self._connection, self.company, keys, _LIVE).items():
            self._members[key] = {}
            self._slots[key] = wanted[key]
            for fact in facts:
                self._add(key, fact)
        found = conflict_store.open_conflicts(self._connection, self.company, keys)
        self._conflicts.update({c.id: c for c in found})
        missing = [c.challenger_id for c in found if c.challenger_id and c.challenger_id not in self.facts]
        self.facts.update(store.get_facts(self._connection, self.company, missing))
        self._rulings.update(conflict_store.past_rulings(self._connection, self.company, keys))
        for key in keys:
            if self._settles:
                self._settle(key)

    def read_only(self, slots: Iterable[Slot]) -> None:
        """Reads these slots for ``notes`` alone; nothing that is due is carried out."""
        self._settles = False
        slots = list(slots)
        self.open(slots)
        self.touched.update(dict.fromkeys(slot.key for slot in slots))

    def _add(self, key: str, fact: Fact) -> None:
        self.facts[fact.id] = fact
        self._members[key][fact.id] = None

    def conflicts_of(self, key: str) -> list[Conflict]:
        """The open conflicts of a slot, by id."""
        open_here = (c for c in self._conflicts.values() if c.status == OPEN and c.slot and c.slot.key == key)
        return sorted(open_here, key=lambda c: c.id)

    def live(self, key: str) -> list[Fact]:
        """The slot's facts that are current or wait, in the order of recording."""
        found = (self.facts[id] for id in self._members.get(key, ()))
        return sorted((f for f in found if f.status in _LIVE), key=lambda f: (f.recorded_at, f.id))

    def view(self, slot: Slot, challenger: Fact | None = None, without: str | None = None) -> SlotView:
        """What a decision about the slot may look at; ``without``: a conflict that it must not."""
        self.open([slot])
        current = [f for f in self.live(slot.key) if f.status is Status.CURRENT]
        elsewhere = [f for f in self.live(beside(slot, self.actor.id).key) if f.status is Status.CURRENT]
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
        found: dict[str, Fact] = {}
        wanted = {id for fact in facts for id in fact.source.derived_from}
        for _ in range(_PARENT_STEPS):
            unread = [id for id in wanted if id not in self._parents]
            if unread:
                stored = store.get_facts(self._connection, self.company, [id for id in unread if id not in self.new])
                self._parents.update({id: stored.get(id) for id in unread})
            step = {id: self.facts.get(id) or self._parents.get(id) for id in wanted}
            fresh = {
                id: fact
                for id, fact in step.items()
                if fact is not None and id not in found and fact.status not in (Status.CORRECTED, Status.DELETED)
            }
            if not fresh:
                break
            found.update(fresh)
            wanted = {id for fact in fresh.values() for id in fact.source.derived_from}
        return found

    # --- deciding

    def tell(self, fact: Fact) -> tuple[Ruling, str | None, str | None]:
        """Decides a new fact of a slot and carries it out: the ruling, its decision's id, its conflict's id."""
        slot = _slot(fact)
        ruling = decide(self.view(slot, fact), fact, self.actor, self.rules_of(slot), fact.recorded_at)
        self.new[fact.id] = fact
        conflict_id = self._carry_out(slot, fact, ruling, self.actor)
        plain = ruling.outcome is Outcome.STORED and not ruling.open
        decision_id = None if plain else self._log(slot, fact, ruling)
        return ruling, decision_id, conflict_id

    def _carry_out(self, slot: Slot, fact: Fact, ruling: Ruling, proposer: Actor) -> str | None:
        self.touched[slot.key] = None
        superseded_by = ruling.successor_id
        if ruling.status is Status.SUPERSEDED:
            superseded_by = ruling.incumbent_id
        decided = replace(
            fact,
            status=ruling.status,
            corroborates=ruling.incumbent_id if ruling.outcome is Outcome.CORROBORATED else None,
            superseded_by=superseded_by,
        )
        self._members.setdefault(slot.key, {})
        self._slots[slot.key] = slot
        self._add(slot.key, decided)
        self._changed[decided.id] = None
        if ruling.outcome is Outcome.HELD:
            self._events.append((decided.id, Change.HELD))
        if ruling.review_at is not None and ruling.incumbent_id is not None:
            self.change(ruling.incumbent_id, review_at=ruling.review_at)
        for id in ruling.supersede:
            if ruling.takes_effect_at is None:
                self.supersede(id, decided.id)
            else:
                self.change(id, superseded_by=decided.id)
        opened = [self.escalate(slot, opening, proposer) for opening in ruling.open]
        if ruling.join is not None:
            joined = self._conflicts[ruling.join]
            self._put(replace(joined, evidence_ids=(*joined.evidence_ids, decided.id)))
        self.follow(slot, decided, ruling.consequences)
        return opened[0].id if opened else ruling.join

    def follow(self, slot: Slot, winner: Fact, settled: Consequences) -> None:
        """Carries out what a change of the slot's winner means for its open conflicts."""
        for id in settled.withdraw:
            self.withdraw(id, winner.id)
        for id in settled.adopt:
            if id in self.facts:
                self.change(id, status=Status.CURRENT, corroborates=winner.id)
                self._events.append((id, Change.ADMITTED))
        for id in settled.redecide:
            self._decide_anew(slot, self._conflicts[id])

    def _decide_anew(self, slot: Slot, conflict: Conflict) -> None:
        challenger = self.facts.get(conflict.challenger_id or "")
        if conflict.status != OPEN or challenger is None or conflict.proposer is None:
            return
        view = self.view(slot, challenger, without=conflict.id)
        ruling = decide(view, challenger, conflict.proposer, self.rules_of(slot), self.now)
        if ruling.outcome is Outcome.HELD:
            self._put(replace(conflict, subject_id=ruling.incumbent_id))
            return
        self._put(conflict.ended(WITHDRAWN, {"by": Rule.DECIDED_ANEW.value, "at": self.now}))
        if ruling.status is Status.CURRENT:
            self._events.append((challenger.id, Change.ADMITTED))
        self._carry_out(slot, challenger, ruling, conflict.proposer)
        for id in conflict.evidence_ids:
            if ruling.status is Status.CURRENT and id in self.facts:
                self.change(id, status=Status.CURRENT, corroborates=challenger.id)
                self._events.append((id, Change.ADMITTED))
        self._log(slot, challenger, ruling, anew=True)

    def _settle(self, key: str) -> None:
        """A successor whose date has come takes over from what it was decided to replace."""
        heads = [f for f in self.live(key) if f.status is Status.CURRENT and f.corroborates is None]
        for fact in heads:
            if overtaken(fact, heads, self.now) and fact.superseded_by is not None:
                slot, winner = self._slots[key], self.facts[fact.superseded_by]
                leaving = {fact.id} | {f.id for f in self.live(key) if f.corroborates == fact.id}
                settled = consequences(self.view(slot), winner, frozenset(leaving), self.rules_of(slot))
                for id in sorted(leaving):
                    self.supersede(id, winner.id)
                self.touched[key] = None
                self.follow(slot, winner, settled)

    def flag_found(self, slot: Slot) -> None:
        """Opens a conflict for each current value of a slot that nobody decided about (an import, another policy)."""
        view = self.view(slot)
        reading = read((*view.current, *view.evidence), self.rules_of(slot), view.parents, self.now)
        waiting = {c.challenger_id for c in self.conflicts_of(slot.key)}
        for other in reading.others:
            if reading.current is not None and other.id not in waiting:
                self.escalate(slot, found_on_reading(reading.current, other), self.actor)

    # --- changing

    def change(self, id: str, **fields: Any) -> Fact:
        """A fact with other values of what may change."""
        fact = replace(self.facts[id], **fields)
        self.facts[id] = fact
        self._changed[id] = None
        if fact.slot is not None:
            self.touched[fact.slot.key] = None
        return fact

    def supersede(self, id: str, winner: str) -> None:
        """The fact leaves; what was derived from it will be reviewed."""
        self.change(id, status=Status.SUPERSEDED, superseded_by=winner)
        self._lost[id] = None

    def put_new(self, fact: Fact) -> None:
        """A fact of a slot that nobody told: a ruling or a correction made it."""
        self.new[fact.id] = fact
        self.put(fact)

    def move(self, fact: Fact, actor: Actor) -> Ruling:
        """A fact that is there goes into another slot, where it is decided like one that ``actor`` just told."""
        old = self.facts[fact.id].slot
        slot = _slot(fact)
        if old is not None:
            self._members[old.key].pop(fact.id, None)
            self.touched[old.key] = None
        ruling = decide(self.view(slot, fact), fact, actor, self.rules_of(slot), self.now)
        self._carry_out(slot, fact, ruling, actor)
        self._log(slot, fact, ruling)
        return ruling

    def put(self, fact: Fact) -> None:
        """Another version of a fact of an open slot."""
        slot = _slot(fact)
        self.open([slot])
        self._add(slot.key, fact)
        self._changed[fact.id] = None
        self.touched[slot.key] = None

    def lose(self, id: str) -> None:
        """What was derived from the fact will be reviewed."""
        self._lost[id] = None

    def event(self, id: str, change: Change) -> None:
        """Something that decides whether the fact counts at a knowledge time."""
        self._events.append((id, change))

    def rule(self, conflict: Conflict, slot: Slot, ruling: PastRuling) -> None:
        """Records a ruling that later decisions of the slot must know."""
        conflict_store.add_ruling(self._connection, conflict, slot.key, ruling)
        self._rulings.setdefault(slot.key, []).append(ruling)

    def escalate(self, slot: Slot | None, opening: Opening, proposer: Actor | None) -> Conflict:
        """Puts something on the list of the slot's owner; of a slotless fact, its writer's."""
        subject = self.facts.get(opening.subject_id or "")
        rules = self.rules_of(slot) if slot else SlotRules(owner=subject.writer if subject else "")
        conflict = Conflict(
            id=new_id("c", self.now),
            company=self.company,
            kind=opening.kind,
            slot=slot,
            rule=opening.rule,
            reason=opening.reason,
            owner=rules.owner,
            opened_at=self.now,
            subject_id=opening.subject_id,
            challenger_id=opening.challenger_id,
            due_at=rules.due_at(self.now),
            delegate=rules.delegate,
            proposer=proposer,
        )
        self._put(conflict)
        return conflict

    def withdraw(self, id: str, by: str) -> None:
        """An open conflict has lost its point."""
        conflict = self._conflicts.get(id)
        if conflict is not None and conflict.status == OPEN:
            self._put(conflict.ended(WITHDRAWN, {"by": by, "at": self.now}))

    def end(self, conflict: Conflict, status: str, resolution: dict[str, Any]) -> None:
        """Ends a conflict."""
        self._put(conflict.ended(status, resolution))

    def repoint(self, conflict: Conflict, subject_id: str) -> None:
        """The conflict goes on about another fact."""
        self._put(replace(conflict, subject_id=subject_id))

    def take(self, conflict: Conflict) -> None:
        """Makes a conflict known that was read elsewhere."""
        self._conflicts.setdefault(conflict.id, conflict)

    def _put(self, conflict: Conflict) -> None:
        self._conflicts[conflict.id] = conflict
        self._changed_conflicts[conflict.id] = None
        if conflict.slot is not None:
            self.touched[conflict.slot.key] = None

    def _log(self, slot: Slot, fact: Fact, ruling: Ruling, anew: bool = False) -> str:
        inputs = {**ruling.inputs, "fact": fact.id}
        if anew:
            inputs["cause"] = Rule.DECIDED_ANEW.value
        return self.log("conflict", ruling.rule.value, ruling.reason, ruling.outcome.value, inputs, slot)

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
        store.update_facts(self._connection, [self.facts[id] for id in self._changed if id not in self.new])
        store.add_events(self._connection, self.company, self.now, self._events)
        conflict_store.put_conflicts(self._connection, [self._conflicts[id] for id in self._changed_conflicts])

    def changed(self) -> list[Fact]:
        """Facts that were there before and are other now, and the new ones, as they are now."""
        return [self.facts[id] for id in self._changed]

    def notes(self) -> dict[str, SlotNote | None]:
        """What searches must know of the touched slots; None where one fact speaks alone."""
        found: dict[str, SlotNote | None] = {}
        for key in self.touched:
            current = tuple(f for f in self.live(key) if f.status is Status.CURRENT)
            conflicts = tuple((c, self.facts.get(c.challenger_id or "")) for c in self.conflicts_of(key))
            alone = len(current) <= 1 and not conflicts
            found[key] = None if alone else SlotNote(current, conflicts, self.parents(current))
        return found

    def _review_derived(self) -> None:
        lost = list(self._lost)
        ids = [child for parent in lost for child in store.children(self._connection, self.company, parent)]
        dependants = [self.facts.get(id) or fact for id, fact in self._read(ids).items()]
        self.open([f.slot for f in dependants if f.slot is not None])
        for fact in dependants:
            for conflict in conflict_store.about(self._connection, self.company, fact.id):
                self._conflicts.setdefault(conflict.id, conflict)
        reviews = [c for c in self._conflicts.values() if c.status == OPEN and c.kind is ConflictKind.REVIEW]
        pending = [c.opened(None) for c in reviews]
        for opening in derived_reviews(lost, dependants, pending):
            fact = next(f for f in dependants if f.id == opening.subject_id)
            self.facts.setdefault(fact.id, fact)
            self.escalate(fact.slot, opening, None)

    def _read(self, ids: Sequence[str]) -> dict[str, Fact]:
        stored = store.get_facts(self._connection, self.company, [id for id in ids if id not in self.facts])
        return {**stored, **{id: self.facts[id] for id in ids if id in self.facts}}


def _slot(fact: Fact) -> Slot:
    slot = fact.slot
    assert slot is not None, "the caller tells facts of slots only"
    return slot
