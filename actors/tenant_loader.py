"""Companies out of the store: read whole, or read a while ago and brought up to date.

Reading may run beside the work, also for a company that another shard still writes to. What changed since is then found
by the count of changes that the store keeps of each fact.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from muniment.actors.slot_pages import SlotNote
from muniment.actors.slot_writer import Policies
from muniment.actors.store import memory_store as store
from muniment.actors.store.engine import patient
from muniment.actors.tenant import Tenant
from muniment.actors.tier_index import Kind
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.model import Tier
from muniment.policies.retention import RetentionSettings

#: Reads what searches must know of a company's slots.
LoadNotes = Callable[[sa.Connection, str], dict[str, SlotNote | None]]


@contextmanager
def _uncollected() -> Iterator[None]:
    """For what makes many objects that stay: to look for garbage among them meanwhile costs a third of it all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tenant as it was read, and which changes of each of its facts it knows of."""

    tenant: Tenant
    changes: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Fetched:
    dimension: int
    stored: list[store.Stored]
    notes: dict[str, SlotNote | None]


class TenantLoader:
    """Reads companies. ``load_notes``: see ``SlotWriter.load_notes``."""

    def __init__(
        self,
        index: Kind,
        capacities: Mapping[Tier, int],
        retention: RetentionSettings,
        policies: Policies,
        load_notes: LoadNotes,
    ) -> None:
        self._index = index
        self._capacities = capacities
        self._retention = retention
        self._policies = policies
        self._load_notes = load_notes
        self._ahead: dict[str, Loaded] = {}

    def retention(self, policy: MemoryPolicy) -> RetentionSettings:
        """How a company with this policy keeps its tiers."""
        settings = self._retention
        return settings if policy.retention is None else settings.model_copy(update={"mode": policy.retention})

    def load(self, connection: sa.Connection, company: str, dimension: int | None) -> Tenant:
        """The company as the store has it now, out of what was read ahead where there is that."""
        patient(connection)
        ahead = self.take_ahead(company)
        if ahead is not None:
            return self.renew(connection, company, ahead)
        return self._build(company, self._fetch(connection, company, dimension)).tenant

    def read(self, engine: sa.Engine, company: str, dimension: int | None) -> Loaded:
        """The company as it is now; no transaction is open while its indexes are made."""
        with engine.connect() as connection:
            fetched = self._fetch(connection, company, dimension)
        return self._build(company, fetched)

    @_uncollected()
    def _fetch(self, connection: sa.Connection, company: str, dimension: int | None) -> _Fetched:
        stored = list(store.indexed_facts(connection, company))
        known = len(stored[0].vector) // 4 if stored else store.model_dimension(connection) or dimension
        return _Fetched(known or 1, stored, self._load_notes(connection, company))

    @_uncollected()
    def _build(self, company: str, fetched: _Fetched) -> Loaded:
        policy = self._policies.memory(company)
        tenant = Tenant(fetched.dimension, self._index, self._capacities, self.retention(policy), policy.extraction)
        tenant.fill(fetched.stored)
        tenant.take_notes(fetched.notes)
        return Loaded(tenant, {one.fact.id: one.changes for one in fetched.stored})

    @_uncollected()
    def renew(self, connection: sa.Connection, company: str, loaded: Loaded) -> Tenant:
        """The tenant with all that changed since it was read; nobody may search it yet."""
        patient(connection)
        tenant = loaded.tenant
        now = store.indexed_changes(connection, company)
        changed = [id for id, changes in now.items() if loaded.changes.get(id) != changes]
        gone = [id for id in loaded.changes if id not in now]
        tenant.refill(store.indexed_facts(connection, company, changed), gone)
        tenant.notes.clear()
        tenant.take_notes(self._load_notes(connection, company))
        return tenant

    def read_ahead(self, engine: sa.Engine, company: str, dimension: int | None) -> None:
        """Reads a company that is about to come."""
        self._ahead[company] = self.read(engine, company, dimension)

    def take_ahead(self, company: str) -> Loaded | None:
        """What was read ahead of a company, where its policy still has it read so; once."""
        ahead = self._ahead.pop(company, None)
        if ahead is not None and ahead.tenant.extraction != self._policies.memory(company).extraction:
            ahead.tenant.close()
            return None
        return ahead

    def forget_ahead(self) -> None:
        """What was read ahead did not come."""
        while self._ahead:
            _, ahead = self._ahead.popitem()
            ahead.tenant.close()
