"""A memory shard: the facts, tiers and slots of its companies. One thread decides and writes; searches run beside it.

A write is decided inside its transaction and becomes visible to searches after the commit. Companies load when they
are first asked for. Where a commit fails, what memory says may no longer be true, so it is dropped and read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import sqlalchemy as sa

from muniment.actors import calibration
from muniment.actors.clock import Clock, system_clock
from muniment.actors.history_recall import recall_history
from muniment.actors.index_check import differing
from muniment.actors.metrics import (
    COMPANIES_LOADED,
    ESSENTIAL_OVERFLOW,
    EVICTIONS,
    GATE_DECISIONS,
    OUTCOMES,
    QUEUE_LENGTH,
    TIER_FACTS,
    Levels,
    Observe,
    unobserved,
)
from muniment.actors.ports import Record
from muniment.actors.recall import Candidate, RecallPlan, recall
from muniment.actors.residency import Residency, weight
from muniment.actors.slot_rulings import SlotRulings
from muniment.actors.slot_writer import Policies, SlotWriter, Written
from muniment.actors.store import memory_store as store
from muniment.actors.store.engine import available
from muniment.actors.store.group_commit import GroupCommitter
from muniment.actors.store.reach import SharedReach
from muniment.actors.store.tenure import Fence
from muniment.actors.tenant import Tenant, Visibility
from muniment.actors.tenant_loader import TenantLoader
from muniment.actors.tier_index import Kind
from muniment.actors.wire import fact_to_dict
from muniment.policies.errors import Fenced, Moved, MunimentError, Overloaded, StoreUnavailable
from muniment.policies.extraction import Extraction
from muniment.policies.model import Scope, Slot, Tier
from muniment.policies.partitioning import Unit, partition_of
from muniment.policies.retention import RetentionSettings
from muniment.policies.routing import Decision, GateDecision, Reason, RecallProfile

if TYPE_CHECKING:
    from muniment.actors.webhook import WebhookOptions, WebhookSender

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Facts that ``verify`` names at the most.
_WRONG_SHOWN = 100
#: Companies that are looked at, the largest first, to be loaded after a start.
_PRELOADED = 100
#: Facts whose features are brought to the store in one write.
_KEPT_AT_ONCE = 500
#: What stands for the tier of an answer out of the slots' history.
HISTORY = "history"
#: Why an answer may not be the newest: the store is away, and memory answered alone.
STORE_UNREACHABLE = "store_unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """How a shard keeps its companies' tiers."""

    l1_capacity: int = 500
    l2_capacity: int = 5000
    index: Kind = "auto"
    #: About how much memory loaded companies may take, and how long one that nobody asks for stays; 0: for good.
    loaded_bytes: int = 2 * 1024**3
    idle_seconds: float = 0.0
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    #: How owners are told outside what waits for them; None: they are not.
    webhooks: WebhookOptions | None = None


class MemoryShard:
    """The body of a memory shard actor. Its methods run on one event loop and never block it for long."""

    VERBS = frozenset(
        {
            "remember",
            "recall",
            "observe",
            "retire",
            "correct",
            "resolve",
            "flag",
            "review_due",
            "erase_user",
            "erase_company",
            "warm",
            "loaded",
            "preload",
            "settle",
            "stats",
            "verify",
        }
    )

    def __init__(
        self,
        engine: sa.Engine,
        role: str,
        policies: Policies,
        settings: ShardSettings | None = None,
        clock: Clock = system_clock,
        observe: Observe = unobserved,
    ) -> None:
        self._engine = engine
        self._observe = observe
        self._settings = settings or ShardSettings()
        self._residency = Residency(self._settings.loaded_bytes, self._settings.idle_seconds)
        self._policies = policies
        self._tenants: dict[str, Tenant] = {}
        self._loads: dict[str, asyncio.Task[Tenant]] = {}
        self._written_while_loading: dict[str, bool] = {}
        #: Companies that the group under way has changed in memory, and those of which a commit failed after that.
        self._unsure: set[str] = set()
        self._stale: set[str] = set()
        #: Companies whose policies the group under way has asked for; all its writes were asked for before that.
        self._asked_about: set[str] = set()
        self._fence = Fence(engine, role)
        self._fence.on_moved = self._moved
        with engine.connect() as connection:
            newest = store.newest_time(connection)
        #: On one machine, where one shard has everything, nobody else can have changed anything.
        self._tenure = None if engine.dialect.name == "sqlite" else SharedReach(self._look)
        webhooks = self._settings.webhooks
        self._writer = SlotWriter(policies, clock, newest, role if webhooks is not None else "")
        self._loader = TenantLoader(
            self._settings.index,
            {Tier.L1: self._settings.l1_capacity, Tier.L2: self._settings.l2_capacity},
            self._settings.retention,
            policies,
            self._writer.load_notes,
        )
        self._rulings = SlotRulings(self._writer)
        self._committer = GroupCommitter(
            engine, self._fence, on_lost=self._distrust, on_begin=self._asked_about.clear, observe=observe
        )
        self._sender: WebhookSender | None = None
        if webhooks is not None:
            from muniment.actors.webhook import WebhookSender  # and an HTTP client, which few shards need

            self._sender = WebhookSender(engine, role, self._committer, webhooks, self._writer.now)

    async def remember(self, company: str, facts: Sequence[Record], vectors: bytes, **arguments: Any) -> Record:
        """Decides and stores facts in one transaction: ``{"results": […]}`` in their order (``SlotWriter.remember``).

        ``facts``: as ``wire.fact_to_dict`` makes them, without id and time of recording, which are given here.
        ``vectors``: (n, d) float32 in C order. Both tiers' capacities hold afterwards, essential facts aside.
        """
        dimension = len(vectors) // 4 // len(facts)
        await self._tenant(company, dimension)
        decide = partial(self._writer.remember, company=company, facts=facts, vectors=vectors, **arguments)
        return await self._write(company, dimension, decide)

    async def retire(self, company: str, **arguments: Any) -> Record:
        """Deletes, corrects or expires a fact (``SlotWriter.retire``)."""
        return await self._write(company, None, partial(self._writer.retire, company=company, **arguments))

    async def correct(self, company: str, **arguments: Any) -> Record:
        """Puts the right text and value in a wrong fact's place (``SlotRulings.correct``)."""
        return await self._write(company, None, partial(self._rulings.correct, company=company, **arguments))

    async def resolve(self, company: str, **arguments: Any) -> Record:
        """Carries out an owner's ruling (``SlotRulings.resolve``)."""
        return await self._write(company, None, partial(self._rulings.resolve, company=company, **arguments))

    async def flag(self, company: str, slots: Sequence[Sequence[str]]) -> Record:
        """Opens conflicts for values of these slots (scope, user, subject, field) that nobody decided about."""
        return await self._flag(company, [Slot(company, Scope(scope), *names) for scope, *names in slots])

    async def review_due(self, company: str) -> Record:
        """Opens a review of what has passed its review date (``SlotWriter.review_due``)."""
        return await self._write(company, None, partial(self._writer.review_due, company=company))

    async def _flag(self, company: str, slots: Sequence[Slot]) -> Record:
        return await self._write(company, None, partial(self._writer.flag, company=company, slots=slots))

    async def _flagged(self, company: str, slots: Sequence[Slot]) -> bool:
        """Whether ``_flag`` could; where the store is away, the next recall does it."""
        try:
            await self._flag(company, slots)
        except StoreUnavailable:
            return False
        return True

    async def erase_user(self, company: str, user: str, actor: Record) -> Record:
        """Deletes a user's personal facts for good, with counts."""
        return await self._write(
            company, None, partial(self._writer.erase_user, company=company, user=user, actor=actor)
        )

    async def erase_company(self, company: str) -> Record:
        """Deletes all that the store has of a company, its decisions included: ``{"erased": {table: rows}}``."""

        def body(connection: sa.Connection) -> Record:
            self._fence.require_company(company)
            return {"erased": store.erase_company(connection, company)}

        def after(_: Record) -> None:
            self._drop(company)
            self._writer.log.forget_heads()

        return await asyncio.wrap_future(self._committer.submit(body, after))

    async def recall(self, company: str, plan: Record) -> Record:
        """Applies a router's plan: ``candidates`` (best first), the gate's decision and the tiers searched.

        While the store is away, what is loaded goes on answering, and says so: ``degraded``.
        """
        vector = np.frombuffer(plan["vector"], np.float32)
        tenant = await self._tenant(company, len(vector))
        asked = await asyncio.gather(self._policies.refresh(company), self._is_ours(company))
        reachable = all(asked) and self._committer.reachable and company not in self._stale
        tenant = await self._read_by_policy(company, tenant)
        now = self._writer.now()
        as_router = plan["extraction"] == tenant.extraction.fingerprint
        entities, terms = (plan["entities"], plan["terms"]) if as_router else tenant.extraction.of_query(plan["query"])
        request = RecallPlan(
            vector=vector,
            terms=terms,
            entities=tuple(entities),
            top_k=plan["top_k"],
            threshold=self._policies.threshold(company, plan["model"]),
            profile=RecallProfile.model_validate(plan["profile"]),
            visibility=Visibility(now=now, user=plan["user"], **plan["filters"]),
        )
        moments = plan["moments"]
        if moments:
            return await self._recall_history(company, request, moments, tenant.extraction)
        turned = tenant.turned(now)
        if turned:
            # Time alone has changed which facts are in force.
            reachable &= await self._flagged(company, turned)
        admit = self._writer.admission(company, tenant, now)
        found, gate, tiers = recall(tenant, request, admit, self._observe)
        self._observe(GATE_DECISIONS, 1, reason=gate.reason.value)
        undecided = self._writer.undecided(company, tenant, (c.resident.fact for c in found), now)
        if undecided:
            reachable &= await self._flagged(company, undecided)
        tenant.used([c.resident.fact.id for c in found[: request.top_k]], now)
        return {
            "candidates": [self._candidate(company, tenant, c) for c in found],
            "gate": gate.to_dict(),
            "tiers": [tier.value for tier in tiers],
            "degraded": None if reachable else STORE_UNREACHABLE,
            # For the router, which reads the next query of the company by it.
            **({} if as_router else {"extraction": [tenant.extraction.languages, tenant.extraction.patterns]}),
        }

    async def observe(
        self, company: str, questions: Sequence[Record], vectors: bytes, profile: Record, top_k: int
    ) -> list[Record]:
        """What each question shows of the gate (``calibration.observe``); others are answered between two of them.

        ``questions``: ``{query, wanted}``. ``vectors``: (n, d) float32 in C order, of the queries.
        """
        rows = np.frombuffer(vectors, np.float32).reshape(len(questions), -1)
        tenant = await self._tenant(company, rows.shape[1])
        await self._policies.refresh(company)
        tenant = await self._read_by_policy(company, tenant)
        found, weights = [], RecallProfile.model_validate(profile)
        for question, row in zip(questions, rows, strict=True):
            asked = calibration.Question(question["query"], question["wanted"])
            found.append(asdict(calibration.observe(tenant, asked, row, weights, self._writer.now(), top_k)))
            await asyncio.sleep(0)
        return found

    async def _recall_history(
        self, company: str, request: RecallPlan, moments: Record, extraction: Extraction
    ) -> Record:
        def read() -> list[Candidate]:
            with self._engine.connect() as connection:
                times = moments.get("as_of"), moments.get("known_at")
                return recall_history(connection, company, request, *times, self._policies.rules_at, extraction)

        found = await asyncio.to_thread(read)
        threshold = request.profile.threshold or request.threshold
        gate = GateDecision(Decision.L1_ONLY, Reason.DISABLED, None, threshold, request.entities, ())
        return {
            "candidates": [
                {
                    "fact": fact_to_dict(c.resident.fact),
                    "owner": self._writer.owner(company, c.resident.fact),
                    "tier": HISTORY,
                    "score": c.score,
                    "terms": c.terms,
                }
                for c in found
            ],
            "gate": gate.to_dict(),
            "tiers": [HISTORY],
        }

    async def _is_ours(self, company: str) -> bool:
        """Asks the store whether the company is still this shard's, so that nobody is answered from what another one
        has changed since. False: it cannot be asked. Raises ``Moved`` and ``Fenced``."""
        if self._tenure is not None:
            try:
                up_to_date = await self._tenure.ask()
            except StoreUnavailable:
                return False
            if not up_to_date:
                await self.settle()
        self._fence.require_company(company)
        return True

    def _look(self) -> bool:
        with available(), self._engine.connect() as connection:
            return self._fence.look(connection)

    async def loaded(self, unit: Unit) -> Record:
        """The companies of a partition, or the one that is named, that are loaded here, and their vectors' dimensions:
        ``{"companies": [[name, dimension], …]}``, the last used first. Their usage counts are stored."""
        units = [name for name in self._residency.companies() if self._fence.map.has(unit, name)]
        found = [(name, tenant) for name in units if (tenant := self._tenants.get(name)) is not None]

        def body(connection: sa.Connection) -> None:
            for company, _ in found:
                self._save_usage(connection, company)

        await asyncio.wrap_future(self._committer.submit(body))
        return {"companies": [[name, tenant.spaces[Tier.L1].index.dimension] for name, tenant in found]}

    async def preload(self, companies: Sequence[tuple[str, int]]) -> Record:
        """Reads companies (with their vectors' dimensions) that are about to come, beside the work: ``{"read": n}``.

        What was read for an earlier move that was not made is forgotten.
        """
        self._loader.forget_ahead()
        for company, dimension in companies:
            await asyncio.to_thread(self._loader.read_ahead, self._engine, company, dimension)
        return {"read": len(companies)}

    async def load_largest(self) -> None:
        """Loads what is this shard's before anybody asks: pinned companies, then the largest, in half of the memory.

        While somebody waits for a load, it waits too, and after each it leaves the processor for as long as that took.
        """
        half = self._settings.loaded_bytes // 2
        try:
            for company, dimension in await asyncio.to_thread(self._by_size):
                while self._loads:
                    await asyncio.wait(list(self._loads.values()))
                pinned = company in self._fence.map.pinned
                if company in self._tenants or not self._fence.has_company(company):
                    continue
                if not pinned and self._residency.bytes >= half:
                    return
                began = time.monotonic()
                with suppress(Moved):
                    self._used(company, await self._loaded(company, dimension))
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

    async def settle(self) -> Record:
        """Learns now what came and went: how many companies are loaded after that."""
        await asyncio.wrap_future(self._committer.submit(lambda connection: None))
        for company in self._residency.companies():
            if company not in self._tenants:
                self._residency.gone(company)
        return {"tenants_loaded": len(self._tenants)}

    def _moved(self, connection: sa.Connection, changed: frozenset[int]) -> None:
        """Companies came or went, or went and came back. What was loaded of them is forgotten; what was told of them
        was told before whatever is told from now on."""
        self._writer.log.forget_heads()
        newest = store.newest_time(connection)
        if newest is not None:
            self._writer.not_before(newest)
        if self._sender is not None:
            self._sender.wake()
        for company in list(self._tenants):
            if partition_of(company) in changed:
                self._drop(company)
        for company in list(self._written_while_loading):
            if partition_of(company) in changed:
                self._written_while_loading[company] = True

    async def warm(self, company: str, dimension: int) -> Record:
        """Loads a company before it is asked for: its tiers' sizes."""
        return (await self._tenant(company, dimension)).sizes()

    async def stats(self) -> Record:
        """Counts of this shard, without any company's name."""
        tenants = list(self._tenants.values())
        sizes = [tenant.sizes() for tenant in tenants]
        return {
            "tenants_loaded": len(tenants),
            "facts": {tier.value: sum(size[tier.value] for size in sizes) for tier in Tier},
            "essential_overflow": sum(tenant.overflow for tenant in tenants),
            "commits": self._committer.groups,
            "writes": self._committer.writes,
        }

    def levels(self) -> Levels:
        """What this shard holds in memory, and what waits."""
        sizes = [tenant.sizes() for tenant in list(self._tenants.values())]
        for tier in Tier:
            yield TIER_FACTS, sum(size[tier.value] for size in sizes), {"tier": tier.value}
        yield COMPANIES_LOADED, len(sizes), {}
        above = (size[Tier.L2.value] - self._settings.l2_capacity for size in sizes)
        yield ESSENTIAL_OVERFLOW, sum(max(0, facts) for facts in above), {}
        yield QUEUE_LENGTH, self._committer.queued, {"queue": "memory_writes"}

    async def verify(self) -> Record:
        """Compares the indexes of what is loaded with the store: ``{companies, facts, wrong}``, ids of facts."""
        answer: Record = {"companies": 0, "facts": 0, "wrong": []}
        for company in list(self._tenants):
            compared: list[tuple[int, list[str]]] = []

            def body(connection: sa.Connection, company: str = company) -> list[store.Stored]:
                return list(store.indexed_facts(connection, company))

            def after(stored: list[store.Stored], company: str = company, compared: list[Any] = compared) -> None:
                tenant = self._tenants.get(company)
                if tenant is not None and company not in self._stale:
                    compared.append((len(stored), differing(tenant, stored)))

            await asyncio.wrap_future(self._committer.submit(body, after))
            for count, wrong in compared:
                answer["companies"] += 1
                answer["facts"] += count
                answer["wrong"] += wrong[: _WRONG_SHOWN - len(answer["wrong"])]
        return answer

    def close(self) -> None:
        """Commits what is queued, saves usage counts and ends the threads."""
        if self._sender is not None:
            self._sender.close()
        for company in list(self._tenants) if not self._committer.fenced else ():
            self._committer.submit(lambda connection, c=company: self._save_usage(connection, c))  # type: ignore[misc]
        self._committer.close()
        self._forget_all()

    # --- writing

    async def _write(
        self, company: str, dimension: int | None, decide: Callable[[sa.Connection, Tenant], Written]
    ) -> Record:
        """Runs ``decide`` on the writing thread, inside the transaction, with the company loaded."""
        if company not in self._tenants and not self._committer.fenced:
            with available():  # beside the work: between two writes it would hold up those of all others
                await self._loaded(company, dimension)

        def body(connection: sa.Connection) -> tuple[Written, Tenant]:
            self._fence.require_company(company)
            if company in self._written_while_loading:
                self._written_while_loading[company] = True
            tenant = self._up_to_date(connection, company, dimension)
            self._unsure.add(company)
            plans = tenant.plans
            try:
                written = decide(connection, tenant)
                store.set_usage(connection, tenant.take_unsaved_usage())
            except BaseException:
                # The savepoint takes back what was written; a plan that is half changed is read again.
                if tenant.plans != plans:
                    self._drop(company)
                self._writer.log.forget_heads()
                raise
            return written, tenant

        def after(outcome: tuple[Written, Tenant]) -> None:
            written, tenant = outcome
            tenant.apply(written.changes)
            self._unsure.discard(company)
            self._tell(written)
            if written.told_outside and self._sender is not None:
                self._sender.wake()

        written, tenant = await asyncio.wrap_future(self._committer.submit(body, after))
        self._used(company, tenant)
        return written.answer

    def _tell(self, written: Written) -> None:
        for tier, count in written.evictions.items():
            self._observe(EVICTIONS, count, tier=tier.value)
        for result in written.answer.get("results", ()):
            self._observe(OUTCOMES, 1, outcome=result["outcome"])

    def _save_usage(self, connection: sa.Connection, company: str) -> None:
        tenant = self._tenants.get(company)
        if tenant is not None and self._fence.has_company(company):
            store.set_usage(connection, tenant.take_unsaved_usage())

    # --- loading

    async def _tenant(self, company: str, dimension: int) -> Tenant:
        """The company, loaded. Many who ask at once wait for one load.

        One that may not be what the store has is loaded anew; while the store is away, what searches saw last will do.
        Raises ``Fenced`` where a newer instance took over.
        """
        if self._committer.fenced:
            raise Fenced("this instance was replaced")
        tenant = self._tenants.get(company)
        if tenant is None or company in self._stale:
            try:
                with available():
                    tenant = await self._loaded(company, dimension)
            except StoreUnavailable:
                if tenant is None:
                    raise
        self._used(company, tenant)
        return tenant

    async def _read_by_policy(self, company: str, tenant: Tenant) -> Tenant:
        """The tenant, loaded anew where the policy has its texts read otherwise; while the store is away, as it is."""
        if tenant.extraction == self._policies.memory(company).extraction:
            return tenant

        def body(connection: sa.Connection) -> Tenant:
            self._fence.require_company(company)
            return self._up_to_date(connection, company, tenant.spaces[Tier.L1].index.dimension)

        with suppress(StoreUnavailable):
            return await asyncio.wrap_future(self._committer.submit(body))
        return tenant

    def _up_to_date(self, connection: sa.Connection, company: str, dimension: int | None) -> Tenant:
        """The company as the store has it and its policy reads it and keeps it; between two writes."""
        if company not in self._asked_about:
            self._policies.current(company)
            self._asked_about.add(company)
        policy = self._policies.memory(company)
        tenant = None if company in self._stale else self._tenants.get(company)
        if tenant is not None and tenant.extraction != policy.extraction:
            self._save_usage(connection, company)
            tenant = None
        if tenant is None:
            tenant = self._loader.load(connection, company, dimension)
            self._put(company, tenant)
        tenant.retention = self._loader.retention(policy)
        return tenant

    def _used(self, company: str, tenant: Tenant) -> None:
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
            self._save_usage(connection, company)
            return self._tenants.get(company)

        def after(tenant: Tenant | None) -> None:
            if tenant is not None and self._tenants.get(company) is tenant:
                self._drop(company)

        with suppress(Overloaded, StoreUnavailable, Fenced):
            self._committer.submit(body, after)

    async def _loaded(self, company: str, dimension: int | None) -> Tenant:
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
            if company not in self._tenants or company in self._stale:
                self._put(company, self._loader.renew(connection, company, loaded) if written else loaded.tenant)
            return self._tenants[company]

        if ahead is None:
            loaded = await asyncio.to_thread(self._loader.read, self._engine, company, dimension)
        else:
            loaded = ahead
        return await asyncio.wrap_future(self._committer.submit(publish))

    def _put(self, company: str, tenant: Tenant) -> None:
        self._drop(company)
        self._tenants[company] = tenant

    def _drop(self, company: str) -> None:
        self._stale.discard(company)
        tenant = self._tenants.pop(company, None)
        if tenant is not None:
            tenant.close()

    def _distrust(self) -> None:
        """A commit failed: what it changed in memory is read again before the next write, and soon for searches."""
        self._stale |= self._unsure
        self._unsure.clear()
        self._writer.log.forget_heads()

    def _forget_all(self) -> None:
        for company in list(self._tenants):
            self._drop(company)
        self._writer.log.forget_heads()

    def _candidate(self, company: str, tenant: Tenant, candidate: Candidate) -> Record:
        return {
            **self._writer.handed_out(company, tenant, candidate.resident.fact),
            "tier": candidate.tier.value,
            "score": candidate.score,
            "terms": candidate.terms,
        }
