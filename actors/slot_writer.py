"""The writing side of a shard: takes facts in, retires them, and knows which of a slot's facts may be handed out.

Everything here runs on the shard's writing thread, inside a transaction, unless it says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import sqlalchemy as sa

from muniment.actors.clock import Clock
from muniment.actors.ids import new_id
from muniment.actors.ports import Record
from muniment.actors.slot_book import SlotBook
from muniment.actors.slot_pages import LIVE, SlotNote, SlotPages
from muniment.actors.slot_reader import any_unlisted, dispute_about
from muniment.actors.store import conflict_store, memory_store, outbox_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import ERASED, DecisionLog
from muniment.actors.store.memory_store import Stored
from muniment.actors.store.outbox_store import OPENED, OVERDUE, Message
from muniment.actors.tenant import Changes, Resident, Tenant, resident_of, vector_rows
from muniment.actors.wire import fact_from_dict, fact_to_dict, source_to_dict
from muniment.policies.access import covers
from muniment.policies.audit import overdue_reviews
from muniment.policies.authority import Actor, key_of, owner_of, review_date
from muniment.policies.errors import Forbidden, NotFound, StateConflict
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.model import Fact, Slot, Source, Status, Tier
from muniment.policies.precedence_policy import UNASSIGNED, PrecedencePolicy, SlotRules, resolve
from muniment.policies.slot_history import Change, Reading, RulesAt, read
from muniment.policies.weighing import over

log = logging.getLogger(__name__)

#: Sources of evidence that are handed out with a fact, the newest; all are kept.
_EVIDENCE_SHOWN: Final = 20
_RULES_CACHED: Final = 20_000
_REVIEWS_AT_ONCE: Final = 500
#: Writes between two looks for answers whose time is over.
_FORGET_EVERY: Final = 32
#: Who acts where nobody asked: a reading, or the system itself.
_NOBODY: Final[Record] = {"id": "muniment", "groups": [], "may_claim_record": False}


class Policies(Protocol):
    """Where what is written for a company comes from: its precedence policy, its memory policy, its threshold."""

    def current(self, company: str) -> tuple[int, PrecedencePolicy]:
        """The newest version and its number, 0 and the default policy where none was written."""
        ...

    def known(self, company: str) -> tuple[int, PrecedencePolicy]:
        """The same, as it was when it was last asked."""
        ...

    def memory(self, company: str) -> MemoryPolicy:
        """The memory policy, as it was when it was last asked."""
        ...

    def threshold(self, company: str, model: str) -> float:
        """The gate's threshold under an embedding model, as it was when it was last asked."""
        ...

    async def refresh(self, company: str) -> bool:
        """Has ``known``, ``memory`` and ``threshold`` say what holds now; False where that cannot be asked."""
        ...

    def require_open(self, company: str, since: int | None) -> None:
        """Raises ``NotFound`` where the company was erased, or made anew after ``since`` (None: whenever it was)."""
        ...

    def rules_at(self, slot: Slot) -> RulesAt:
        """The slot's rules as the policy stood at a moment."""
        ...


@dataclass(slots=True)
class Written:
    """A write's answer, what it does to the indexes once it is committed, whether owners are told outside,
    how many facts each tier gave up, and how many essential ones L2 took in above its capacity."""

    answer: Record
    changes: Changes = field(default_factory=Changes)
    told_outside: bool = False
    evictions: dict[Tier, int] = field(default_factory=dict)
    overflowed: int = 0


class SlotWriter:
    """See the module."""

    def __init__(self, policies: Policies, clock: Clock, floor: datetime | None = None, role: str = "") -> None:
        """``floor``: a time at which something was recorded already. ``role``: the shard that is to tell owners
        outside what opens; empty: nobody is told."""
        self._policies = policies
        self._clock = clock
        self._role = role
        self._last = floor or datetime.min.replace(tzinfo=clock().tzinfo)
        #: With the policy that they are of: versions begin anew in a company that has the name of an erased one.
        self._rules: dict[tuple[str, Slot], tuple[PrecedencePolicy, SlotRules]] = {}
        self._remembered = 0
        self.log = DecisionLog(t.decisions, t.decision_heads)

    def not_before(self, moment: datetime) -> None:
        """Nothing is recorded at or before ``moment`` any more: something was, by another shard."""
        self._last = max(self._last, moment)

    # --- writing

    def remember(
        self,
        connection: sa.Connection,
        tenant: Tenant,
        company: str,
        facts: Sequence[Record],
        vectors: bytes,
        actor: Record,
        model: str,
        request: Record | None = None,
    ) -> Written:
        """Takes facts in: ``{"results": [{id, outcome, rule, decision_id?, conflict_id?, warnings?}…]}``, in order.

        ``actor``: ``{id, groups, may_claim_record}``. ``request``: ``{key, hash, named}``; the same one gets the first
        answer again, for long where its caller ``named`` it. Raises ``IdempotencyMismatch``.
        """
        book = self.book(connection, company, actor)
        before = self.answered(connection, company, request, book)
        if before is not None:
            return Written(before)
        rows = vector_rows(vectors, len(facts))
        memory_store.claim_model(connection, model, len(rows[0]) // 4)
        told = [self._received(record, company, book) for record in facts]
        book.open(fact.slot for fact in told if fact.slot is not None)
        results = [self._told(book, fact) for fact in told]
        vector_of = {fact.id: row for fact, row in zip(told, rows, strict=True)}
        written = Written({"results": results})
        self.store(connection, tenant, book, [book.facts.get(fact.id, fact) for fact in told], vector_of, written)
        self.remember_answer(connection, company, request, book, written)
        return written

    def remember_rejected(self, connection: sa.Connection, company: str, actor: Record, request: Record) -> Record:
        """The answer ``{"results": []}`` to a request of which everything was rejected before it came here, kept for
        its key. Raises ``IdempotencyMismatch``."""
        book = self.book(connection, company, actor)
        before = self.answered(connection, company, request, book)
        if before is not None:
            return before
        written = Written({"results": []})
        self.remember_answer(connection, company, request, book, written)
        return written.answer

    def answered(
        self, connection: sa.Connection, company: str, request: Record | None, book: SlotBook
    ) -> Record | None:
        """The answer that this request got before. Raises ``IdempotencyMismatch``."""
        if request is None:
            return None
        return memory_store.remembered_answer(connection, company, request["key"], request["hash"], book.now)

    def remember_answer(
        self, connection: sa.Connection, company: str, request: Record | None, book: SlotBook, written: Written
    ) -> None:
        """Keeps the answer for the request's key; now and then drops some that nobody can ask for any more."""
        if request is None:
            return
        kept = memory_store.REMEMBERED if request["named"] else memory_store.REMEMBERED_UNNAMED
        until = book.now + kept
        memory_store.remember_answer(connection, company, request["key"], request["hash"], until, written.answer)
        self._remembered += 1
        if self._remembered % _FORGET_EVERY == 0:
            memory_store.forget_answers(connection, book.now, 4 * _FORGET_EVERY)

    def _received(self, record: Record, company: str, book: SlotBook) -> Fact:
        now = book.tick()
        fact = fact_from_dict({**record, "id": new_id("f", now), "company": company, "recorded_at": now})
        return fact if fact.slot is None else replace(fact, review_at=review_date(fact, book.rules_of(fact.slot)))

    def _told(self, book: SlotBook, fact: Fact) -> Record:
        if fact.slot is None:
            return {"id": fact.id, "outcome": "stored"}
        ruling, decision_id, conflict_id = book.tell(fact)
        result: Record = {"id": fact.id, "outcome": ruling.outcome.value, "rule": ruling.rule.value}
        optional = {
            "reason": ruling.reason if decision_id else None,
            "decision_id": decision_id,
            "conflict_id": conflict_id,
            "warnings": list(ruling.warnings) or None,
        }
        return result | {name: value for name, value in optional.items() if value is not None}

    def retire(
        self,
        connection: sa.Connection,
        tenant: Tenant,
        company: str,
        id: str,
        status: str,
        reason: str,
        actor: Record,
        own_only: bool,
        request: Record | None = None,
    ) -> Written:
        """Deletes or expires a fact: it is handed out no more. ``own_only``: only what the actor owns.

        Of a deleted fact nothing stays but that there was one. A conflict goes on without its incumbent; one whose
        challenger is gone, and what was open about the fact itself, is withdrawn. Raises ``NotFound`` for what the
        actor may not see, ``Forbidden`` for what it may not change.
        """
        book = self.book(connection, company, actor)
        before = self.answered(connection, company, request, book)
        if before is not None:
            return Written(before)
        fact = self.retirable(connection, book, id, actor, own_only)
        new = Status(status)
        inputs: dict[str, Any] = {"fact": id}
        if new is Status.EXPIRED:
            self._expire(connection, book, fact)
        else:
            blank = Source(kind=fact.source.kind)
            book.change(id, status=new, text="", value=None, entities=(), tags=(), metadata={}, source=blank)
            memory_store.delete_vector(connection, id)
            book.event(id, Change.DELETED)
            book.lose(id)
            if fact.slot is not None:
                inputs[ERASED] = self._erase_named(connection, company, [id], (id, fact.slot.subject, fact.slot.field))
                conflict_store.forget_value(connection, company, fact.slot.key, id)
        if fact.slot is None:
            book.withdraw_about(id, id)
        # That a user had a fact of this slot is deleted with the fact.
        slot = fact.slot if new is Status.EXPIRED or fact.user is None else None
        decision_id = book.log("retirement", new.value, reason, new.value, inputs, slot)
        written = Written({"id": id, "status": new.value, "decision_id": decision_id})
        self.store(connection, tenant, book, [], {}, written)
        self.remember_answer(connection, company, request, book, written)
        return written

    def _expire(self, connection: sa.Connection, book: SlotBook, fact: Fact) -> None:
        """The fact no longer holds; nor does what else says the same of it, or it would rise in its place."""
        if fact.status not in LIVE or over(fact, book.now):
            raise StateConflict(f"the fact is {expired_at(fact, book.now).status.value} already")
        ending = {fact.id: fact}
        if fact.slot is not None and fact.status is Status.CURRENT and fact.corroborates is None:
            value = key_of(fact, book.rules_of(fact.slot))
            told = memory_store.slot_facts(connection, book.company, [fact.slot.key])[fact.slot.key]
            told = [f for f in told if f.value is not None and key_of(f, book.rules_of(fact.slot)) == value]
            while more := [f for f in told if f.id not in ending and {f.corroborates, f.superseded_by} & ending.keys()]:
                ending.update({f.id: f for f in more})
        book.fetch(ending)
        for other in ending:
            ended = book.redate(
                other, Change.EXPIRED, expires_at=min(book.now, book.facts[other].expires_at or book.now)
            )
            if ended.status in LIVE:
                book.change(other, status=Status.EXPIRED)
            book.lose(other)

    def retirable(self, connection: sa.Connection, book: SlotBook, id: str, actor: Record, own_only: bool) -> Fact:
        """The fact, its slot opened; ``retire`` says what it raises."""
        fact = memory_store.get_facts(connection, book.company, [id]).get(id)
        if fact is None or fact.status is Status.DELETED or not fact.visible_to(actor["id"]):
            raise NotFound("there is no such fact")
        owner = self.owner(book.company, fact)
        if own_only and owner not in (actor["id"], UNASSIGNED, *actor["groups"]):
            raise Forbidden("the fact belongs to somebody else")
        if fact.slot is not None:
            book.open([fact.slot])
        return book.facts.setdefault(id, fact)

    def erase_user(self, connection: sa.Connection, tenant: Tenant, company: str, user: str, actor: Record) -> Written:
        """Deletes a user's personal facts for good, with their history: counts."""
        book = self.book(connection, company, actor)
        ids = memory_store.ids_of_user(connection, company, user)
        slots = {slot for slot in ids.values() if slot is not None}
        for id in ids:
            book.lose(id)
        book.flush()
        moved = self._erase_named(connection, company, ids)
        written = Written({"erased": {"facts": len(ids), "conflicts": 0}})
        tenant.plan_remove(ids, written.changes)
        written.answer["erased"]["conflicts"] = conflict_store.delete_of_user(connection, company, user, slots)
        memory_store.delete_facts(connection, list(ids))
        inputs = {"facts": len(ids), ERASED: [*moved, *self.log.erase(connection, company, user=user)]}
        book.log("erasure", "user_erased", "A user's personal facts were erased.", "deleted", inputs)
        self._end(connection, book, written)
        written.changes.notes.update(dict.fromkeys(slots))
        return written

    def _erase_named(
        self, connection: sa.Connection, company: str, ids: Iterable[str], *places: tuple[str, str, str]
    ) -> list[str]:
        """Erases the details of decisions about these facts, also in slots that a ruling has moved them out of.

        ``places``: where else, as ``(fact, subject, field)``.
        """
        named = sorted({*places, *conflict_store.challenged(connection, company, ids)})
        return [
            decision
            for id, subject, field in named
            for decision in self.log.erase(connection, company, naming=id, subject=subject, field=field)
        ]

    def flag(self, connection: sa.Connection, tenant: Tenant, company: str, slots: Sequence[Slot]) -> Written:
        """Opens conflicts for values of these slots that nobody decided about."""
        book = self.book(connection, company, _NOBODY)
        for slot in slots:
            book.flag_found(slot)
        written = Written({})
        self.store(connection, tenant, book, [], {}, written)
        return written

    def review_due(self, connection: sa.Connection, tenant: Tenant, company: str) -> Written:
        """Opens a review of what has passed its review date, and withdraws what was open about what is over; nothing is
        deleted."""
        book = self.book(connection, company, _NOBODY)
        ended = memory_store.over_but_open(connection, company, book.now, _REVIEWS_AT_ONCE)
        book.open(fact.slot for fact in ended if fact.slot is not None)
        for fact in ended:
            if fact.slot is None:
                book.facts.setdefault(fact.id, fact)
                book.withdraw_about(fact.id, fact.id)
        due = memory_store.due_for_review(connection, company, book.now, _REVIEWS_AT_ONCE)
        book.open(fact.slot for fact in due if fact.slot is not None)
        for fact in due:
            book.facts.setdefault(fact.id, fact)
        openings = overdue_reviews([book.facts[fact.id] for fact in due], book.rules_of, (), book.now)
        for opening in openings:
            book.escalate(book.facts[opening.subject_id or ""].slot, opening, None)
        written = Written({"opened": len(openings)})
        self.store(connection, tenant, book, [], {}, written)
        return written

    # --- what a write leaves behind

    def store(
        self,
        connection: sa.Connection,
        tenant: Tenant,
        book: SlotBook,
        told: Sequence[Fact],
        vector_of: dict[str, bytes],
        written: Written,
    ) -> None:
        """Writes rows, and plans what the indexes hold: current facts that corroborate nothing, and no others."""
        book.flush()
        new = [book.facts.get(fact.id, fact) for fact in told]
        old = [fact for fact in book.changed() if fact.id not in vector_of]
        gone = [fact.id for fact in old if not _indexed(fact)]
        tiers: dict[str, Tier | None] = dict.fromkeys(tenant.plan_remove(gone, written.changes))
        risen = [fact for fact in old if _indexed(fact)]
        # What is told again comes back into memory, also where it had been evicted.
        again = {f.corroborates for f in new if f.status is Status.CURRENT and f.corroborates is not None}
        again -= {*tenant.residents, *(f.id for f in (*risen, *new))}
        risen += [book.facts[id] for id in sorted(again) if _indexed(book.facts[id])]
        store_vectors = memory_store.get_vectors(
            connection, book.company, [f.id for f in risen if f.id not in tenant.residents]
        )
        incoming = []
        for fact in (*risen, *(fact for fact in new if _indexed(fact))):
            if fact.id in tenant.residents:
                tenant.plan_replace(fact, written.changes)
            else:
                vector = vector_of.get(fact.id) or store_vectors[fact.id]
                incoming.append(resident_of(Stored(fact, None, 0, vector), Tier.L1, tenant.extraction))
        features = tenant.features_of(incoming)
        overflow = tenant.overflow
        placement = tenant.plan_add(incoming, written.changes)
        written.overflowed = max(0, placement.overflow - overflow)
        if written.overflowed:
            book.log(
                "eviction",
                "essential_kept",
                "The archive is full of essential facts and grows; nothing essential is deleted.",
                "kept",
                {"overflow": placement.overflow},
            )
        tiers |= placement.tiers
        moved = sum(tier is Tier.L2 for tier in placement.tiers.values())
        written.evictions = {Tier.L1: moved, Tier.L2: len(placement.evicted)}
        forgotten = self._forgettable(connection, book, placement.evicted)
        kept = [fact for fact in new if fact.id not in forgotten]
        memory_store.insert_facts(
            connection, [Stored(f, tiers.get(f.id), 0, vector_of[f.id], features.get(f.id)) for f in kept]
        )
        fresh = {fact.id for fact in new}
        memory_store.set_features(connection, {id: found for id, found in features.items() if id not in fresh})
        memory_store.set_tiers(
            connection, {i: tier for i, tier in tiers.items() if i not in fresh and i not in forgotten}
        )
        memory_store.delete_facts(connection, sorted(forgotten - fresh))
        self._end(connection, book, written)

    def _end(self, connection: sa.Connection, book: SlotBook, written: Written) -> None:
        written.changes.notes.update(book.notes())
        if self._role:
            written.told_outside = self._tell_outside(connection, book)
        self.log.append(connection, f"memory:{book.company}", book.company, book.decisions)

    def _tell_outside(self, connection: sa.Connection, book: SlotBook) -> bool:
        """Puts what was opened into the outbox, and what will be overdue; whether there was anything."""
        messages = []
        for conflict in book.opened():
            url = book.rules_of(conflict.slot).webhook if conflict.slot is not None else None
            if url is None:
                continue
            events = [(OPENED, book.now), *([(OVERDUE, conflict.due_at)] if conflict.due_at is not None else [])]
            messages += [
                Message(
                    id=new_id("m", book.now),
                    company=book.company,
                    role=self._role,
                    event=event,
                    conflict_id=conflict.id,
                    url=url,
                    next_at=at,
                )
                for event, at in events
            ]
        left_out = outbox_store.add(connection, messages)
        if left_out:
            log.error("%d messages to owners were dropped: too many are waiting", left_out)
        return bool(messages)

    def _forgettable(self, connection: sa.Connection, book: SlotBook, evicted: Iterable[Resident]) -> set[str]:
        """Of what left the archive, the facts that are deleted for good: those of no slot and in no open conflict."""
        slotless = {r.fact.id for r in evicted if r.fact.slot is None}
        return slotless - conflict_store.involved(connection, book.company, slotless) if slotless else slotless

    def book(self, connection: sa.Connection, company: str, actor: Record) -> SlotBook:
        """The slots of a company as one transaction of this actor sees and changes them."""
        version, rules_of = self._rules_in_force(company)
        return SlotBook(connection, company, rules_of, version, _actor(actor), self._tick)

    def _rules_in_force(self, company: str) -> tuple[int, Callable[[Slot], SlotRules]]:
        version, policy = self._policies.known(company)
        return version, lambda slot: self._rules_of(company, policy, slot)

    def _tick(self) -> datetime:
        """The time, later at each call, so that the order of recording is never in doubt."""
        self._last = max(self._clock(), self._last + timedelta(microseconds=1))
        return self._last

    # --- reading; also from the event loop's thread

    def now(self) -> datetime:
        """The time at which all that was written so far counts as written."""
        return max(self._clock(), self._last)

    def rules(self, company: str, slot: Slot) -> SlotRules:
        """What the company's policy says of a slot, as it was when it was last asked."""
        return self._rules_of(company, self._policies.known(company)[1], slot)

    def _rules_of(self, company: str, policy: PrecedencePolicy, slot: Slot) -> SlotRules:
        known, rules = self._rules.get((company, slot), (None, None))
        if rules is None or known is not policy:
            if len(self._rules) >= _RULES_CACHED:
                self._rules.clear()
            rules = resolve(policy, slot)
            self._rules[company, slot] = (policy, rules)
        return rules

    def owner(self, company: str, fact: Fact) -> str:
        """Who answers for a fact (``authority.owner_of``)."""
        return owner_of(fact, lambda slot: self.rules(company, slot))

    def load_notes(self, connection: sa.Connection, company: str) -> dict[str, SlotNote | None]:
        """What searches must know of the slots of a company in which more than one fact speaks."""
        slots = {slot.key: slot for slot in memory_store.crowded_slots(connection, company)}
        disputed = conflict_store.open_conflicts(connection, company)
        slots.update({conflict.slot.key: conflict.slot for conflict in disputed if conflict.slot is not None})
        self._policies.current(company)  # a load has not asked what is in force, as every write has
        version, rules_of = self._rules_in_force(company)
        pages = SlotPages(connection, company, rules_of, version, _actor(_NOBODY), self._tick)
        pages.read(slots.values())
        pages.touch(slots.values())
        return pages.notes()

    def admission(self, company: str, tenant: Tenant, now: datetime) -> Callable[[str, Resident], bool]:
        """Whether a fact of the slot with a key may be handed out: of several current ones, only the one in force."""
        readings: dict[str, Reading] = {}

        def admit(key: str, resident: Resident) -> bool:
            note = tenant.notes.get(key)
            slot = resident.fact.slot
            if slot is None or note is None:
                return True
            if key not in readings:
                readings[key] = read(note.facts, self.rules(company, slot), note.parents, now)
            current = readings[key].current
            return current is not None and current.id == resident.fact.id

        return admit

    def undecided(self, company: str, tenant: Tenant, facts: Iterable[Fact], now: datetime) -> list[Slot]:
        """The slots of these facts in which a second value is current and on nobody's list."""
        found = []
        for fact in facts:
            slot = fact.slot
            note = tenant.notes.get(slot.key) if slot else None
            if slot is None or note is None:
                continue
            rules = self.rules(company, slot)
            others = read(note.facts, rules, note.parents, now).others
            if others and any_unlisted(others, note.conflicts, rules):
                found.append(slot)
        return found

    def handed_out(self, company: str, tenant: Tenant, fact: Fact, bound: Record) -> Record:
        """A fact for an answer: with its owner, the sources that corroborate it, and a dispute where one is open.

        ``bound``: the area and agent that the reader may see evidence of, as far as it is bound to one.
        """
        slot = fact.slot
        note = tenant.notes.get(slot.key) if slot else None
        answer: Record = {"fact": fact_to_dict(fact), "owner": self.owner(company, fact), "evidence": []}
        if note is None:
            return answer
        evidence = [f for f in note.facts if f.corroborates == fact.id]
        evidence = [f for f in evidence if all(covers(label, getattr(f, name)) for name, label in bound.items())]
        answer["evidence"] = [source_to_dict(f.source) for f in evidence[-_EVIDENCE_SHOWN:]]
        dispute = dispute_about(fact, note.conflicts)
        if dispute is not None:
            answer["dispute"] = {"conflict_id": dispute[0].id, "other": fact_to_dict(dispute[1])}
        return answer


def _actor(record: Record) -> Actor:
    return Actor(id=record["id"], groups=frozenset(record["groups"]), may_claim_record=record["may_claim_record"])


def _indexed(fact: Fact) -> bool:
    return fact.status is Status.CURRENT and fact.corroborates is None


def expired_at(fact: Fact, now: datetime) -> Fact:
    """The fact as it is shown: a current one whose period has ended is expired."""
    over = fact.status is Status.CURRENT and fact.expires_at is not None and fact.expires_at <= now
    return replace(fact, status=Status.EXPIRED) if over else fact
