"""The companies in memory: loaded when they are first asked for, unloaded when others need the room.

Where a commit fails, what memory says may no longer be true, so it is dropped and read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

import sqlalchemy as sa

from muniment.actors.residency import Residency, weight
from muniment.actors.slot_writer import Policies
from muniment.actors.store import memory_store as store
from muniment.actors.store.engine import available
from muniment.actors.store.group_commit import GroupCommitter
from muniment.actors.store.tenure import Fence
from muniment.actors.tenant import Tenant
from muniment.actors.tenant_loader import TenantLoader
from muniment.policies.errors import Fenced, Moved, MunimentError, Overloaded, StoreUnavailable
from muniment.policies.model import Tier
from muniment.policies.partitioning import Unit, partition_of

log = logging.getLogger(__name__)
#: Companies that are looked at, the largest first, to be loaded after a start.
_PRELOADED = 100
#: Facts whose features are brought to the store in one write.
_KEPT_AT_ONCE = 500


class LoadedTenants:
    """A shard's companies as far as they are in memory. Who is there changes on the writing thread alone, between two
    writes; the coroutines, ``used``, ``of`` and ``forget_gone`` belong on the event loop."""

    def __init__(
        self,
        engine: sa.Engine,
        fence: Fence,
        committer: GroupCommitter,
        policies: Policies,
        loader: TenantLoader,
        residency: Residency,
    ) -> None:
        self._engine = engine
        self._fence = fence
        self._committer = committer
        self._policies = policies
        self._loader = loader
        self._residency = residency
        #: What searches see, stale companies included.
        self.by_company: dict[str, Tenant] = {}
        self._loads: dict[str, asyncio.Task[Tenant]] = {}
        self._written_while_loading: dict[str, bool] = {}
        #: Companies that the group under way has changed in memory, and those of which a commit failed after that.
        self._unsure: set[str] = set()
        self.stale: set[str] = set()
        #: Companies whose policies the group under way has asked for; all its writes were asked for before that.
        self._asked_about: set[str] = set()

    async def get(self, company: str, dimension: int) -> Tenant:
        """The company, loaded. Many who ask at once wait for one load.

        One that may not be what the store has is loaded anew; while the store is away, what searches saw last will do.
        Raises ``Fenced`` where a newer instance took over.
        """
        if self._committer.fenced:
            raise Fenced("this instance was replaced")
        tenant = self.by_company.get(company)
        if tenant is None or company in self.stale:
            try:
                with available():
                    tenant = await self.load(company, dimension)
            except StoreUnavailable:
                if tenant is None:
                    raise
        self.used(company, tenant)
        return tenant

    def is_loaded(self, company: str) -> bool:
        """Whether ``get`` would find it, and find it right."""
        return company in self.by_company and company not in self.stale

    async def read_by_policy(self, company: str, tenant: Tenant) -> Tenant:
        """The tenant, loaded anew where the policy has its texts read otherwise; while the store is away, as it is."""
        if tenant.extraction == self._policies.memory(company).extraction:
            return tenant

        def body(connection: sa.Connection) -> Tenant:
            self._fence.require_company(company)
            return self._up_to_date(connection, company, tenant.spaces[Tier.L1].index.dimension)

        with suppress(StoreUnavailable):
            return await asyncio.wrap_future(self._committer.submit(body))
        return tenant

    def to_change(self, connection: sa.Connection, company: str, dimension: int | None) -> Tenant:
        """The company, up to date, for a write to change. Until it is ``changed``, a failed commit makes it stale."""
        if company in self._written_while_loading:
            self._written_while_loading[company] = True
        tenant = self._up_to_date(connection, company, dimension)
        self._unsure.add(company)
        return tenant

    def changed(self, company: str) -> None:
        """The company is in memory what was committed."""
        self._unsure.discard(company)

    def _up_to_date(self, connection: sa.Connection, company: str, dimension: int | None) -> Tenant:
        """The company as the store has it and its policy reads it and keeps it; between two writes."""
        if company not in self._asked_about:
            self._policies.current(company)
            self._asked_about.add(company)
        policy = self._policies.memory(company)
        tenant = None if company in self.stale else self.by_company.get(company)
        if tenant is not None and tenant.extraction != policy.extraction:
            self.save_usage(connection, company)
            tenant = None
        if tenant is None:
            tenant = self._loader.load(connection, company, dimension)
            self._put(company, tenant)
        tenant.retention = self._loader.retention(policy)
        return tenant

    async def load(self, company: str, dimension: int | None) -> Tenant:
        """The company, loaded anew; who asks while it is being loaded waits for that."""
        load = self._loads.get(company)
        if load is None:
            load = self._loads[company] = asyncio.create_task(self._load_beside(company, dimension))
            load.add_done_callback(lambda _: self._loads.pop(company, None))
        return await asyncio.shield(load)

    async def _load_beside(self, company: str, dimension: int | None) -> Tenant:
        """Reads a company while others are written; what was written of it meanwhile is added between writes."""
        ahead = self._loader.take_ahead(company)
        self._written_while_loading[company] = ahead is not None

        def publish(connection: sa.Connection) -> Tenant:
            self._fence.require_company(company)
            written = self._written_while_loading.pop(company, True)
            if company not in self.by_company or company in self.stale:
                self._put(company, self._loader.renew(connection, company, loaded) if written else loaded.tenant)
            return self.by_company[company]

        if ahead is None:
            loaded = await asyncio.to_thread(self._loader.read, self._engine, company, dimension)
        else:
            loaded = ahead
        return await asyncio.wrap_future(self._committer.submit(publish))

    def _put(self, company: str, tenant: Tenant) -> None:
        self.drop(company)
        self.by_company[company] = tenant

    def drop(self, company: str) -> None:
        """The company is read again when it is next asked for. Usage counts that are not saved are lost."""
        self.stale.discard(company)
        tenant = self.by_company.pop(company, None)
        if tenant is not None:
            tenant.close()

    def used(self, company: str, tenant: Tenant) -> None:
        """The company was used; others may have to make room for it."""
        facts = sum(tenant.sizes().values())
        self._residency.used(company, weight(facts, tenant.spaces[Tier.L1].index.dimension))
        for idle in self._residency.leaving(self._fence.map.pinned):
            self._residency.gone(idle)
            self._unload(idle)
        self._keep_features(tenant)

    def _keep_features(self, tenant: Tenant) -> None:
        """Brings what was found anew while the company was loaded to the store, a slice at a time."""

        def again(slice: Future[None]) -> None:
            if slice.exception() is None:
                self._keep_features(tenant)

        features = tenant.take_unkept(_KEPT_AT_ONCE)
        if features:
            with suppress(Overloaded, StoreUnavailable, Fenced):
                kept = self._committer.submit(lambda connection: store.set_features(connection, features))
                kept.add_done_callback(again)

    def _unload(self, company: str) -> None:
        """Between two writes, and once its usage counts are stored; while the store is away, it stays."""

        def body(connection: sa.Connection) -> Tenant | None:
            self.save_usage(connection, company)
            return self.by_company.get(company)

        def after(tenant: Tenant | None) -> None:
            if tenant is not None and self.by_company.get(company) is tenant:
                self.drop(company)

        with suppress(Overloaded, StoreUnavailable, Fenced):
            self._committer.submit(body, after)

    def save_usage(self, connection: sa.Connection, company: str) -> None:
        """Brings the usage counts to the store, where the company is loaded and still the shard's."""
        tenant = self.by_company.get(company)
        if tenant is not None and self._fence.has_company(company):
            store.set_usage(connection, tenant.take_unsaved_usage())

    def of(self, unit: Unit) -> list[tuple[str, Tenant]]:
        """The companies of a partition, or the one that is named, that are loaded, the last used first."""
        units = [name for name in self._residency.companies() if self._fence.map.has(unit, name)]
        return [(name, tenant) for name in units if (tenant := self.by_company.get(name)) is not None]

    async def read_ahead(self, companies: Sequence[tuple[str, int]]) -> None:
        """Reads companies (with their vectors' dimensions) that are about to come, and forgets what was read before."""
        self._loader.forget_ahead()
        for company, dimension in companies:
            await asyncio.to_thread(self._loader.read_ahead, self._engine, company, dimension)

    async def load_largest(self, limit_bytes: int) -> None:
        """Loads what is the shard's before anybody asks: pinned companies, then the largest, up to a limit.

        While somebody waits for a load, it waits too, and after each it leaves the processor for as long as that took.
        """
        try:
            for company, dimension in await asyncio.to_thread(self._by_size):
                while self._loads:
                    await asyncio.wait(list(self._loads.values()))
                pinned = company in self._fence.map.pinned
                if company in self.by_company or not self._fence.has_company(company):
                    continue
                if not pinned and self._residency.bytes >= limit_bytes:
                    return
                began = time.monotonic()
                with suppress(Moved):
                    self.used(company, await self.load(company, dimension))
                await asyncio.sleep(time.monotonic() - began)
        except MunimentError as error:
            log.warning("companies are loaded when they are asked for: %s", error)

    def _by_size(self) -> list[tuple[str, int]]:
        with available(), self._engine.connect() as connection:
            dimension = store.model_dimension(connection)
            pinned = self._fence.map.pinned
            largest = store.companies_by_size(connection, _PRELOADED)
        names = [*sorted(pinned), *(company for company in largest if company not in pinned)]
        return [] if dimension is None else [(company, dimension) for company in names]

    def group_begins(self) -> None:
        """A group of writes begins: the policies of its companies are asked for anew."""
        self._asked_about.clear()

    def distrust(self) -> None:
        """A commit failed: what it changed in memory is read again before the next write, and soon for searches."""
        self.stale |= self._unsure
        self._unsure.clear()

    def forget_moved(self, changed: frozenset[int]) -> None:
        """Companies of these partitions came or went: what is loaded is dropped, what is being read is brought up to
        date before it is used."""
        for company in list(self.by_company):
            if partition_of(company) in changed:
                self.drop(company)
        for company in list(self._written_while_loading):
            if partition_of(company) in changed:
                self._written_while_loading[company] = True

    def forget_gone(self) -> None:
        """Companies that were dropped take no memory any more."""
        for company in self._residency.companies():
            if company not in self.by_company:
                self._residency.gone(company)
