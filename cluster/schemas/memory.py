"""Requests about facts, recall, conflicts and decisions (API.md, "Memory" and "How a conflict is decided")."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, RootModel, model_validator

from muniment.cluster.schemas.base import (
    DEFAULT_LIMITS,
    MAX_TOP_K,
    Finite,
    Flag,
    Items,
    Listed,
    Metadata,
    Moment,
    Name,
    Note,
    Page,
    PageLimit,
    QueryShare,
    Request,
    Share,
    Text,
    Value,
    Version,
    Write,
    json_object,
    problem,
)
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.model import ConflictKind, Fact, Scope, Source, SourceKind, Status
from muniment.policies.precedence_policy import PrecedencePolicy

MAX_POLICY_BYTES = 512 * 1024
MAX_POLICY_DEPTH = 8


class SourceIn(Request):
    """Testimony about where a fact came from; never permission."""

    kind: SourceKind
    id: Name | None = None
    uri: Note | None = None
    author: Name | None = None
    role: Name | None = None
    party: Name | None = None
    external: Flag = False
    derived_from: Items[Name] = ()

    def to_domain(self) -> Source:
        """The source as the policies know it."""
        return Source(**{name: getattr(self, name) for name in type(self).model_fields})


class FactIn(Request):
    """A fact to remember. ``subject``, ``field`` and ``value`` come together or not at all."""

    text: Text
    subject: Name | None = None
    field: Name | None = None
    value: Value | None = None
    area: Name | None = None
    agent: Name | None = None
    scope: Scope = Scope.SHARED
    user: Name | None = None
    source: SourceIn
    effective_at: Moment | None = None
    review_at: Moment | None = None
    expires_at: Moment | None = None
    importance: Share | None = None
    entities: Items[Name] = ()
    tags: Items[Name] = ()
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        slot = {"subject": self.subject, "field": self.field, "value": self.value}
        absent = [name for name, given in slot.items() if given is None]
        if 0 < len(absent) < len(slot):
            raise problem("subject, field and value come together or not at all", absent[0])
        if self.user is not None and self.scope is Scope.SHARED:
            raise problem("only a personal fact has a user", "user")
        _ordered(self.effective_at, self.expires_at)
        return self

    def to_domain(
        self, *, id: str, company: str, writer: str, recorded_at: datetime, default_importance: float, **changed: Any
    ) -> Fact:
        """The fact as the policies know it; ``changed`` fields (``user``, ``area``, …) win over the request's."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        fields["source"] = self.source.to_domain()
        fields["importance"] = default_importance if self.importance is None else self.importance
        fields |= {"id": id, "company": company, "writer": writer, "recorded_at": recorded_at, **changed}
        return Fact(**fields)


def _ordered(effective_at: datetime | None, expires_at: datetime | None) -> None:
    if effective_at is not None and expires_at is not None and expires_at <= effective_at:
        raise problem("must be later than effective_at", "expires_at")


class RememberRequest(Write):
    """A batch of facts, which commits in one transaction or stores nothing."""

    facts: Annotated[tuple[FactIn, ...], Listed(DEFAULT_LIMITS.batch_facts, least=1, setting="batch_facts")]


class RecallFilters(Request):
    """What a recalled fact must have. Lists: any of ``source_kinds``, all of ``tags``."""

    subject: Name | None = None
    field: Name | None = None
    area: Name | None = None
    agent: Name | None = None
    source_kinds: Items[SourceKind] = ()
    tags: Items[Name] = ()
    min_importance: Share | None = None


class Profile(StrEnum):
    """Which setting of the recall path is used: ``fast`` without reranker, ``paper`` as published."""

    DEFAULT = "default"
    FAST = "fast"
    PAPER = "paper"


class RecallRequest(Request):
    """A question. ``min_score``: results below it are left out; higher is better."""

    query: Text
    top_k: Annotated[int, Field(strict=True, ge=1, le=MAX_TOP_K)] = 5
    filters: RecallFilters = RecallFilters()
    min_score: Finite | None = None
    as_of: Moment | None = None
    known_at: Moment | None = None
    explain: Flag = False
    profile: Profile = Profile.DEFAULT


class FactsQuery(Request):
    """The current value of a slot and its history, by rule."""

    subject: Name
    field: Name
    as_of: Moment | None = None
    known_at: Moment | None = None


class MemoriesQuery(Page, RecallFilters):
    """A list of facts, newest first."""

    min_importance: QueryShare | None = None
    status: Status | None = None
    scope: Scope | None = None
    user: Name | None = None


class HistoryQuery(Page):
    """A page of what became of a fact, oldest first."""


class CorrectRequest(Write):
    """The right value and text of a fact that was wrong."""

    value: Value | None = None
    text: Text
    reason: Note


class ExpireRequest(Write):
    """Why a fact no longer holds."""

    reason: Note


class ConflictStatus(StrEnum):
    """What became of a conflict."""

    OPEN = "open"
    RESOLVED = "resolved"
    WITHDRAWN = "withdrawn"


class ConflictsQuery(Page):
    """A list of conflicts, reviews and notices."""

    kind: ConflictKind | None = None
    status: ConflictStatus | None = None
    owner: Name | None = None
    subject: Name | None = None
    field: Name | None = None


class Ruling(StrEnum):
    """What the owner decided."""

    ACCEPT_CHALLENGER = "accept_challenger"
    KEEP_INCUMBENT = "keep_incumbent"
    NEW_VALUE = "new_value"
    BOTH_VALID = "both_valid"
    DISMISS = "dismiss"


class Rescope(Request):
    """Where the challenger is true instead, so that both facts are."""

    scope: Scope | None = None
    user: Name | None = None
    subject: Name | None = None
    field: Name | None = None
    effective_at: Moment | None = None
    expires_at: Moment | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise problem("must change something")
        _ordered(self.effective_at, self.expires_at)
        return self


class ResolutionRequest(Write):
    """A ruling. ``both_valid`` needs ``rescope``, ``new_value`` needs ``value``."""

    decision: Ruling
    value: Value | None = None
    text: Text | None = None
    rescope: Rescope | None = None
    note: Note | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {Ruling.BOTH_VALID: "rescope", Ruling.NEW_VALUE: "value"}
        for decision, name in needed.items():
            given = getattr(self, name) is not None
            if given and self.decision is not decision:
                raise problem(f"belongs to {decision.value}", name)
            if not given and self.decision is decision:
                raise problem(f"is required by {decision.value}", name)
        return self


class AuditRequest(Page):
    """A search for contradictions that already lie in the store."""

    limit: PageLimit = 50
    subject: Name | None = None


class WrittenPrecedence(PrecedencePolicy):
    """A precedence policy as it is read and written back: with ``version``, it replaces that one and no other."""

    version: Version | None = None


class WrittenMemoryPolicy(MemoryPolicy):
    """A memory policy as it is read and written back: with ``version``, it replaces that one and no other."""

    version: Version | None = None


def _policy(value: Any) -> Any:
    if isinstance(value, (PrecedencePolicy, MemoryPolicy)):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return json_object(value, MAX_POLICY_DEPTH, MAX_POLICY_BYTES)


#: A written precedence, refused before it is looked at where it is too large.
Policy = Annotated[WrittenPrecedence, BeforeValidator(_policy)]


class PrecedenceRequest(RootModel[Policy]):
    """The whole precedence policy of a company; it replaces the one before."""

    model_config = ConfigDict(frozen=True)


class MemoryPolicyRequest(RootModel[Annotated[WrittenMemoryPolicy, BeforeValidator(_policy)]]):
    """The whole memory policy of a company; it replaces the one before."""

    model_config = ConfigDict(frozen=True)


class SimulateRequest(Request):
    """What this policy would have decided differently, from ``since`` on. Its ``version`` says nothing here."""

    policy: Policy
    since: Moment | None = None


class DecisionsQuery(Page):
    """A list of entries of the decision log, oldest first."""

    subject: Name | None = None
    field: Name | None = None
    run_id: Name | None = None
    since: Moment | None = None
    kind: Name | None = None
