"""What a write decides about the slots that it touches: asks the policies, and carries out what they say.

Decisions are the policies' (``precedence.decide``); everything they bring about happens on the pages of the slots
(``SlotPages``), so that each decision of one transaction sees what those before it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from muniment.actors.slot_pages import GONE, LIVE, SlotPages, slot_of
from muniment.actors.store import memory_store as store
from muniment.actors.store.conflict_store import OPEN, WITHDRAWN, Conflict
from muniment.policies.audit import found_on_reading
from muniment.policies.authority import Actor, key_of, source_key
from muniment.policies.model import ConflictKind, Fact, Outcome, Slot, Status
from muniment.policies.precedence import consequences, decide, overtaken
from muniment.policies.slot_history import Change, read
from muniment.policies.slot_view import REASONS, Consequences, Opening, Ruling, promoted
from muniment.policies.weighing import Rule, over, start

#: Facts that wait in one conflict, beside its challenger; what comes after them is history that says nothing new.
MAX_JOINED: Final = 100
#: What may be the other side of an open entry, and what may say the same beside it.
_CHALLENGERS: Final = {ConflictKind.CONFLICT: LIVE, ConflictKind.NOTICE: (Status.SUPERSEDED, Status.EXPIRED)}
_EVIDENCE: Final = (Status.DISPUTED, Status.SUPERSEDED)


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
        if ruling.outcome is Outcome.CORROBORATED and ruling.supersede:
            incumbent = self.facts[ruling.incumbent_id or ""]
            for one in (incumbent, *self.evidence_of(incumbent)):
                self.change(one.id, superseded_by=ruling.successor_id)
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
        """The fact says what a conflict's challenger says. What holds, is over or adds no source does not wait."""
        conflict = self.conflict(conflict_id)
        fact = self.facts[id]
        known = [self.facts[i] for i in (conflict.challenger_id, *conflict.evidence_ids) if i in self.facts]
        if fact.status not in _EVIDENCE or fact in known:
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
        """The fact becomes evidence of the one that says the same and holds.

        What did not hold until now ends with it: nobody decided that it may hold alone.
        """
        fact = self.facts.get(id)
        head = self.facts[winner_id].corroborates or winner_id
        if fact is None or id in (winner_id, head) or fact.status in GONE:
            return
        if fact.status is not Status.CURRENT:
            self.event(id, Change.ADMITTED)
            fact = self._end_with(fact, self.facts[head])
        status = Status.EXPIRED if over(fact, self.now) else Status.CURRENT
        self.change(id, status=status, corroborates=head, superseded_by=self.facts[head].superseded_by)

    def _end_with(self, fact: Fact, head: Fact) -> Fact:
        """The fact without what of its period lies after the head's; an empty period where it all does."""
        if head.expires_at is None or (fact.expires_at is not None and fact.expires_at <= head.expires_at):
            return fact
        return self.redate(fact.id, expires_at=max(head.expires_at, fact.effective_at or head.expires_at))

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
        self._tidy(key)

    def flag_found(self, slot: Slot) -> None:
        """Opens a conflict for each current value of a slot that nobody decided about (an import, another policy)."""
        view, rules = self.view(slot), self.rules_of(slot)
        reading = read((*view.current, *view.evidence), rules, view.parents, self.now)
        if reading.current is None:
            return
        conflicts = (c for c in self.conflicts_of(slot.key) if c.kind is ConflictKind.CONFLICT)
        listed = {self._value(conflict) for conflict in conflicts}
        for other in reading.others:
            if key_of(other, rules) not in listed:
                listed.add(key_of(other, rules))
                self.escalate(slot, found_on_reading(reading.current, other), self.actor)

    def _value(self, conflict: Conflict) -> str | None:
        """What the challenger of a conflict or notice says; None for a review, and where it has been deleted."""
        fact = self.facts.get(conflict.challenger_id or "")
        return None if fact is None or fact.value is None else key_of(fact, self.rules_of(slot_of(fact)))

    # --- what always holds

    def flush(self) -> None:
        """Writes all that changed, once it is in order: whatever became of a fact, what rests on it follows here."""
        for key in list(self.touched):
            self._tidy(key)
        super().flush()

    def _tidy(self, key: str) -> None:
        heads = self._regroup(key)
        for conflict in self.conflicts_of(key):
            evidence = [self.facts[id] for id in conflict.evidence_ids if id in self.facts]
            evidence = [fact for fact in evidence if fact.status in _EVIDENCE]
            challenger = self.facts.get(conflict.challenger_id or "")
            subject_id = self._subject(conflict, challenger, heads)
            stands = challenger is None or challenger.status in _CHALLENGERS[conflict.kind]
            if stands and subject_id is not None:
                kept = replace(conflict, subject_id=subject_id, evidence_ids=tuple(fact.id for fact in evidence))
                if kept != conflict:
                    self.put_conflict(kept)
                continue
            self.withdraw(conflict.id, (challenger.id if challenger else conflict.subject_id) or "")
            if subject_id is not None or conflict.kind is ConflictKind.CONFLICT:
                self._reopen(conflict, evidence, heads)
        self._merge(key)

    def _merge(self, key: str) -> None:
        """A value has one open entry, the first, whoever opened it; a conflict takes in what a notice was about."""
        first: dict[str, Conflict] = {}
        for conflict in sorted(self.conflicts_of(key), key=lambda c: (c.kind is not ConflictKind.CONFLICT, c.id)):
            value = self._value(conflict)
            if value is None or first.setdefault(value, conflict) is conflict:
                continue
            self.withdraw(conflict.id, first[value].challenger_id or "")
            for id in (conflict.challenger_id or "", *conflict.evidence_ids):
                self.join(first[value].id, id)

    def _regroup(self, key: str) -> dict[str, str]:
        """Evidence stands by a current fact, and a successor is current: what stands now for what evidence stood by."""
        heads, risen = {}, []
        for fact in promoted(self.current(key), self.now):
            before = self.facts[fact.id].corroborates
            if before is not None and fact.corroborates != before:
                self.change(fact.id, corroborates=fact.corroborates)
                heads[before] = fact.corroborates or fact.id
                risen += [fact.id] if fact.corroborates is None else []
        for id in risen:
            self._ask_about_risen(self.facts[id])
        current = self.current(key)
        ids = {fact.id for fact in current}
        for fact in current:
            if fact.superseded_by is not None and fact.superseded_by not in ids:
                self.change(fact.id, superseded_by=None)
        return heads

    def _ask_about_risen(self, fact: Fact) -> None:
        """Evidence that holds alone by now is to be reviewed where only the owner may change the value, and has not
        said it: so is what anybody else stores there when nothing is left."""
        slot = slot_of(fact)
        rules, said = self.rules_of(slot), (fact, *self.evidence_of(fact))
        if not rules.sensitive or any(other.writer == rules.owner for other in said):
            return
        rule = Rule.SENSITIVE_UNCONFIRMED
        if not any(c.subject_id == fact.id and c.rule is rule for c in self.conflicts_of(slot.key)):
            opening = Opening(kind=ConflictKind.REVIEW, rule=rule, reason=REASONS[rule], subject_id=fact.id)
            self.escalate(slot, opening, None)

    def _subject(self, conflict: Conflict, challenger: Fact | None, heads: Mapping[str, str]) -> str | None:
        """The fact that this is about by now; None where it has lost its point.

        A review is about one fact, a notice about one value. A conflict goes on about what is in use, or will be first,
        or about nothing; where its challenger is current too, as long as a reading finds that beside what is in use.
        """
        slot, id = conflict.slot, conflict.subject_id or ""
        assert slot is not None, "it was found by its slot"
        current = {fact.id: fact for fact in self.current(slot.key)}
        if conflict.kind is ConflictKind.REVIEW:
            return id if id in current else None
        id = heads.get(id, id)
        found = challenger is not None and challenger.status is Status.CURRENT
        if id in current and not found:
            return current[id].corroborates or id
        if conflict.kind is ConflictKind.NOTICE:
            return None
        facts = list(current.values())
        reading = read(facts, self.rules_of(slot), self.parents(facts), self.now)
        if found:
            return reading.current.id if reading.current is not None and challenger in reading.others else None
        if reading.current is not None:
            return reading.current.id
        coming = [fact for fact in facts if fact.corroborates is None]
        return min(coming, key=lambda fact: (start(fact), fact.id)).id if coming else id

    def _reopen(self, conflict: Conflict, evidence: list[Fact], heads: Mapping[str, str]) -> None:
        """What said the same as a challenger that waits no more waits in a conflict of its own; of what was only kept,
        a notice is given where one is due. Nothing takes effect by it."""
        waiting = [fact for fact in evidence if fact.status is Status.DISPUTED]
        if waiting:
            first = waiting[0]
            opening = Opening(
                kind=conflict.kind,
                rule=conflict.rule,
                reason=conflict.reason,
                subject_id=self._subject(conflict, first, heads),
                challenger_id=first.id,
            )
            others = tuple(fact.id for fact in evidence if fact is not first)
            self.escalate(conflict.slot, opening, Actor(id=first.writer), others)
            return
        for fact in evidence:
            slot, writer = slot_of(fact), Actor(id=fact.writer)
            ruling = decide(self.view(slot, fact), fact, writer, self.rules_of(slot), self.now)
            if ruling.outcome is Outcome.KEPT:
                for opening in ruling.open:
                    self.escalate(slot, opening, writer)
                if ruling.join is not None:
                    self.join(ruling.join, fact.id)

    def _log(self, slot: Slot, fact: Fact, ruling: Ruling, anew: bool = False) -> str:
        inputs: dict[str, Any] = {**ruling.inputs, "fact": fact.id}
        if anew:
            inputs["cause"] = Rule.DECIDED_ANEW.value
        return self.log("conflict", ruling.rule.value, ruling.reason, ruling.outcome.value, inputs, slot)


def _same_testimony(left: Fact, right: Fact) -> bool:
    """Whether one source says the same of the same period twice."""
    dates = (left.effective_at, left.expires_at) == (right.effective_at, right.expires_at)
    return dates and source_key(left.source) == source_key(right.source)
