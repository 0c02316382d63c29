"""Requests about effects and the tools that cause them (API.md, "Effects")."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from muniment.cluster.schemas.base import (
    Arguments,
    Flag,
    Listed,
    Moment,
    Name,
    Note,
    Page,
    Request,
    Version,
    problem,
)
from muniment.policies.effect_gate import ToolClassification
from muniment.policies.effect_gate import Window as DomainWindow
from muniment.policies.errors import InvalidInput
from muniment.policies.fingerprint import MAX_KEY_PATHS, parse_key_path, parse_key_paths

MAX_WINDOW_SECONDS = 100 * 366 * 86400
MAX_LEASE_SECONDS = 7 * 86400
MAX_WAIT_MS = 30_000
MAX_IMPORTED_KEYS = 1000


def _pointer(text: str) -> str:
    """A declared path as JSON Pointer; ``owner.name`` is shorthand for ``/owner/name``."""
    try:
        return parse_key_path(text).pointer
    except InvalidInput as error:
        raise problem(error.fields["errors"][0]["message"]) from None


KeyPath = Annotated[Name, AfterValidator(_pointer)]


class WindowSpan(Request):
    """How long a confirmed effect counts as already done: ``seconds`` > 0, or for ever."""

    seconds: Annotated[float, Field(strict=True, gt=0, le=MAX_WINDOW_SECONDS, allow_inf_nan=False)] | None = None
    permanent: Literal[True] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.seconds is None) == (self.permanent is None):
            raise problem("needs either seconds or permanent: true")
        return self

    def to_domain(self) -> DomainWindow:
        """The window as the policies know it."""
        return DomainWindow(seconds=self.seconds, permanent=self.permanent is True)


def _branch(value: Any) -> str:
    return "off" if isinstance(value, str) else "span"


Window = Annotated[
    Annotated[Literal["off"], Tag("off")] | Annotated[WindowSpan, Tag("span")],
    Discriminator(_branch),
]


class ClassificationRequest(Request):
    """Which arguments of a tool name its effect, and how long a confirmed one counts. Window ``off``: no key.

    As it is read it can be written back: ``tool`` is that of the path, and ``version`` what is to be replaced.
    """

    key_paths: Annotated[tuple[KeyPath, ...], Listed(MAX_KEY_PATHS)]
    window: Window
    lease_seconds: Annotated[float, Field(strict=True, ge=1, le=MAX_LEASE_SECONDS, allow_inf_nan=False)] = 60
    max_duplicates_per_run: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 3
    blocked: Flag = False
    block_when_tainted: Flag = False
    tool: Name | None = None
    version: Version | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if not self.key_paths and self.window != "off":
            raise problem("must not be empty unless the window is off", "key_paths")
        if len(set(self.key_paths)) != len(self.key_paths):
            raise problem("names a path twice", "key_paths")
        return self

    def to_domain(self, company: str, tool: str, version: int) -> ToolClassification:
        """The classification as the policies know it."""
        span = DomainWindow() if isinstance(self.window, str) else self.window.to_domain()
        return ToolClassification(
            company=company,
            tool=tool,
            key_paths=parse_key_paths(self.key_paths) if self.key_paths else (),
            window=span,
            version=version,
            lease_seconds=self.lease_seconds,
            max_duplicates_per_run=self.max_duplicates_per_run,
            blocked=self.blocked,
            block_when_tainted=self.block_when_tainted,
        )


class ProposeRequest(Request):
    """An effect that a run is about to cause."""

    area: Name
    agent: Name
    agent_version: Name | None = None
    tool: Name
    arguments: Arguments
    run_id: Name
    step_id: Name
    tainted: Flag = False
    wait_ms: Annotated[int, Field(strict=True, ge=0, le=MAX_WAIT_MS)] = 500


class ReservationRequest(Request):
    """A reservation, by its token: to confirm, renew or release it."""

    token: Name
    reason: Note | None = None
    result_ref: Note | None = None


class EffectsQuery(Page):
    """A list of keys and their state; what is reserved comes oldest first."""

    state: Literal["reserved", "confirmed", "released", "lapsed"] | None = None
    area: Name | None = None
    agent: Name | None = None
    tool: Name | None = None
    run_id: Name | None = None


class ForgetRequest(Request):
    """A key that no longer counts as done."""

    area: Name
    agent: Name
    tool: Name
    arguments: Arguments
    reason: Note


class ImportedOrigin(Request):
    """Which run and step of the older system caused an effect, as far as known."""

    run_id: Name | None = None
    step_id: Name | None = None


class ImportedKey(Request):
    """An effect that an older system is known to have caused."""

    area: Name
    agent: Name
    tool: Name
    arguments: Arguments
    confirmed_at: Moment | None = None
    origin: ImportedOrigin | None = None


class ImportKeysRequest(Request):
    """Confirmed effects of an older system."""

    effects: Annotated[tuple[ImportedKey, ...], Listed(MAX_IMPORTED_KEYS, least=1)]


class TrailQuery(Page):
    """A page of a run's trail, in order."""
