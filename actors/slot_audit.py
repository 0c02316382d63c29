"""Looking over what lies in the slots: contradictions, due reviews, overruled fields, and another policy's opinion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from muniment.actors.slot_reader import all_known, parents_of
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.conflict_store import Conflict
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.wire import to_rfc3339
from muniment.policies.audit import Disagreement, audit, most_overruled
from muniment.policies.authority import Actor, key_of
from muniment.policies.model import Fact, Outcome, Slot, SourceKind, Status, fold
from muniment.policies.precedence import decide
from muniment.policies.precedence_policy import PrecedencePolicy, SlotRules, resolve
from muniment.policies.slot_history import SlotRecord, as_of
from muniment.policies.slot_view import SlotView
from muniment.policies.values import Comparator

#: Whether a reader may see a fact; None: every one of the company.
Within = Callable[[Fact], bool] | None

_LIVE: Final = (Status.CURRENT, Status.DISPUTED)
#: Decisions and slots that one audit or simulation looks at, the newest; and differences it lists.
_EXAMINED: Final = 10_000
_LISTED: Final = 200
#: Nothing else was in the slot; whether another scope held something is not among a decision's inputs.
_UNOPPOSED: Final = {Outcome.STORED.value, Outcome.COEXISTS.value}
_OVERRULING: Final = frozenset({"replaced", "accept_challenger", "new_value", "corrected"})


class SlotAudit:
    """Reads the store; changes nothing."""

    def __init__(self, policies: PolicyBook) -> None:
        self._policies = policies
        self._log = DecisionLog(t.decisions, t.decision_heads)

    def reviews_due(self, connection: sa.Connection, company: str, now: datetime) -> bool:
        """Whether a fact in use has passed its review date and has no review for it, or one is over and has one."""
        looks = (memory_store.due_for_review, memory_store.over_but_open)
        return any(look(connection, company, now, limit=1) for look in looks)

    def disagreements(
        self, connection: sa.Connection, company: str, subject: str | None, now: datetime
    ) -> list[Disagreement]:
        """All contradictions among facts that are current or wait, the most damaging first."""
        slots = {slot.key: slot for slot in memory_store.crowded_slots(connection, company)}
        waiting = conflict_store.open_conflicts(connection, company)
        slots.update({c.slot.key: c.slot for c in waiting if c.slot is not None})
        if subject is not None:
            slots = {key: slot for key, slot in slots.items() if fold(slot.subject) == fold(subject)}
        by_slot = memory_store.slot_facts(connection, company, list(slots), _LIVE)
        facts = [fact for group in by_slot.values() for fact in group]
        usage = memory_store.usage_of(connection, company, [fact.id for fact in facts])
        return audit(facts, usage, self._policies.rules_for(company), parents_of(connection, company, facts), now)

    def undecided(self, connection: sa.Connection, company: str, subject: str | None, now: datetime) -> list[list[str]]:
        """The slots (scope, user, subject, field) with a contradiction that is on nobody's list."""
        listed, value_of = self._listed(connection, company)
        found = {
            d.slot.key: [d.slot.scope.value, d.slot.user, d.slot.subject, d.slot.field]
            for d in self.disagreements(connection, company, subject, now)
            if value_of(d.challenger) not in listed
        }
        return list(found.values())

    def open_by_damage(
        self, connection: sa.Connection, company: str, subject: str | None, now: datetime
    ) -> list[Conflict]:
        """The open conflict of each contradiction, the most damaging first."""
        listed, value_of = self._listed(connection, company)
        values = (value_of(d.challenger) for d in self.disagreements(connection, company, subject, now))
        open_of = (listed[value] for value in values if value in listed)
        return list({conflict.id: conflict for conflict in open_of}.values())

    def _listed(
        self, connection: sa.Connection, company: str
    ) -> tuple[dict[tuple[str, str], Conflict], Callable[[Fact], tuple[str, str]]]:
        """The open conflict of each value that waits, by slot and value; and what finds a fact's place there."""
        rules_for = self._policies.rules_for(company)

        def value_of(fact: Fact) -> tuple[str, str]:
            assert fact.slot is not None, "only facts of slots disagree"
            return fact.slot.key, key_of(fact, rules_for(fact.slot))

        conflicts = conflict_store.open_conflicts(connection, company)
        waiting = {c.challenger_id: c for c in reversed(conflicts) if c.challenger_id is not None}
        facts = memory_store.get_facts(connection, company, list(waiting))
        facts = {id: fact for id, fact in facts.items() if fact.slot is not None and fact.value is not None}
        return {value_of(fact): waiting[id] for id, fact in facts.items()}, value_of

    def most_overruled(
        self, connection: sa.Connection, company: str, reader: str, within: Within
    ) -> list[tuple[str, int]]:
        """The fields whose recorded value lost most often, and how often.

        What is about a personal fact of others than ``reader`` is left out, and what is about facts that are not all
        ``within`` what it may see.
        """
        entries = self._log.newest(connection, company, _EXAMINED, kind=("conflict", "ruling", "correction"))
        entries = [e for e in entries if e.get("field") and e["outcome"] in _OVERRULING]
        seen = _seen(connection, company, entries, reader, within)
        return most_overruled((entry["field"], True) for entry in seen)

    # --- another policy

    def simulate(
        self,
        connection: sa.Connection,
        company: str,
        policy: PrecedencePolicy,
        since: datetime | None,
        now: datetime,
        reader: str,
        within: Within,
    ) -> dict[str, Any]:
        """What ``policy`` would have decided differently: ``{decisions, slots, examined}``.

        Past decisions are decided again from the facts they were made of; slots are read under both policies. At most
        200 differences of each kind are listed; ``examined`` counts what was looked at. Personal slots of others than
        ``reader`` are left out, and so is what is about facts that are not all ``within`` what it may see.
        """

        def rules_for(slot: Slot) -> SlotRules:
            return resolve(policy, slot)

        entries = self._log.newest(connection, company, _EXAMINED, kind="conflict")
        entries = [e for e in entries if since is None or e["at"] >= since]
        entries = _seen(connection, company, entries, reader, within)
        decisions = [
            difference
            for entry in entries
            if (difference := self._decided_anew(connection, company, entry, rules_for)) is not None
        ]
        examined, slots = 0, []
        for slot in memory_store.told_slots(connection, company, _EXAMINED):
            if slot.user not in ("", reader):
                continue
            told = memory_store.slot_facts(connection, company, [slot.key])[slot.key]
            if within is not None and not any(map(within, told)):
                continue
            examined += 1
            difference = self._read_anew(connection, slot, told, rules_for(slot), since, now, within)
            slots += [] if difference is None else [difference]
        return {
            "decisions": decisions[:_LISTED],
            "slots": slots[:_LISTED],
            "examined": {"decisions": len(entries), "slots": examined},
            "different": {"decisions": len(decisions), "slots": len(slots)},
        }

    def _decided_anew(
        self,
        connection: sa.Connection,
        company: str,
        entry: dict[str, Any],
        rules_for: Callable[[Slot], SlotRules],
    ) -> dict[str, Any] | None:
        inputs = entry["inputs"]
        if "challenger" not in inputs:  # a fact that was moved into an empty slot: there was nothing to weigh
            return None
        named = [inputs["challenger"], *inputs["incumbents"], *inputs["evidence"]]
        facts = memory_store.get_facts(connection, company, [f["id"] for f in named])
        challenger = facts.get(inputs["challenger"]["id"])
        slot = challenger.slot if challenger is not None else None
        if challenger is None or challenger.value is None or slot is None:
            return None
        then = _rules_then(inputs["rules"])
        incumbents = _as_they_were(facts, inputs["incumbents"])
        heads = {key_of(fact, then): fact.id for fact in reversed(incumbents)}
        evidence = [
            replace(fact, corroborates=heads[key_of(fact, then)])
            for fact in _as_they_were(facts, inputs["evidence"])
            if key_of(fact, then) in heads
        ]
        who = inputs["actor"]
        actor = Actor(id=who["id"], groups=frozenset(who["groups"]), may_claim_record=bool(who.get("may_claim_record")))
        view = SlotView(
            current=tuple(replace(fact, corroborates=None) for fact in incumbents),
            evidence=tuple(evidence),
            parents=parents_of(connection, company, facts.values()),
        )
        again = replace(challenger, status=Status.CURRENT, corroborates=None, superseded_by=None)
        before = decide(view, again, actor, then, entry["at"]).outcome
        ruling = decide(view, again, actor, rules_for(slot), entry["at"])
        # What also the rules of then do not give again was decided by what is not among the inputs: a ruling.
        repeatable = before is Outcome(entry["outcome"]) or {before.value, entry["outcome"]} == _UNOPPOSED
        if ruling.outcome is before or not repeatable:
            return None
        return {
            "decision_id": entry["id"],
            "at": to_rfc3339(entry["at"]),
            "subject": slot.subject,
            "field": slot.field,
            "outcome": entry["outcome"],
            "rule": entry["rule"],
            "would_be": {"outcome": ruling.outcome.value, "rule": ruling.rule.value, "reason": ruling.reason},
        }

    def _read_anew(
        self,
        connection: sa.Connection,
        slot: Slot,
        told: list[Fact],
        rules: SlotRules,
        since: datetime | None,
        now: datetime,
        within: Within,
    ) -> dict[str, Any] | None:
        told = [fact for fact in told if fact.status is not Status.DELETED]
        if since is not None and not any(fact.recorded_at >= since for fact in told):
            return None
        events = memory_store.get_events(connection, slot.company, [fact.id for fact in told])
        records = [SlotRecord(fact, events.get(fact.id, ())) for fact in told]
        parents = parents_of(connection, slot.company, told)
        written = self._policies.rules(slot)
        known = all_known(records, now)
        held = as_of(records, now, known, lambda _: written, parents)
        would = as_of(records, now, known, lambda _: rules, parents)
        value, other = (None if fact is None else fact.value for fact in (held, would))
        if value == other or not all(fact is None or within is None or within(fact) for fact in (held, would)):
            return None
        found = {"subject": slot.subject, "field": slot.field, "scope": slot.scope.value, "value": value}
        return {**found, "would_be": {"value": other, "fact": would.id if would is not None else None}}


def _seen(
    connection: sa.Connection, company: str, entries: list[dict[str, Any]], reader: str, within: Within
) -> list[dict[str, Any]]:
    """The decisions that are about no personal fact of others, and only about facts ``within`` what may be seen."""
    entries = [entry for entry in entries if entry.get("user") in (None, reader)]
    if within is None:
        return entries
    named = [_named(entry["inputs"]) for entry in entries]
    facts = memory_store.get_facts(connection, company, sorted({id for ids in named for id in ids}))
    seen = {id for id, fact in facts.items() if within(fact)}
    return [entry for entry, ids in zip(entries, named, strict=True) if ids and ids <= seen]


def _named(inputs: dict[str, Any]) -> set[str]:
    """The facts that a decision of a slot was about, without the evidence that stood by them."""
    weighed = [fact["id"] for name in ("incumbents", "facts") for fact in inputs.get(name, ())]
    return {*weighed, *(inputs[name] for name in ("fact", "by") if name in inputs)}


def _rules_then(record: dict[str, Any]) -> SlotRules:
    """The rules that a decision was made under, out of its inputs."""
    proposers, comparator = record["proposers"], record["comparator"]
    return SlotRules(
        ranks=tuple(tuple(SourceKind(kind) for kind in level) for level in record["ranks"]),
        owner=record["owner"],
        proposers=None if proposers is None else tuple(proposers),
        sensitive=record["sensitive"],
        self_authority=record["self_authority"],
        review_after_days=record["review_after_days"],
        comparator=None if comparator is None else Comparator(comparator),
    )


def _as_they_were(facts: dict[str, Fact], named: Sequence[dict[str, Any]]) -> list[Fact]:
    """The facts as they stood when they were weighed: in force, and with the dates of then."""
    found = []
    for record in named:
        fact = facts.get(record["id"])
        if fact is not None and fact.value is not None:
            found.append(
                replace(
                    fact,
                    status=Status.CURRENT,
                    superseded_by=None,
                    expires_at=_time(record["expires_at"]),
                    review_at=_time(record["review_at"]),
                )
            )
    return found


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
