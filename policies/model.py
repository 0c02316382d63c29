"""The nouns: facts, sources, slots and the closed sets of words they use (DESIGN.md, "Words")."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from muniment.policies.errors import InvalidInput

Scalar = str | int | float | bool


class Scope(StrEnum):
    """Whom a fact is for; decided before any winner (seed 000)."""

    SHARED = "shared"
    PERSONAL = "personal"


class SourceKind(StrEnum):
    """Where a fact came from, strongest first in the default order (seed 000, "O que decide")."""

    SYSTEM_OF_RECORD = "system_of_record"
    APPROVED_DOCUMENT = "approved_document"
    AUTHORIZED_PERSON = "authorized_person"
    COUNTERPARTY = "counterparty"
    AGENT_SUMMARY = "agent_summary"
    UNATTRIBUTED = "unattributed"


class Status(StrEnum):
    """What a fact is now. Only ``current`` (and a ``disputed`` challenger beside its incumbent) is ever handed out."""

    CURRENT = "current"
    DISPUTED = "disputed"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    CORRECTED = "corrected"
    DELETED = "deleted"


class Outcome(StrEnum):
    """What became of one fact that was told."""

    STORED = "stored"
    CORROBORATED = "corroborated"
    REPLACED = "replaced"
    KEPT = "kept"
    HELD = "held"
    COEXISTS = "coexists"
    REJECTED = "rejected"


class Tier(StrEnum):
    """Where a fact is indexed: working memory or archive."""

    L1 = "L1"
    L2 = "L2"


class ConflictKind(StrEnum):
    """Why a slot is on somebody's list."""

    CONFLICT = "conflict"
    REVIEW = "review"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Testimony about where a fact came from; never permission."""

    kind: SourceKind
    id: str | None = None
    uri: str | None = None
    author: str | None = None
    role: str | None = None
    party: str | None = None
    external: bool = False
    derived_from: tuple[str, ...] = ()

    @property
    def attributed(self) -> bool:
        """Whether anything names who or what said it."""
        return self.kind is not SourceKind.UNATTRIBUTED and any((self.id, self.uri, self.author))


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """The thing two facts can disagree about. ``user`` is empty for the shared scope."""

    company: str
    scope: Scope
    user: str
    subject: str
    field: str

    @property
    def key(self) -> str:
        """An unambiguous string for indexing: subject and field compare in NFC, case-folded and trimmed."""
        parts = (self.scope.value, self.user, fold(self.subject), fold(self.field))
        return "\x1f".join(p.replace("\x1f", "\x1f\x1f") for p in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A stored memory. All datetimes are aware and in UTC; all text is NFC. ``importance`` is in [0, 1]."""

    id: str
    company: str
    text: str
    source: Source
    writer: str
    recorded_at: datetime
    importance: float
    status: Status = Status.CURRENT
    subject: str | None = None
    field: str | None = None
    value: Scalar | None = None
    area: str | None = None
    agent: str | None = None
    scope: Scope = Scope.SHARED
    user: str | None = None
    effective_at: datetime | None = None
    review_at: datetime | None = None
    expires_at: datetime | None = None
    entities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = dataclass_field(default_factory=dict)
    superseded_by: str | None = None
    corroborates: str | None = None

    @property
    def slot(self) -> Slot | None:
        """The slot this fact claims a value for, or None for free text."""
        if self.subject is None or self.field is None:
            return None
        return Slot(self.company, self.scope, self.user or "", self.subject, self.field)

    def in_force(self, now: datetime) -> bool:
        """Whether ``now`` lies in [effective_at, expires_at)."""
        return (self.effective_at is None or self.effective_at <= now) and (
            self.expires_at is None or now < self.expires_at
        )

    def visible_to(self, user: str | None) -> bool:
        """Whether the actor may see it: shared facts always, personal ones only their user (rule 2)."""
        return self.scope is Scope.SHARED or (user is not None and self.user == user)


def nfc(text: str) -> str:
    """Text in Unicode normalisation form C, the form in which this project compares, hashes and searches."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """NFC, trimmed and case-folded: the form in which names and text values are equal."""
    return nfc(nfc(text.strip()).casefold())


def utc(moment: datetime, pointer: str = "") -> datetime:
    """``moment`` in UTC. A naive one is an error (rule 15), named by ``pointer``."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidInput.at(pointer, "the time has no UTC offset")
    return moment.astimezone(UTC)
