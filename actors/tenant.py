"""One company's working set in a shard: what its two tiers hold, searchable under a visibility mask.

There are two layers. ``residents`` is the plan: which fact is in which tier, changed while a write is being decided.
The tiers' indexes are what searches see: changed only after the commit, by ``apply``. So nothing uncommitted is ever
returned, and of several writes in one transaction each sees what those before it decided.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from muniment.actors import kept_features
from muniment.actors.kept_features import Kept
from muniment.actors.lexical_index import Corpus, LexicalIndex
from muniment.actors.slot_pages import SlotNote
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.memory_store import Stored
from muniment.actors.tier_index import Kind, TierIndex
from muniment.policies.extraction import DEFAULT, Extraction
from muniment.policies.model import Fact, Slot, Tier, fold
from muniment.policies.retention import RetentionSettings, TierView, plan_evictions
from muniment.policies.terms import fold_accents

_EVER: Final = np.iinfo(np.int64).max
_SHARED: Final = 0
# Facts are a sentence or a log line: a term's repetition and the text's length say less there than in documents.
_BM25_K1: Final = 0.6
_BM25_B: Final = 0.4


@dataclass(slots=True)
class Resident:
    """A fact that is in a tier, with what ranking needs of it. ``vector``: (d,) float32 in C order.

    ``terms``: packed, see ``kept_features``. ``kept``: the store has these features.
    """

    fact: Fact
    tier: Tier
    usage: int
    last_used: int
    entities: frozenset[str]
    terms: bytes
    folded: str
    vector: bytes
    kept: bool


def resident_of(stored: Stored, tier: Tier, extraction: Extraction = DEFAULT) -> Resident:
    """The resident that a stored fact is; its features are found anew where the store has none by ``extraction``."""
    fact = stored.fact
    kept = kept_features.from_store(stored.features, extraction)
    entities, terms = kept or kept_features.find(fact, extraction)
    return Resident(
        fact,
        tier,
        stored.usage,
        microseconds(fact.recorded_at),
        entities,
        terms,
        fold_accents(fact.text),
        stored.vector,
        kept is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Who looks, when, and through which filters; all of it applies before the top-k cut (rule 2)."""

    now: datetime
    user: str | None = None
    subject: str | None = None
    field: str | None = None
    area: str | None = None
    agent: str | None = None
    source_kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    min_importance: float | None = None

    def labels(self) -> list[frozenset[tuple[str, str]]]:
        """The filters by label: of each set, one must be there."""
        wanted: list[frozenset[tuple[str, str]]] = []
        for name in ("subject", "field", "area", "agent"):
            value = getattr(self, name)
            if value is not None:
                wanted.append(frozenset({(name, fold(value))}))
        if self.source_kinds:
            wanted.append(frozenset(("kind", kind) for kind in self.source_kinds))
        wanted += [frozenset({("tag", fold(tag))}) for tag in self.tags]
        return wanted


def labels_of(fact: Fact) -> set[tuple[str, str]]:
    """The labels that filters ask for."""
    found = {("kind", fact.source.kind.value)} | {("tag", fold(tag)) for tag in fact.tags}
    for name in ("subject", "field", "area", "agent"):
        value = getattr(fact, name)
        if value is not None:
            found.add((name, fold(value)))
    return found


class TierSpace:
    """One tier as searches see it: vectors, words, and columns of what searches read, on shared positions."""

    def __init__(self, dimension: int, kind: Kind, corpus: Corpus) -> None:
        self.index = TierIndex(dimension, kind)
        self.positions = self.index.positions
        self.lexical = LexicalIndex(self.positions, _BM25_K1, _BM25_B, corpus)
        self._user = self.positions.column(np.int32, _SHARED)
        self._from = self.positions.column(np.int64, 0)
        self._until = self.positions.column(np.int64, _EVER)
        self.importance = self.positions.column(np.float64, 0.0)
        self.residents = self.positions.column(np.object_, None)
        #: The keys of the facts' slots; None for free text.
        self.slots = self.positions.column(np.object_, None)
        self._users: dict[str, int] = {}
        self._labelled: dict[tuple[str, str], set[str]] = {}

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, residents: Sequence[Resident]) -> None:
        """Adds facts, or replaces those that are there."""
        if not residents:
            return
        with self.positions.lock:
            ids = [r.fact.id for r in residents]
            rows = np.frombuffer(b"".join(r.vector for r in residents), np.float32)
            self.index.add(ids, rows.reshape(len(residents), -1))
            facts = [resident.fact for resident in residents]
            places = [self.positions[id] for id in ids]
            self._user.values[places] = [self._user_code(f.user) for f in facts]
            self._from.values[places] = [microseconds(f.effective_at) if f.effective_at else 0 for f in facts]
            self._until.values[places] = [microseconds(f.expires_at) if f.expires_at else _EVER for f in facts]
            self.importance.values[places] = [f.importance for f in facts]
            self.slots.values[places] = [f.slot.key if f.slot else None for f in facts]
            self.lexical.add_all({r.fact.id: kept_features.counts(r.terms) for r in residents})
            held = self.residents.values
            for place, resident in zip(places, residents, strict=True):
                self._forget_labels(held[place])
                held[place] = resident
                for label in labels_of(resident.fact):
                    self._labelled.setdefault(label, set()).add(resident.fact.id)

    def remove(self, ids: Iterable[str]) -> None:
        """Removes facts; what is not there is passed over."""
        with self.positions.lock:
            gone = [id for id in ids if id in self.positions]
            for id in gone:
                self._forget_labels(self.residents.values[self.positions[id]])
            self.index.remove(gone)

    def mask(self, visibility: Visibility) -> NDArray[np.bool_] | None:
        """(n,) bool of the visible facts, None where all are; good while the positions' lock is held."""
        now = microseconds(visibility.now)
        mask = (self._from.values <= now) & (now < self._until.values)
        user = self._user.values
        mask &= user == _SHARED if visibility.user is None else (user == _SHARED) | (user == self._code(visibility))
        if visibility.min_importance is not None:
            mask &= self.importance.values >= visibility.min_importance
        for wanted in visibility.labels():
            holders = set().union(*(self._labelled.get(label, set()) for label in wanted))
            mask &= self.positions.mask(holders)
        return None if mask.all() else mask

    def _forget_labels(self, resident: Resident | None) -> None:
        if resident is None:
            return
        for label in labels_of(resident.fact):
            holders = self._labelled[label]
            holders.discard(resident.fact.id)
            if not holders:
                del self._labelled[label]

    def _user_code(self, user: str | None) -> int:
        return _SHARED if user is None else self._users.setdefault(user, len(self._users) + 1)

    def _code(self, visibility: Visibility) -> int:
        return self._users.get(visibility.user or "", -1)


@dataclass(slots=True)
class Changes:
    """What a committed write does to the indexes: facts that enter a tier, and facts that leave one."""

    enter: dict[Tier, dict[str, Resident]] = field(default_factory=lambda: {Tier.L1: {}, Tier.L2: {}})
    leave: dict[Tier, set[str]] = field(default_factory=lambda: {Tier.L1: set(), Tier.L2: set()})

    notes: dict[str, SlotNote | None] = field(default_factory=dict)

    def entered(self, tier: Tier, resident: Resident) -> None:
        """The fact is in this tier now."""
        self.enter[tier][resident.fact.id] = resident

    def left(self, tier: Tier, id: str) -> None:
        """The fact is no longer in this tier."""
        self.enter[tier].pop(id, None)
        self.leave[tier].add(id)


@dataclass(frozen=True, slots=True)
class Placement:
    """What the store must be told: new places of facts, and those that left L2. ``overflow``: L2 above capacity."""

    tiers: dict[str, Tier | None]
    evicted: list[Resident]
    overflow: int


class Tenant:
    """A company's residents and tiers. Deciding and applying happen on the shard's one writing thread."""

    def __init__(
        self,
        dimension: int,
        kind: Kind,
        capacities: Mapping[Tier, int],
        retention: RetentionSettings,
        extraction: Extraction = DEFAULT,
    ) -> None:
        self.extraction = extraction
        self.retention = retention
        self.residents: dict[str, Resident] = {}
        corpus = Corpus()
        self.spaces = {tier: TierSpace(dimension, kind, corpus) for tier in Tier}
        self.notes: dict[str, SlotNote] = {}
        #: Counts changes of the plan.
        self.plans = 0
        self.overflow = 0
        self._unkept: list[Resident] = []
        self._turns: list[tuple[datetime, str]] = []
        self._turns_lock = threading.Lock()
        self._unsaved_usage: set[str] = set()
        self._usage_lock = threading.Lock()
        self._members: dict[Tier, dict[str, Resident]] = {tier: {} for tier in Tier}
        self._capacities = capacities

    def fill(self, stored: Iterable[Stored]) -> None:
        """Takes what the store says is indexed; for a tenant that nobody searches yet."""
        entering: dict[Tier, list[Resident]] = {tier: [] for tier in Tier}
        for one in stored:
            if one.tier is not None:
                resident = resident_of(one, one.tier, self.extraction)
                self.residents[resident.fact.id] = resident
                self._members[resident.tier][resident.fact.id] = resident
                entering[resident.tier].append(resident)
                if not resident.kept:
                    self._unkept.append(resident)
        for tier, residents in entering.items():
            self.spaces[tier].add(residents)
        self.overflow = max(0, len(self._members[Tier.L2]) - self._capacities[Tier.L2])

    def refill(self, stored: Iterable[Stored], gone: Iterable[str]) -> None:
        """Takes what the store says by now of these facts, and that others are indexed no more; for a tenant that
        nobody searches yet."""
        newer = list(stored)
        for id in (*gone, *(one.fact.id for one in newer)):
            resident = self.residents.pop(id, None)
            if resident is not None:
                del self._members[resident.tier][id]
                self.spaces[resident.tier].remove([id])
        self.fill(newer)

    def plan_add(self, incoming: Sequence[Resident], changes: Changes) -> Placement:
        """Puts facts into L1, moves what must leave to L2, and what must leave L2 out; in the plan only."""
        self.plans += bool(incoming)
        placed: dict[str, Tier | None] = {}
        for resident in incoming:
            self.residents[resident.fact.id] = resident
        leaving, _ = self._make_room(Tier.L1, incoming, changes, placed)
        evicted, overflow = self._make_room(Tier.L2, leaving, changes, placed)
        for resident in evicted:
            placed[resident.fact.id] = None
            del self.residents[resident.fact.id]
        self.overflow = overflow
        return Placement(placed, evicted, overflow)

    def plan_remove(self, ids: Iterable[str], changes: Changes) -> list[str]:
        """Takes facts out of their tiers; in the plan only. The ids that were in one."""
        gone = []
        for id in ids:
            resident = self.residents.pop(id, None)
            if resident is not None:
                self.plans += 1
                gone.append(id)
                del self._members[resident.tier][id]
                changes.left(resident.tier, id)
        return gone

    def plan_replace(self, fact: Fact, changes: Changes) -> None:
        """Another version of a fact that is in a tier: what may change of it, changed."""
        self.plans += 1
        old = self.residents[fact.id]
        resident = replace(old, fact=fact)
        self.residents[fact.id] = self._members[old.tier][fact.id] = resident
        changes.entered(old.tier, resident)

    def apply(self, changes: Changes) -> None:
        """Makes committed changes visible to searches; a fact that changes tiers is never in none."""
        for tier in (Tier.L2, Tier.L1):
            self.spaces[tier].add(list(changes.enter[tier].values()))
        for tier in Tier:
            self.spaces[tier].remove(id for id in changes.leave[tier] if id not in changes.enter[tier])
        self.take_notes(changes.notes)

    def take_notes(self, notes: Mapping[str, SlotNote | None]) -> None:
        """Takes what searches must know of slots, by key; None where there is nothing to know any more."""
        for key, note in notes.items():
            if note is None:
                self.notes.pop(key, None)
            else:
                self.notes[key] = note
                if note.due is not None:
                    with self._turns_lock:
                        heapq.heappush(self._turns, (note.due, key))

    def turned(self, now: datetime) -> list[Slot]:
        """The slots with a note in which time has changed what is in force since the note was made."""
        with self._turns_lock:
            if not self._turns or self._turns[0][0] > now:
                return []
            due = {}
            while self._turns and self._turns[0][0] <= now:
                turn, key = heapq.heappop(self._turns)
                note = self.notes.get(key)
                if note is not None and note.due == turn:
                    due[key] = (turn, note)
            for key, (turn, _) in due.items():
                heapq.heappush(self._turns, (turn, key))
        return [slot for _, note in due.values() if (slot := note.facts[0].slot) is not None]

    def used(self, ids: Iterable[str], now: datetime) -> None:
        """Counts facts that were returned by a recall."""
        with self._usage_lock:
            for id in ids:
                resident = self.residents.get(id)
                if resident is not None:
                    resident.usage += 1
                    resident.last_used = microseconds(now)
                    self._unsaved_usage.add(id)

    def take_unsaved_usage(self) -> dict[str, int]:
        """Counts that the store does not have yet; they count as saved from here on."""
        with self._usage_lock:
            saved = {id: self.residents[id].usage for id in self._unsaved_usage if id in self.residents}
            self._unsaved_usage.clear()
            return saved

    def take_unkept(self, limit: int) -> dict[str, bytes]:
        """Features of at most ``limit`` facts for the store, which had none; they count as kept from here on."""
        taken, self._unkept = self._unkept[:limit], self._unkept[limit:]
        return self.features_of(taken)

    def features_of(self, residents: Iterable[Resident]) -> dict[str, bytes]:
        """What the store keeps of what was found in these facts."""
        return {r.fact.id: kept_features.to_store(Kept(r.entities, r.terms), self.extraction) for r in residents}

    def close(self) -> None:
        """Ends the indexes' upkeep."""
        for space in self.spaces.values():
            space.index.close()

    def sizes(self) -> dict[str, int]:
        """How many facts each tier holds for searches."""
        return {tier.value: len(self.spaces[tier]) for tier in Tier}

    def _make_room(
        self, tier: Tier, incoming: Sequence[Resident], changes: Changes, placed: dict[str, Tier | None]
    ) -> tuple[list[Resident], int]:
        members = self._members[tier]
        leaving: list[Resident] = []
        overflow = max(0, len(members) + len(incoming) - self._capacities[tier])
        if overflow:
            plan = plan_evictions(
                _view(members.values()),
                _view(incoming),
                capacity=self._capacities[tier],
                settings=self.retention,
                last_tier=tier is Tier.L2,
            )
            gone, overflow = set(plan.leaving), plan.overflow
            leaving = [self.residents[id] for id in plan.leaving]
            for resident in leaving:
                if members.pop(resident.fact.id, None) is not None:
                    changes.left(tier, resident.fact.id)
            incoming = [r for r in incoming if r.fact.id not in gone]
        for resident in incoming:
            resident.tier = tier
            members[resident.fact.id] = resident
            changes.entered(tier, resident)
            placed[resident.fact.id] = tier
        return leaving, overflow


def _view(residents: Iterable[Resident]) -> TierView:
    held = list(residents)
    return TierView(
        [r.fact.id for r in held],
        np.fromiter((r.fact.importance for r in held), np.float64, len(held)),
        np.fromiter((r.usage for r in held), np.int64, len(held)),
        np.fromiter((r.last_used for r in held), np.int64, len(held)),
    )


def vector_rows(data: bytes, count: int) -> list[bytes]:
    """The rows of a ``(count, d)`` float32 matrix that travelled as bytes."""
    size = len(data) // count if count else 0
    return [data[i * size : (i + 1) * size] for i in range(count)]
