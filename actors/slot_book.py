"""What a write decides about the slots that it touches: asks the policies, and carries out what they say.

Decisions are the policies' (``precedence.decide``); everything they bring about happens on the pages of the slots
(``SlotPages``), so that each decision of one transaction sees what those before it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from muniment.actors.slot_pages import GONE, SlotPages, slot_of
from muniment.actors.store import memory_store as store
from muniment.actors.store.conflict_store import OPEN, WITHDRAWN, Conflict
from muniment.policies.audit import found_on_reading
from muniment.policies.authority import Actor, key_of, source_key
from muniment.policies.model import ConflictKind, Fact, Outcome, Slot, Status
from muniment.policies.precedence import consequences, decide, overtaken
from muniment.policies.slot_history import Change, read
from muniment.policies.slot_view import Consequences, Opening, Ruling, promoted
from muniment.policies.weighing import Rule, over, start

#: Facts that wait in one conflict, beside its challenger; what comes after them is history that says nothing new.
MAX_JOINED: Final = 100


class SlotBook(SlotPages):
    """See the module."""

    def open(self, slots: Iterable[Slot]) -> None:
        """Reads these slots, and carries out what time has brought about in them."""
        for key in self.read(slots):
            self._settle(key)

    # --- deciding

    def tell(self, fact: Fact) -> tuple[Ruling, str | None, str | None]:
        """Decides a new fact of a slot and carries it out: the ruling, its decision's id, its conflict's id."""
        slot = slot_of(fact)
        ruling = decide(self.view(slot, fact), fact, self.actor, self.rules_of(slot), fact.recorded_at)
        self.new[fact.id] = fact
        conflict_id = self._carry_out(slot, fact, ruling, self.actor)
        plain = ruling.outcome is Outcome.STORED and not ruling.open
        decision_id = None if plain else self._log(slot, fact, ruling)
        return ruling, decision_id, conflict_id

    def move(self, fact: Fact, actor: Actor) -> Ruling:
        """A fact that is there goes into another slot, where it is decided like one that ``actor`` just told."""
        before = self.facts[fact.id]
        old, slot = slot_of(before), slot_of(fact)
        self.members[old.key].pop(fact.id, None)
        self.touch([old])
        if before.status is not Status.DISPUTED:
            # Until now it was told of another slot; here it counts from now on.
            events = store.get_events(self.connection, self.company, [fact.id]).get(fact.id, ())
            if all(event.change is not Change.HELD for event in events):
                self.event(fact.id, Change.HELD, fact.recorded_at)
        fact = replace(fact, corroborates=None, superseded_by=None)
        ruling = decide(self.view(slot, fact), fact, actor, self.rules_of(slot), self.now)
        self._carry_out(slot, replace(fact, status=Status.DISPUTED), ruling, actor)
        self._log(slot, fact, ruling)
        return ruling

    def _carry_out(self, slot: Slot, fact: Fact, ruling: Ruling, proposer: Actor) -> str | None:
        waited = fact.status is Status.DISPUTED
        successor = ruling.successor_id
        if ruling.status is Status.SUPERSEDED:
            successor = ruling.incumbent_id
        elif ruling.outcome is Outcome.CORROBORATED:
            successor = self.facts[ruling.incumbent_id or ""].superseded_by
        decided = replace(
            fact,
            status=ruling.status,
            corroborates=ruling.incumbent_id if ruling.outcome is Outcome.CORROBORATED else None,
            superseded_by=successor,
        )
        self.add(decided)
        self._record_standing(decided, waited, ruling.rule)
        if ruling.review_at is not None and ruling.incumbent_id is not None:
            self.change(ruling.incumbent_id, review_at=ruling.review_at)
        if ruling.outcome is Outcome.CORROBORATED and not ruling.counts:
            self._fold_repeats(decided)
        for id in ruling.supersede:
            if ruling.takes_effect_at is None:
                self.supersede(id, decided.corroborates or decided.id)
            else:
                self.change(id, superseded_by=decided.id)
        for id in ruling.release:
            self.change(id, corroborates=None, superseded_by=None)
        opened = [self.escalate(slot, opening, proposer) for opening in ruling.open]
        if ruling.join is not None:
            self.join(ruling.join, decided.id)
        self.follow(slot, decided, ruling.consequences)
        return opened[0].id if opened else ruling.join

    def _record_standing(self, decided: Fact, waited: bool, rule: Rule) -> None:
        """Whether the fact counts in the slot's history from now on, where that is not so from its recording on."""
        if decided.status is Status.DISPUTED:
            if not waited:
                self.event(decided.id, Change.HELD)
        elif rule is Rule.LOST_RULING:
            self.event(decided.id, Change.LOST_RULING)
        elif waited:
            self.event(decided.id, Change.ADMITTED)

    def _fold_repeats(self, fact: Fact) -> None:
        """What one source says again, of the same period, takes the place of what it said before, as evidence."""
        for other in self.current(slot_of(fact).key):
            if other.id != fact.id and other.corroborates == fact.corroborates and _same_testimony(other, fact):
                self.change(other.id, status=Status.SUPERSEDED, superseded_by=fact.id)

    def join(self, conflict_id: str, id: str) -> None:
        """The fact says what a conflict's challenger says. What adds no source to it does not wait."""
        conflict = self.conflict(conflict_id)
        fact = self.facts[id]
        known = [self.facts[i] for i in (conflict.challenger_id, *conflict.evidence_ids) if i in self.facts]
        if id in conflict.evidence_ids or id == conflict.challenger_id:
            return
        if len(conflict.evidence_ids) >= MAX_JOINED or any(_same_testimony(other, fact) for other in known):
            if fact.status is Status.DISPUTED:
                self.change(id, status=Status.SUPERSEDED, superseded_by=conflict.challenger_id)
            return
        self.put_conflict(replace(conflict, evidence_ids=(*conflict.evidence_ids, id)))

    def follow(self, slot: Slot, winner: Fact, settled: Consequences) -> None:
        """Carries out what a change of the slot's winner means for its open conflicts."""
        for id in settled.withdraw:
            self.withdraw(id, winner.id)
        for id in settled.adopt:
            self._adopt(id, winner.id)
        for id in settled.redecide:
            self._decide_anew(slot, self.conflict(id))

    def _adopt(self, id: str, winner_id: str) -> None:
        """The fact becomes evidence of the one that says the same and holds."""
        fact = self.facts.get(id)
        if fact is None or fact.id == winner_id or fact.status in GONE:
            return
        winner = self.facts[winner_id]
        head = winner.corroborates or winner_id
        if fact.status is not Status.CURRENT:
            self.event(id, Change.ADMITTED)
        status = Status.EXPIRED if over(fact, self.now) else Status.CURRENT
        self.change(id, status=status, corroborates=head, superseded_by=self.facts[head].superseded_by)

    def _decide_anew(self, slot: Slot, conflict: Conflict) -> None:
        challenger = self.facts.get(conflict.challenger_id or "")
        if conflict.status != OPEN or challenger is None or challenger.status in GONE or conflict.proposer is None:
            return
        same = [*conflict.evidence_ids, *(f.id for f in self.evidence_of(challenger))]
        view = self.view(slot, challenger, without=conflict.id)
        ruling = decide(view, challenger, conflict.proposer, self.rules_of(slot), self.now)
        if ruling.outcome is Outcome.HELD and ruling.join is None:
            # It goes on waiting, in the conflict that is open already.
            waits = replace(ruling, open=())
            self.put_conflict(replace(conflict, subject_id=ruling.incumbent_id))
            self._carry_out(slot, challenger, waits, conflict.proposer)
            self._take_along(same, challenger.id, waits, conflict.id)
            if challenger.status is not Status.DISPUTED:
                self._log(slot, challenger, ruling, anew=True)
            return
        self.put_conflict(conflict.ended(WITHDRAWN, {"by": Rule.DECIDED_ANEW.value, "at": self.now}))
        open_id = self._carry_out(slot, challenger, ruling, conflict.proposer)
        self._take_along(same, challenger.id, ruling, open_id)
        self._log(slot, challenger, ruling, anew=True)

    def _take_along(self, ids: Iterable[str], leader_id: str, ruling: Ruling, conflict_id: str | None) -> None:
        """What said the same as a fact that was decided goes where that went."""
        for id in ids:
            leader, fact = self.facts[leader_id], self.facts.get(id)
            if fact is None or fact.status in GONE:
                continue
            if leader.status is Status.CURRENT:
                self._adopt(id, leader_id)
                continue
            waited = fact.status is Status.DISPUTED
            status = Status.DISPUTED if leader.status is Status.DISPUTED else Status.SUPERSEDED
            fact = self.change(id, status=status, corroborates=None, superseded_by=leader.superseded_by)
            self._record_standing(fact, waited, ruling.rule)
            if conflict_id is not None and self.conflict(conflict_id).status == OPEN:
                self.join(conflict_id, id)

    def _settle(self, key: str) -> None:
        """What time has brought about: successors took over on their day, and what is over has expired."""
        current = self.current(key)
        for fact in current:
            if fact.corroborates is not None or not overtaken(fact, current, self.now):
                continue
            slot, winner = self.slots[key], self.facts[fact.superseded_by or ""]
            if self.facts[fact.id].status is not Status.CURRENT or over(fact, start(winner)):
                continue
            leaving = {fact.id, *(f.id for f in self.evidence_of(fact))}
            settled = consequences(self.view(slot), winner, frozenset(leaving), self.rules_of(slot))
            for id in sorted(leaving):
                self.supersede(id, winner.id)
            self.follow(slot, winner, settled)
        for fact in self.current(key):
            if over(fact, self.now):
                self.change(fact.id, status=Status.EXPIRED)
                self._hand_on(fact)
        self.regroup(key)

    def regroup(self, key: str) -> None:
        """Where a fact has left and others said the same, the first of them stands for it."""
        for fact in promoted(self.current(key), self.now):
            if fact.corroborates != self.facts[fact.id].corroborates:
                self.change(fact.id, corroborates=fact.corroborates)

    def flag_found(self, slot: Slot) -> None:
        """Opens a conflict for each current value of a slot that nobody decided about (an import, another policy)."""
        view, rules = self.view(slot), self.rules_of(slot)
        reading = read((*view.current, *view.evidence), rules, view.parents, self.now)
        for other in reading.others:
            if reading.current is None:
                continue
            value = key_of(other, rules)
            same = [
                c.id
                for c in self.conflicts_of(slot.key)
                if c.kind is ConflictKind.CONFLICT and self._says(c, value, slot)
            ]
            if same:
                self.join(same[0], other.id)
            else:
                self.escalate(slot, found_on_reading(reading.current, other), self.actor)

    def _says(self, conflict: Conflict, value: str, slot: Slot) -> bool:
        challenger = self.facts.get(conflict.challenger_id or "")
        return (
            challenger is not None and challenger.value is not None and key_of(challenger, self.rules_of(slot)) == value
        )

    # --- leaving

    def leave(self, id: str) -> None:
        """Ends what is open about a fact that was retired.

        A conflict goes on without its incumbent. One whose challenger is gone is withdrawn, and what else said the
        same opens one of its own.
        """
        fact = self.facts[id]
        for conflict in self.take_open(fact):
            if id in conflict.evidence_ids:
                rest = tuple(i for i in conflict.evidence_ids if i != id)
                self.put_conflict(replace(conflict, evidence_ids=rest))
            elif conflict.challenger_id == id:
                self.withdraw(conflict.id, id)
                self._reopen(conflict)
            elif fact.slot is None:
                self.withdraw(conflict.id, id)
        if fact.slot is not None:
            self._hand_on(fact)
            self.forget_successor(fact.slot.key, id)
            self.regroup(fact.slot.key)

    def _hand_on(self, fact: Fact) -> None:
        """A notice of a fact that is no longer current stays where others say the same."""
        heir = next((f for f in self.evidence_of(fact) if not over(f, self.now)), None)
        for conflict in self.conflicts_of(slot_of(fact).key):
            if heir is not None and conflict.subject_id == fact.id and conflict.kind is ConflictKind.NOTICE:
                self.put_conflict(replace(conflict, subject_id=heir.id))

    def _reopen(self, conflict: Conflict) -> None:
        waiting = [self.facts[i] for i in conflict.evidence_ids if i in self.facts]
        waiting = [fact for fact in waiting if fact.status not in (*GONE, Status.EXPIRED)]
        if waiting:
            first, *rest = waiting
            opening = Opening(
                kind=conflict.kind,
                rule=conflict.rule,
                reason=conflict.reason,
                subject_id=conflict.subject_id,
                challenger_id=first.id,
            )
            self.escalate(conflict.slot, opening, Actor(id=first.writer), tuple(fact.id for fact in rest))

    def _log(self, slot: Slot, fact: Fact, ruling: Ruling, anew: bool = False) -> str:
        inputs: dict[str, Any] = {**ruling.inputs, "fact": fact.id}
        if anew:
            inputs["cause"] = Rule.DECIDED_ANEW.value
        return self.log("conflict", ruling.rule.value, ruling.reason, ruling.outcome.value, inputs, slot)


def _same_testimony(left: Fact, right: Fact) -> bool:
    """Whether one source says the same of the same period twice."""
    dates = (left.effective_at, left.expires_at) == (right.effective_at, right.expires_at)
    return dates and source_key(left.source) == source_key(right.source)
