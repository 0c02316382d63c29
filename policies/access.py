"""Who may do what: roles, the permission table, and who acts in a request (API.md, "Common"; deny by default)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType

from muniment.policies.errors import Forbidden, InvalidInput, Unauthenticated
from muniment.policies.model import SourceKind, fold, nfc
from muniment.policies.precedence_policy import UNASSIGNED

#: What the actor of a key without a user begins with; no user id may, so that none can pass for a key.
KEY_ACTOR_PREFIX = "key:"


class Role(StrEnum):
    """What a key is for. A key may do what any of its roles may."""

    AGENT = "agent"
    OWNER = "owner"
    CURATOR = "curator"
    AUDITOR = "auditor"
    ADMIN = "admin"
    OPERATOR = "operator"


class Permission(StrEnum):
    """A verb that is granted by role."""

    REMEMBER = "remember"
    RECALL = "recall"  # recall, facts, memories and their history
    EFFECTS = "effects"  # propose, confirm, renew, release, list
    LIST_CONFLICTS = "list_conflicts"
    RULE_CONFLICTS = "rule_conflicts"
    CURATE = "curate"  # classification, precedence policy, audit, import of keys, forget
    READ_DECISIONS = "read_decisions"
    READ_TRAILS = "read_trails"
    READ_STATS = "read_stats"  # stats and verify
    CORRECT_FACTS = "correct_facts"  # correct, expire, delete
    ADMINISTER_COMPANY = "administer_company"  # keys of the company, export, erase a user
    OPERATE = "operate"  # companies, scale


class Extent(IntEnum):
    """How far a permission reaches; the larger the wider."""

    NONE = 0
    OWN = 1  # what the actor, or one of the actor's groups, owns; for a trail: the key's own runs
    ALL = 2


_NONE, _OWN, _ALL = Extent.NONE, Extent.OWN, Extent.ALL
_COLUMNS = (Role.AGENT, Role.OWNER, Role.CURATOR, Role.AUDITOR, Role.ADMIN, Role.OPERATOR)
_ROWS: Mapping[Permission, tuple[Extent, ...]] = {
    #                               agent  owner  curator auditor admin operator
    Permission.REMEMBER:           (_ALL,  _ALL,  _NONE,  _NONE,  _ALL,  _ALL),
    Permission.RECALL:             (_ALL,  _ALL,  _NONE,  _NONE,  _ALL,  _ALL),
    Permission.EFFECTS:            (_ALL,  _ALL,  _NONE,  _NONE,  _ALL,  _ALL),
    Permission.LIST_CONFLICTS:     (_NONE, _OWN,  _NONE,  _NONE,  _ALL,  _ALL),
    Permission.RULE_CONFLICTS:     (_NONE, _OWN,  _NONE,  _NONE,  _NONE, _ALL),
    Permission.CURATE:             (_NONE, _NONE, _ALL,   _NONE,  _ALL,  _ALL),
    Permission.READ_DECISIONS:     (_NONE, _OWN,  _ALL,   _ALL,   _ALL,  _ALL),
    Permission.READ_TRAILS:        (_OWN,  _ALL,  _ALL,   _ALL,   _ALL,  _ALL),
    Permission.READ_STATS:         (_NONE, _NONE, _ALL,   _ALL,   _ALL,  _ALL),
    Permission.CORRECT_FACTS:      (_NONE, _OWN,  _NONE,  _NONE,  _ALL,  _ALL),
    Permission.ADMINISTER_COMPANY: (_NONE, _NONE, _NONE,  _NONE,  _ALL,  _ALL),
    Permission.OPERATE:            (_NONE, _NONE, _NONE,  _NONE,  _NONE, _ALL),
}  # fmt: skip
#: The extent of every permission for every role.
TABLE: Mapping[tuple[Permission, Role], Extent] = MappingProxyType(
    {(permission, role): row[i] for permission, row in _ROWS.items() for i, role in enumerate(_COLUMNS)}
)

_AGENT_KINDS = frozenset({SourceKind.COUNTERPARTY, SourceKind.AGENT_SUMMARY, SourceKind.UNATTRIBUTED})
#: The source kinds a key of this role may claim where the key itself names none.
DEFAULT_SOURCE_KINDS: Mapping[Role, frozenset[SourceKind]] = MappingProxyType(
    {
        Role.AGENT: _AGENT_KINDS,
        Role.OWNER: _AGENT_KINDS | {SourceKind.AUTHORIZED_PERSON},
        Role.CURATOR: frozenset(SourceKind),
        Role.AUDITOR: frozenset(),
        Role.ADMIN: frozenset(SourceKind),
        Role.OPERATOR: frozenset(SourceKind),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a key was made for. ``company`` is None for an operator key only; ``source_kinds`` None: by role.

    ``company_since``: when its company was made, microseconds, as read with the key: another one may get the name.
    """

    key_id: str
    company: str | None
    roles: frozenset[Role]
    user: str | None = None
    groups: frozenset[str] = frozenset()
    source_kinds: frozenset[SourceKind] | None = None
    area: str | None = None
    agent: str | None = None
    expires_at: datetime | None = None
    company_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who acts in a request. ``user`` is the key's bound user or the X-User; ``area`` and ``agent`` bind the key."""

    company: str | None
    key_id: str
    roles: frozenset[Role]
    actor: str
    user: str | None = None
    groups: frozenset[str] = frozenset()
    source_kinds: frozenset[SourceKind] = frozenset()
    area: str | None = None
    agent: str | None = None
    company_since: int | None = None


def principal_of(grant: Grant, now: datetime, x_user: str | None = None, x_company: str | None = None) -> Principal:
    """The actor of a request made with the key of ``grant``.

    The actor is the key's bound user, else ``x_user``, else ``key:ID``. Raises ``Unauthenticated`` where the key has
    expired, ``Forbidden`` where a bound key comes with another user or a company's key with another company, and
    ``InvalidInput`` where ``x_user`` is empty or looks like a key.
    """
    if grant.expires_at is not None and grant.expires_at <= now:
        raise Unauthenticated("the key has expired")
    if grant.company is not None and x_company is not None and nfc(x_company) != grant.company:
        raise Forbidden("the key belongs to another company")
    user = grant.user
    if x_user is not None:
        claimed = checked_user(x_user, "/X-User")
        if user is not None and claimed != user:
            raise Forbidden("the key is bound to another user than X-User")
        user = claimed
    return Principal(
        company=grant.company if grant.company is not None or not x_company else nfc(x_company),
        key_id=grant.key_id,
        roles=grant.roles,
        actor=user if user is not None else KEY_ACTOR_PREFIX + grant.key_id,
        user=user,
        groups=grant.groups,
        source_kinds=source_kinds_of(grant),
        area=grant.area,
        agent=grant.agent,
        company_since=grant.company_since,
    )


def checked_user(user: str, pointer: str) -> str:
    """A user id in NFC. Raises ``InvalidInput`` where it is blank or could be taken for a key."""
    if not user.strip():
        raise InvalidInput.at(pointer, "the user is empty")
    if user.casefold().startswith(KEY_ACTOR_PREFIX):
        raise InvalidInput.at(pointer, f"a user must not begin with {KEY_ACTOR_PREFIX!r}")
    return nfc(user)


def source_kinds_of(grant: Grant) -> frozenset[SourceKind]:
    """The source kinds a key may claim: its own list, else those of its roles together."""
    if grant.source_kinds is not None:
        return grant.source_kinds
    return frozenset().union(*(DEFAULT_SOURCE_KINDS[role] for role in grant.roles))


def extent(principal: Principal, permission: Permission) -> Extent:
    """The widest extent any role of the principal has."""
    return max((TABLE[permission, role] for role in principal.roles), default=Extent.NONE)


def require(principal: Principal, permission: Permission) -> Extent:
    """The extent of the permission, ``OWN`` or ``ALL``. Raises ``Forbidden`` where there is none."""
    found = extent(principal, permission)
    if found is Extent.NONE:
        raise Forbidden(f"the key's roles do not permit {permission.value}", permission=permission.value)
    return found


def require_company(principal: Principal) -> str:
    """The company the request is about. Raises ``InvalidInput`` where an operator named none."""
    if principal.company is None:
        raise InvalidInput.at("/X-Company", "an operator key must name the company")
    return principal.company


def require_same_company(principal: Principal, company: str) -> None:
    """Raises ``Forbidden`` where a company's key names another company; an operator's may name any."""
    if Role.OPERATOR not in principal.roles and nfc(company) != principal.company:
        raise Forbidden("the key belongs to another company")


def permitted_source_kind(principal: Principal, kind: SourceKind) -> bool:
    """Whether the key may claim this kind of source; what it may not is ``rejected: source_not_allowed``."""
    return kind in principal.source_kinds


def owns(principal: Principal, owner: str) -> bool:
    """Whether ``owner`` is the actor, one of the actor's groups, or nobody in particular (an owner key then may)."""
    return (
        owner == principal.actor
        or owner in principal.groups
        or (owner == UNASSIGNED and not principal.roles.isdisjoint({Role.OWNER, Role.OPERATOR}))
    )


def confine(bound: str | None, named: str | None, pointer: str) -> str | None:
    """The area (or agent) in effect: the one the key is bound to, else the one named.

    Raises ``Forbidden`` where a bound key names another one.
    """
    if bound is None:
        return named
    if named is not None and not covers(bound, named):
        raise Forbidden(f"the key is bound to another {pointer.rpartition('/')[2]}", pointer=pointer)
    return bound


def covers(bound: str | None, label: str | None) -> bool:
    """Whether what is labelled so is of the area (or agent) that a key is bound to; None: it is bound to none.

    Labels compare folded, as they do in filters: what ``sales`` finds is what a key bound to ``sales`` may see.
    """
    return bound is None or (label is not None and fold(label) == fold(bound))


def within_scope(principal: Principal, area: str | None, agent: str | None) -> bool:
    """Whether a key that is bound to an area or agent may see what is labelled so; an unbound key may."""
    return covers(principal.area, area) and covers(principal.agent, agent)
