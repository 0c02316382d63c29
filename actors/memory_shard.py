"""A memory shard: the facts, tiers and slots of its companies. One thread decides and writes; searches run beside it.

A write is decided inside its transaction and becomes visible to searches after the commit. Which companies are in
memory, and whether that is still what the store has: ``loaded_tenants``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from muniment.actors import calibration
from muniment.actors.clock import Clock, system_clock
from muniment.actors.history_recall import recall_history
from muniment.actors.index_check import differing
from muniment.actors.loaded_tenants import LoadedTenants
from muniment.actors.metrics import (
    COMPANIES_LOADED,
    ESSENTIAL_KEPT,
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
from muniment.actors.residency import Residency
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
from muniment.policies.errors import StoreUnavailable
from muniment.policies.extraction import Extraction
from muniment.policies.model import Scope, Slot, Tier
from muniment.policies.partitioning import Unit
from muniment.policies.retention import RetentionSettings
from muniment.policies.routing import Decision, GateDecision, Reason, RecallProfile

if TYPE_CHECKING:
    from muniment.actors.webhook import WebhookOptions, WebhookSender

#: Facts that ``verify`` names at the most.
_WRONG_SHOWN = 100
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
            "remember_rejected",
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
        self._policies = policies
        self._fence = Fence(engine, role)
        self._fence.on_moved = self._moved
        with engine.connect() as connection:
            newest = store.newest_time(connection)
        #: On one machine, where one shard has everything, nobody else can have changed anything.
        self._tenure = None if engine.dialect.name == "sqlite" else SharedReach(self._look)
        webhooks = self._settings.webhooks
        self._writer = SlotWriter(policies, clock, newest, role if webhooks is not None else "")
        loader = TenantLoader(
            self._settings.index,
            {Tier.L1: self._settings.l1_capacity, Tier.L2: self._settings.l2_capacity},
            self._settings.retention,
            policies,
            self._writer.load_notes,
        )
        residency = Residency(self._settings.loaded_bytes, self._settings.idle_seconds)
        self._rulings = SlotRulings(self._writer)
        self._committer = GroupCommitter(
            engine,
            self._fence,
            on_lost=self._distrust,
            on_begin=lambda: self._tenants.group_begins(),
            observe=observe,
        )
        self._tenants = LoadedTenants(engine, self._fence, self._committer, policies, loader, residency)
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
        await self._tenants.get(company, dimension)
        decide = partial(self._writer.remember, company=company, facts=facts, vectors=vectors, **arguments)
        return await self._write(company, dimension, decide, arguments["actor"])

    async def remember_rejected(self, company: str, actor: Record, request: Record) -> Record:
        """Keeps that nothing of a request was to be stored (``SlotWriter.remember_rejected``). Loads nothing.

        Raises ``NotFound`` where the company was erased meanwhile, also where its name is in use again.
        """

        def body(connection: sa.Connection) -> Record:
            self._fence.require_company(company)
            self._policies.current(company)
            self._policies.require_open(company, actor.get("company_since"))
            return self._writer.remember_rejected(connection, company, actor, request)

        return await asyncio.wrap_future(self._committer.submit(body))

    async def retire(self, company: str, **arguments: Any) -> Record:
        """Deletes, corrects or expires a fact (``SlotWriter.retire``)."""
        retire = partial(self._writer.retire, company=company, **arguments)
        return await self._write(company, None, retire, arguments["actor"])

    async def correct(self, company: str, **arguments: Any) -> Record:
        """Puts the right text and value in a wrong fact's place (``SlotRulings.correct``)."""
        correct = partial(self._rulings.correct, company=company, **arguments)
        return await self._write(company, None, correct, arguments["actor"])

    async def resolve(self, company: str, **arguments: Any) -> Record:
        """Carries out an owner's ruling (``SlotRulings.resolve``)."""
        resolve = partial(self._rulings.resolve, company=company, **arguments)
        return await self._write(company, None, resolve, arguments["actor"])

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
        erase = partial(self._writer.erase_user, company=company, user=user, actor=actor)
        return await self._write(company, None, erase, actor)

    async def erase_company(self, company: str) -> Record:
        """Deletes all that the store has of a company, its decisions included: ``{"erased": {table: rows}}``."""

        def body(connection: sa.Connection) -> Record:
            self._fence.require_company(company)
            return {"erased": store.erase_company(connection, company)}

        def after(_: Record) -> None:
            self._tenants.drop(company)
            self._writer.log.forget_heads()

        return await asyncio.wrap_future(self._committer.submit(body, after))

    async def recall(self, company: str, plan: Record) -> Record:
        """Applies a router's plan: ``candidates`` (best first), the gate's decision and the tiers searched.

        While the store is away, what is loaded goes on answering, and says so: ``degraded``.
        """
        vector = np.frombuffer(plan["vector"], np.float32)
        tenant = await self._tenants.get(company, len(vector))
        asked = await asyncio.gather(self._policies.refresh(company), self._is_ours(company))
        reachable = all(asked) and self._committer.reachable and company not in self._tenants.stale
        tenant = await self._tenants.read_by_policy(company, tenant)
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
            "candidates": [self._candidate(company, tenant, c, plan["bound"]) for c in found],
            "gate": gate.to_dict(),
            "tiers": [tier.value for tier in tiers],
            "degraded": None if reachable else STORE_UNREACHABLE,
            # For the router, which reads the next query of the company by it.
            **({} if as_router else {"extraction": [tenant.extraction.languages, tenant.extraction.patterns]}),
        }

    def answers_at_once(self, company: str, plan: Record) -> bool:
        """Whether a recall finds its company loaded and asks about now, so that it holds no other one up."""
        return not plan["moments"] and self._tenants.is_loaded(company)

    def _candidate(self, company: str, tenant: Tenant, candidate: Candidate, bound: Record) -> Record:
        return {
            **self._writer.handed_out(company, tenant, candidate.resident.fact, bound),
            "tier": candidate.tier.value,
            "score": candidate.score,
            "terms": candidate.terms,
        }

    async def observe(
        self, company: str, questions: Sequence[Record], vectors: bytes, profile: Record, top_k: int
    ) -> list[Record]:
        """What each question shows of the gate (``calibration.observe``); others are answered between two of them.

        ``questions``: ``{query, wanted}``. ``vectors``: (n, d) float32 in C order, of the queries.
        """
        rows = np.frombuffer(vectors, np.float32).reshape(len(questions), -1)
        tenant = await self._tenants.get(company, rows.shape[1])
        await self._policies.refresh(company)
        tenant = await self._tenants.read_by_policy(company, tenant)
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
        found = self._tenants.of(unit)

        def body(connection: sa.Connection) -> None:
            for company, _ in found:
                self._tenants.save_usage(connection, company)

        await asyncio.wrap_future(self._committer.submit(body))
        return {"companies": [[name, tenant.spaces[Tier.L1].index.dimension] for name, tenant in found]}

    async def preload(self, companies: Sequence[tuple[str, int]]) -> Record:
        """Reads companies (with their vectors' dimensions) that are about to come, beside the work: ``{"read": n}``.

        What was read for an earlier move that was not made is forgotten.
        """
        await self._tenants.read_ahead(companies)
        return {"read": len(companies)}

    async def load_largest(self) -> None:
        """Loads what is this shard's before anybody asks, in half of the memory (``LoadedTenants.load_largest``)."""
        await self._tenants.load_largest(self._settings.loaded_bytes // 2)

    async def settle(self) -> Record:
        """Learns now what came and went: how many companies are loaded after that."""
        await asyncio.wrap_future(self._committer.submit(lambda connection: None))
        self._tenants.forget_gone()
        return {"tenants_loaded": len(self._tenants.by_company)}

    def _moved(self, connection: sa.Connection, changed: frozenset[int]) -> None:
        """Companies came or went, or went and came back. What was loaded of them is forgotten; what was told of them
        was told before whatever is told from now on."""
        self._writer.log.forget_heads()
        newest = store.newest_time(connection)
        if newest is not None:
            self._writer.not_before(newest)
        if self._sender is not None:
            self._sender.wake()
        self._tenants.forget_moved(changed)

    async def warm(self, company: str, dimension: int) -> Record:
        """Loads a company before it is asked for: its tiers' sizes."""
        return (await self._tenants.get(company, dimension)).sizes()

    async def stats(self) -> Record:
        """Counts of this shard, without any company's name."""
        tenants = list(self._tenants.by_company.values())
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
        sizes = [tenant.sizes() for tenant in list(self._tenants.by_company.values())]
        for tier in Tier:
            yield TIER_FACTS, sum(size[tier.value] for size in sizes), {"tier": tier.value}
        yield COMPANIES_LOADED, len(sizes), {}
        above = (size[Tier.L2.value] - self._settings.l2_capacity for size in sizes)
        yield ESSENTIAL_OVERFLOW, sum(max(0, facts) for facts in above), {}
        yield QUEUE_LENGTH, self._committer.queued, {"queue": "memory_writes"}

    async def verify(self) -> Record:
        """Compares the indexes of what is loaded with the store: ``{companies, facts, wrong}``, ids of facts."""
        answer: Record = {"companies": 0, "facts": 0, "wrong": []}
        for company in list(self._tenants.by_company):
            compared: list[tuple[int, list[str]]] = []

            def body(connection: sa.Connection, company: str = company) -> list[store.Stored]:
                return list(store.indexed_facts(connection, company))

            def after(stored: list[store.Stored], company: str = company, compared: list[Any] = compared) -> None:
                tenant = self._tenants.by_company.get(company)
                if tenant is not None and company not in self._tenants.stale:
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
        for company in list(self._tenants.by_company) if not self._committer.fenced else ():
            self._committer.submit(lambda connection, c=company: self._tenants.save_usage(connection, c))  # type: ignore[misc]
        self._committer.close()
        for company in list(self._tenants.by_company):
            self._tenants.drop(company)
        self._writer.log.forget_heads()

    # --- writing

    async def _write(
        self,
        company: str,
        dimension: int | None,
        decide: Callable[[sa.Connection, Tenant], Written],
        actor: Record | None = None,
    ) -> Record:
        """Runs ``decide`` on the writing thread, inside the transaction, with the company loaded.

        Raises ``NotFound`` where the company was erased meanwhile, also where its name is in use again.
        """
        since = None if actor is None else actor.get("company_since")
        if company not in self._tenants.by_company and not self._committer.fenced:
            with available():  # beside the work: between two writes it would hold up those of all others
                await self._tenants.load(company, dimension)

        def body(connection: sa.Connection) -> tuple[Written, Tenant]:
            self._fence.require_company(company)
            tenant = self._tenants.to_change(connection, company, dimension)
            self._policies.require_open(company, since)
            plans = tenant.plans
            try:
                written = decide(connection, tenant)
                store.set_usage(connection, tenant.take_unsaved_usage())
            except BaseException:
                # The savepoint takes back what was written; a plan that is half changed is read again.
                if tenant.plans != plans:
                    self._tenants.drop(company)
                self._writer.log.forget_heads()
                raise
            return written, tenant

        def after(outcome: tuple[Written, Tenant]) -> None:
            written, tenant = outcome
            tenant.apply(written.changes)
            self._tenants.changed(company)
            self._tell(written)
            if written.told_outside and self._sender is not None:
                self._sender.wake()

        written, tenant = await asyncio.wrap_future(self._committer.submit(body, after))
        self._tenants.used(company, tenant)
        return written.answer

    def _distrust(self) -> None:
        """A commit failed: what memory knows of companies and of their logs may not be what the store has."""
        self._tenants.distrust()
        self._writer.log.forget_heads()

    def _tell(self, written: Written) -> None:
        for tier, count in written.evictions.items():
            self._observe(EVICTIONS, count, tier=tier.value)
        self._observe(ESSENTIAL_KEPT, written.overflowed)
        for result in written.answer.get("results", ()):
            self._observe(OUTCOMES, 1, outcome=result["outcome"])
