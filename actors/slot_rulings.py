"""What people decide in a shard: an owner's ruling on a conflict, and the correction of a fact.

As in ``SlotWriter``, everything runs on the shard's writing thread, inside a transaction.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from muniment.actors.ids import new_id
from muniment.actors.ports import Record
from muniment.actors.slot_book import SlotBook
from muniment.actors.slot_writer import SlotWriter, Written
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store.conflict_store import OPEN, RESOLVED, Conflict
from muniment.actors.tenant import Tenant
from muniment.actors.wire import fact_to_dict, to_rfc3339
from muniment.policies.authority import key_of, losing_pair, may_rule
from muniment.policies.errors import AlreadyRuled, Forbidden, InvalidInput, NotFound, StateConflict
from muniment.policies.model import Fact, Scope, Slot, Source, SourceKind, Status
from muniment.policies.precedence import consequences
from muniment.policies.rulings import Decision, FactChange, Rescope, Resolution, RulingPlan, rule_on
from muniment.policies.slot_history import Change
from muniment.policies.slot_view import PastRuling


class SlotRulings:
    """Carries out rulings and corrections through a ``SlotWriter``."""

    def __init__(self, writer: SlotWriter) -> None:
        self._writer = writer

    def resolve(
        self,
        connection: sa.Connection,
        tenant: Tenant,
        company: str,
        conflict_id: str,
        resolution: Record,
        actor: Record,
        rules_all: bool,
        vector: bytes | None = None,
        request: Record | None = None,
    ) -> Written:
        """Carries out a ruling: ``{id, status, decision, decision_id, current?}``.

        ``resolution``: as in API.md, times aware. ``rules_all``: the actor may rule on any slot. ``vector``: of the
        text of a new value. Raises ``NotFound``, ``Forbidden``, ``AlreadyRuled``, ``InvalidInput``.
        """
        book = self._writer.book(connection, company, actor)
        before = self._writer.answered(connection, company, request, book)
        if before is not None:
            return Written(_again(connection, company, before))
        conflict = conflict_store.get_conflict(connection, company, conflict_id)
        if conflict is None:
            raise NotFound("there is no such conflict")
        self._check(book, conflict, rules_all)
        given = _resolution(resolution)
        if conflict.slot is None:
            written = Written(self._close_slotless(book, conflict, given))
            told: list[Fact] = []
        else:
            plan = self._plan(book, conflict, conflict.slot, given)
            told = [plan.new_fact] if plan.new_fact is not None else []
            written = Written(self._carry_out(book, conflict, conflict.slot, plan, given))
        self._writer.store(connection, tenant, book, told, {f.id: vector or b"" for f in told}, written)
        kept = replace(written, answer=_without_content(written.answer))
        self._writer.remember_answer(connection, company, request, book, kept)
        return written

    def _check(self, book: SlotBook, conflict: Conflict, rules_all: bool) -> None:
        if conflict.slot is not None and not rules_all:
            rules = book.rules_of(conflict.slot)
            allowed = may_rule(rules, book.actor, conflict.opened_at, book.now)
        else:
            allowed = rules_all or conflict.owner == book.actor.id or conflict.owner in book.actor.groups
        if not allowed:
            raise Forbidden("the slot belongs to somebody else", owner=conflict.owner)
        if conflict.status != OPEN:
            raise AlreadyRuled(
                f"the conflict is {conflict.status}", status=conflict.status, resolution=_shown(conflict.resolution)
            )

    def _plan(self, book: SlotBook, conflict: Conflict, slot: Slot, given: Resolution) -> RulingPlan:
        book.take([conflict])
        book.open([slot])
        conflict = book.conflict(conflict.id)
        if conflict.status != OPEN:
            raise StateConflict("time has settled the conflict")
        joined = tuple(book.facts[id] for id in conflict.evidence_ids if id in book.facts)
        joined = tuple(fact for fact in joined if fact.status in _MAY_RISE)
        challenger = book.facts.get(conflict.challenger_id or "")
        return rule_on(
            conflict.opened(challenger),
            given,
            book.view(slot),
            joined,
            book.actor,
            book.rules_of(slot),
            book.now,
            new_id("f", book.now),
        )

    def _carry_out(self, book: SlotBook, conflict: Conflict, slot: Slot, plan: RulingPlan, given: Resolution) -> Record:
        conflict = book.conflict(conflict.id)
        if plan.new_fact is not None:
            book.put_new(plan.new_fact)
        winner = plan.new_fact
        for change in plan.changes:
            _apply(book, change)
            if change.change is Change.WON_RULING:
                winner = book.facts[change.fact_id]
        for id in plan.lost:
            book.lose(id)
        if plan.past is not None:
            book.rule(conflict.id, slot, plan.past)
        book.put_conflict(conflict.ended(RESOLVED, _ending(book, given, plan.new_fact)))
        if plan.rescoped is not None:
            winner = self._rescope(book, conflict, plan.rescoped, plan.moves)
        if winner is not None:
            book.follow(slot, winner, plan.consequences)
        decision_id = book.log("ruling", plan.decision.value, plan.reason, plan.decision.value, dict(plan.inputs), slot)
        answer: Record = {
            "id": conflict.id,
            "status": RESOLVED,
            "decision": plan.decision.value,
            "decision_id": decision_id,
        }
        if winner is not None:
            answer["current"] = fact_to_dict(book.facts[winner.id])
        return answer

    def _rescope(self, book: SlotBook, conflict: Conflict, rescoped: Fact, moves: bool) -> Fact:
        """The challenger as the owner sees it; what said the same goes with it into its period, or has lost here."""
        before = book.facts[rescoped.id]
        evidence = [f.id for f in book.evidence_of(before)]
        evidence += [id for id in conflict.evidence_ids if id in book.facts and book.facts[id].status in _MAY_RISE]
        if moves:
            book.move(rescoped, book.actor)
            for id in evidence:
                book.change(id, status=Status.SUPERSEDED, superseded_by=rescoped.id, corroborates=None)
                book.event(id, Change.LOST_RULING)
            return book.facts[rescoped.id]
        for id in (rescoped.id, *evidence):
            known = book.redate(id, effective_at=rescoped.effective_at, expires_at=rescoped.expires_at)
            head = None if id == rescoped.id else rescoped.id
            book.change(id, status=rescoped.status, corroborates=head, superseded_by=None)
            if known.status is Status.DISPUTED:
                book.event(id, Change.ADMITTED)
        return book.facts[rescoped.id]

    def _close_slotless(self, book: SlotBook, conflict: Conflict, given: Resolution) -> Record:
        """A review of a fact without a slot: somebody looked at it. What is wrong is corrected or deleted."""
        if given.decision not in (Decision.KEEP_INCUMBENT, Decision.DISMISS):
            raise InvalidInput.at("/decision", "a review of a fact without a slot is kept or dismissed")
        book.put_conflict(conflict.ended(RESOLVED, _ending(book, given)))
        inputs = {"conflict": conflict.id, "fact": conflict.subject_id, "note": given.note}
        reason = "Somebody looked at it."
        decision_id = book.log("ruling", given.decision.value, reason, given.decision.value, inputs)
        return {
            "id": conflict.id,
            "status": RESOLVED,
            "decision": given.decision.value,
            "decision_id": decision_id,
        }

    def correct(
        self,
        connection: sa.Connection,
        tenant: Tenant,
        company: str,
        id: str,
        text: str,
        value: Any,
        reason: str,
        actor: Record,
        own_only: bool,
        vector: bytes,
        request: Record | None = None,
    ) -> Written:
        """Puts the right text and value in a wrong fact's place: ``{id, status, decision_id, corrected}``.

        The wrong one was never true: its history leaves it out, and the right one holds from the same date on.
        """
        book = self._writer.book(connection, company, actor)
        before = self._writer.answered(connection, company, request, book)
        if before is not None:
            return Written(before)
        wrong = self._writer.retirable(connection, book, id, actor, own_only)
        if wrong.status is not Status.CURRENT or wrong.corroborates is not None:
            raise StateConflict(f"the fact is {wrong.status.value}; only one that is in use can be corrected")
        if (value is None) != (wrong.slot is None):
            raise InvalidInput.at("/value", "a fact of a slot needs a value, and another has none")
        now = book.tick()
        right = replace(
            wrong,
            id=new_id("f", now),
            text=text,
            value=value,
            source=Source(kind=SourceKind.AUTHORIZED_PERSON, author=actor["id"], role="correction"),
            writer=wrong.writer if wrong.scope is Scope.PERSONAL else actor["id"],
            recorded_at=now,
            effective_at=wrong.effective_at or wrong.recorded_at,
            entities=(),
        )
        if right.slot is not None:
            book.put_new(right)
        book.change(id, status=Status.CORRECTED, superseded_by=right.id)
        book.event(id, Change.CORRECTED)
        book.lose(id)
        if right.slot is not None:
            self._rule_by_correction(book, right.slot, wrong, right)
        else:
            book.withdraw_about(wrong.id, right.id)
        inputs = {"fact": id, "by": right.id}
        decision_id = book.log("correction", "corrected", reason, "corrected", inputs, right.slot)
        written = Written({"id": right.id, "status": "current", "corrected": id, "decision_id": decision_id})
        self._writer.store(connection, tenant, book, [right], {right.id: vector}, written)
        self._writer.remember_answer(connection, company, request, book, written)
        return written

    def _rule_by_correction(self, book: SlotBook, slot: Slot, wrong: Fact, right: Fact) -> None:
        """A correction is a ruling: the wrong value does not come back from its sources, and nothing older beats it.

        What waits goes on waiting, against the right value; what says the right value becomes its evidence.
        """
        rules = book.rules_of(slot)
        said_so = [f for f in book.current(slot.key) if f.corroborates == wrong.id]
        value, losers = key_of(right, rules), [wrong, *said_so]
        if key_of(wrong, rules) == value:
            losers = []
            for fact in said_so:
                book.change(fact.id, corroborates=right.id)
        for fact in losers[1:]:
            book.supersede(fact.id, right.id)
            book.event(fact.id, Change.LOST_RULING)
        book.event(right.id, Change.WON_RULING)
        pairs = frozenset(losing_pair(fact, rules) for fact in losers)
        book.rule(right.id, slot, PastRuling(at=right.recorded_at, winner_key=value, losers=pairs))
        leaving = frozenset({wrong.id, *(fact.id for fact in losers)})
        settled = consequences(book.view(slot), right, leaving, rules)
        book.follow(slot, right, replace(settled, redecide=()))


_MAY_RISE = (Status.DISPUTED, Status.SUPERSEDED)


def _apply(book: SlotBook, change: FactChange) -> None:
    if change.fact_id not in book.facts:
        return
    named = ("status", "superseded_by", "corroborates", "review_at")
    fields = {name: value for name in named if (value := getattr(change, name)) is not None}
    if fields:
        book.change(change.fact_id, **_standing(fields))
    if change.expires_at is not None:
        book.redate(change.fact_id, expires_at=change.expires_at)
    if change.change is not None:
        book.event(change.fact_id, change.change)


def _standing(fields: dict[str, Any]) -> dict[str, Any]:
    """A fact that is current by a ruling stands for itself unless it corroborates another."""
    if fields.get("status") is Status.CURRENT:
        return {"superseded_by": None, "corroborates": None, **fields}
    return fields


def _resolution(record: Record) -> Resolution:
    rescope = record.get("rescope")
    if rescope is not None:
        scope = rescope.get("scope")
        rescope = Rescope(**{**rescope, "scope": Scope(scope) if scope else None})
    fields = {name: record.get(name) for name in ("value", "text", "note")}
    return Resolution(decision=Decision(record["decision"]), rescope=rescope, **fields)


def _ending(book: SlotBook, given: Resolution, new_fact: Fact | None = None) -> Record:
    ending: Record = {"decision": given.decision.value, "by": book.actor.id, "at": book.now, "note": given.note}
    if new_fact is not None:
        ending |= {"value": new_fact.value, "fact": new_fact.id}
    return ending


#: What a fact says, which is gone with it. All else says what became of it.
_CONTENT = ("text", "value", "source", "entities", "tags", "metadata")


def _without_content(answer: Record) -> Record:
    """The answer as it is kept: what a fact says stands with the fact alone, so that it is deleted with it."""
    if "current" not in answer:
        return answer
    return {**answer, "current": {n: v for n, v in answer["current"].items() if n not in _CONTENT}}


def _again(connection: sa.Connection, company: str, kept: Record) -> Record:
    """A kept answer as it was given, without the fact where that was deleted since."""
    if "current" not in kept:
        return kept
    id = kept["current"]["id"]
    fact = memory_store.get_facts(connection, company, [id]).get(id)
    if fact is None or fact.status is Status.DELETED:
        return {name: value for name, value in kept.items() if name != "current"}
    said = {name: value for name, value in fact_to_dict(fact).items() if name in _CONTENT}
    return {**kept, "current": {**said, **kept["current"]}}


def _shown(resolution: Record | None) -> Record | None:
    """The resolution as plain JSON, for an error's fields."""
    if resolution is None:
        return None
    shown = {name: value for name, value in resolution.items() if value is not None}
    return {name: to_rfc3339(value) if isinstance(value, datetime) else value for name, value in shown.items()}
