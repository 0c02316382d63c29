"""The written precedence of a company: who outranks whom, who owns which slot, what is sensitive (seed 000).

``PrecedencePolicy`` is what an administrator writes (API.md, "How a conflict is decided"); ``resolve`` is what it says
about one slot. Globs know ``*`` (any run of characters) and ``?`` (one character), and compare folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from muniment.policies.errors import InvalidInput
from muniment.policies.model import Scope, Slot, SourceKind, fold, nfc
from muniment.policies.values import Comparator

UNASSIGNED = "unassigned"
"""The owner where no policy names one: every key with the role of owner sees the slot's conflicts and may rule."""

DEFAULT_RANKS: tuple[tuple[SourceKind, ...], ...] = tuple((kind,) for kind in SourceKind)

DEFAULT_SENSITIVE_FIELDS: tuple[str, ...] = (
    # Money.
    *("*payment*", "*bank*", "*iban*", "*billing*", "*invoice*", "*price*", "*pricing*", "*discount*", "*refund*"),
    *("*salary*", "*credit_limit*", "*budget*", "*pagamento*", "*preço*", "*preco*", "*salário*", "*salario*"),
    *("*conta_bancaria*", "*conta_bancária*", "pix", "*_pix", "pix_*"),
    # Permissions.
    *("*permission*", "*privilege*", "*access_level*", "*access_right*", "*password*", "*credential*", "*api_key*"),
    *("*permissao*", "*permissão*", "*permissoes*", "*permissões*", "*senha*"),
    # Legal commitments.
    *("*contract*", "*legal*", "*liability*", "*warranty*", "*consent*", "nda", "*_nda", "*contrato*", "*jurídic*"),
    *("*juridic*",),
    # Personal data.
    *("*birth*", "*passport*", "*tax_id*", "*national_id*", "*social_security*", "*home_address*", "*medical*"),
    *("*health*", "*diagnos*", "*religio*", "*ethnic*", "cpf", "*_cpf", "*nascimento*", "*saúde*", "*saude*"),
)
"""Fields whose facts change only through their owner where no policy says otherwise."""

_T = TypeVar("_T")

_MAX_FIELDS, _MAX_SLOTS, _MAX_GLOBS, _MAX_PROPOSERS = 500, 2_000, 500, 100


def _clean(text: str) -> str:
    text = nfc(text.strip())
    if not text:
        raise ValueError("must not be empty")
    if "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must not hold NUL or lone surrogates")
    return text


def _owner(text: str) -> str:
    if text.startswith(("user:", "group:")):
        raise ValueError("an owner is the bare user id or group name, without 'user:' or 'group:'")
    if text == "*":
        raise ValueError("an owner is one user or one group, never '*'")
    return text


def _proposer(text: str) -> str:
    kind, _, name = text.partition(":")
    if text in ("*", "self") or (kind in ("user", "group") and name):
        return text
    raise ValueError("must be '*', 'self', 'user:ID' or 'group:NAME'")


def _webhook(text: str) -> str:
    try:
        address = urlsplit(text)
        host = (address.hostname or "").encode("idna")
        known = address.scheme in ("http", "https") and bool(host) and address.port != 0
    except ValueError:  # a port that is no number, a part of the name that is empty or too long
        known = False
    if not known:
        raise ValueError("must be an http or https address of a host")
    return text


def _ranks(ranks: tuple[tuple[SourceKind, ...], ...]) -> tuple[tuple[SourceKind, ...], ...]:
    kinds = [kind for level in ranks for kind in level]
    twice = {kind.value for kind in kinds if kinds.count(kind) > 1}
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))} stands more than once")
    return ranks


PolicyName = Annotated[str, Field(max_length=200), AfterValidator(_clean)]
Glob = Annotated[str, Field(max_length=200), AfterValidator(_clean)]
_Owner = Annotated[PolicyName, AfterValidator(_owner)]
_Proposers = Annotated[tuple[Annotated[PolicyName, AfterValidator(_proposer)], ...], Field(max_length=_MAX_PROPOSERS)]
_Level = Annotated[tuple[SourceKind, ...], Field(min_length=1, max_length=len(SourceKind))]
_Ranks = Annotated[tuple[_Level, ...], Field(min_length=1, max_length=len(SourceKind)), AfterValidator(_ranks)]
_Days = Annotated[int, Field(ge=1, le=36_500, strict=True)]


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FieldPolicy(_Written):
    """What holds for the fields that a glob names. What is absent is taken from the next, less specific glob."""

    ranks: _Ranks | None = None
    owner: _Owner | None = None
    proposers: _Proposers | None = None
    sensitive: bool | None = None
    self_authority: bool | None = None
    review_after_days: _Days | None = None
    comparator: Comparator | None = None


class SlotPolicy(_Written):
    """Owner and proposers of the slots whose subject and field match; beats every field's policy."""

    subject: Glob
    field: Glob
    owner: _Owner | None = None
    proposers: _Proposers | None = None


class EscalationPolicy(_Written):
    """How long an owner has, who may rule after that, and which address is told."""

    due_days: _Days | None = None
    delegate: _Owner | None = None
    webhook: Annotated[str, Field(max_length=2_000), AfterValidator(_webhook)] | None = None


class PrecedencePolicy(_Written):
    """A company's precedence, as written. The empty policy is the default one."""

    ranks: _Ranks = DEFAULT_RANKS
    fields: Annotated[dict[Glob, FieldPolicy], Field(max_length=_MAX_FIELDS)] = Field(default_factory=dict)
    slots: Annotated[tuple[SlotPolicy, ...], Field(max_length=_MAX_SLOTS)] = ()
    default_owner: _Owner | None = None
    sensitive_fields: Annotated[tuple[Glob, ...], Field(max_length=_MAX_GLOBS)] = DEFAULT_SENSITIVE_FIELDS
    escalation: EscalationPolicy = EscalationPolicy()

    @model_validator(mode="after")
    def _no_glob_twice(self) -> Self:
        _refuse_twice("fields", (fold(glob) for glob in self.fields))
        _refuse_twice("slots", (f"{fold(entry.subject)} / {fold(entry.field)}" for entry in self.slots))
        return self


def _refuse_twice(where: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{where}: {name} stands more than once")
        seen.add(name)


def parse_policy(data: Any, pointer: str = "") -> PrecedencePolicy:
    """The policy that ``data`` (parsed JSON or YAML) describes. Raises ``InvalidInput`` that names every wrong field.

    ``pointer``: where ``data`` stands in the request, as a JSON Pointer.
    """
    try:
        return PrecedencePolicy.model_validate(data)
    except ValidationError as error:
        wrong = [
            {"pointer": pointer + _json_pointer(item["loc"]), "message": item["msg"].removeprefix("Value error, ")}
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        # A list whose item is wrong is also "too short" for pydantic; the item's own error says it all.
        wrong = [w for w in wrong if not any(o["pointer"].startswith(w["pointer"] + "/") for o in wrong)]
        first = wrong[0]
        raise InvalidInput(f"{first['pointer'] or '/'}: {first['message']}", errors=wrong) from error


def _json_pointer(location: tuple[int | str, ...]) -> str:
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in location if part != "[key]")
    return "".join(f"/{part}" for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRules:
    """What the policy says about one slot. ``proposers`` is None where none are written."""

    ranks: tuple[tuple[SourceKind, ...], ...] = DEFAULT_RANKS
    owner: str = UNASSIGNED
    proposers: tuple[str, ...] | None = None
    sensitive: bool = False
    self_authority: bool = False
    review_after_days: int | None = None
    comparator: Comparator | None = None
    due_days: int | None = None
    delegate: str | None = None
    webhook: str | None = None

    def due_at(self, opened_at: datetime) -> datetime | None:
        """When what was opened then goes to the delegate."""
        return None if self.due_days is None else opened_at + timedelta(days=self.due_days)

    def to_dict(self) -> dict[str, Any]:
        """The rules as plain JSON, for the decision log."""
        return {
            "ranks": [[kind.value for kind in level] for level in self.ranks],
            "owner": self.owner,
            "proposers": None if self.proposers is None else list(self.proposers),
            "sensitive": self.sensitive,
            "self_authority": self.self_authority,
            "review_after_days": self.review_after_days,
            "comparator": None if self.comparator is None else self.comparator.value,
        }


def resolve(policy: PrecedencePolicy, slot: Slot) -> SlotRules:
    """What the policy says about the slot.

    Each property comes from the most specific entry that has it. Entries in order: ``slots``, then ``fields``; within
    ``fields`` a name without wildcards before any glob, then the longer glob, then the one with more literal
    characters, then the smaller one in code point order. ``slots`` sort by: number of exact names, an exact subject,
    length of both globs together, literal characters, then subject and field in code point order. A field is sensitive
    if ``sensitive_fields`` has it, unless an entry of ``fields`` says otherwise. A personal fact belongs to its user.
    """
    subject, field = fold(slot.subject), fold(slot.field)
    by_field = _matching_fields(policy.fields, field)
    by_slot = sorted(
        (entry for entry in policy.slots if glob_matches(entry.field, field) and glob_matches(entry.subject, subject)),
        key=_slot_order,
    )
    owners = [entry.owner for entry in by_slot] + [entry.owner for entry in by_field]
    proposers = [entry.proposers for entry in by_slot] + [entry.proposers for entry in by_field]
    sensitive = _first(entry.sensitive for entry in by_field)
    if sensitive is None:
        sensitive = any(glob_matches(glob, field) for glob in policy.sensitive_fields)
    personal = slot.scope is Scope.PERSONAL
    return SlotRules(
        ranks=_first(entry.ranks for entry in by_field) or policy.ranks,
        owner=slot.user if personal else _first(owners) or policy.default_owner or UNASSIGNED,
        proposers=() if personal else _first(proposers),
        sensitive=sensitive,
        self_authority=_first(entry.self_authority for entry in by_field) or False,
        review_after_days=_first(entry.review_after_days for entry in by_field),
        comparator=_first(entry.comparator for entry in by_field),
        due_days=policy.escalation.due_days,
        delegate=None if personal else policy.escalation.delegate,
        webhook=policy.escalation.webhook,
    )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _matching_fields(fields: Mapping[str, FieldPolicy], field: str) -> list[FieldPolicy]:
    return [fields[glob] for glob in sorted((g for g in fields if glob_matches(g, field)), key=_glob_order)]


def _exact(glob: str) -> bool:
    return "*" not in glob and "?" not in glob


def _literals(glob: str) -> int:
    return len(glob) - glob.count("*") - glob.count("?")


def _glob_order(glob: str) -> tuple[bool, int, int, str]:
    return (not _exact(glob), -len(glob), -_literals(glob), glob)


def _slot_order(entry: SlotPolicy) -> tuple[int, bool, int, int, str, str]:
    subject, field = entry.subject, entry.field
    exact = _exact(subject) + _exact(field)
    return (
        -exact,
        not _exact(subject),
        -len(subject) - len(field),
        -_literals(subject) - _literals(field),
        subject,
        field,
    )


@lru_cache(maxsize=8_192)
def _folded(glob: str) -> str:
    return fold(glob)


def glob_matches(glob: str, folded: str) -> bool:
    """Whether the glob names the folded text. Time is at most the product of the lengths, whatever the glob."""
    pattern = _folded(glob)
    at = in_text = 0
    star, resume = -1, 0
    while in_text < len(folded):
        if at < len(pattern) and pattern[at] == "*":
            star, resume, at = at, in_text, at + 1
        elif at < len(pattern) and pattern[at] in ("?", folded[in_text]):
            at, in_text = at + 1, in_text + 1
        elif star >= 0:
            at, resume = star + 1, resume + 1
            in_text = resume
        else:
            return False
    return all(character == "*" for character in pattern[at:])
