"""Requests about companies and keys (API.md, "Common" and "Operations")."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field

from muniment.cluster.schemas.base import Flag, Items, Listed, Moment, Name, Page, Request, problem
from muniment.policies.access import Role, checked_user
from muniment.policies.errors import InvalidInput
from muniment.policies.model import SourceKind

#: Bytes of UTF-8 of a company's name, which is part of keys in every store.
MAX_COMPANY_BYTES = 128


def _company(name: str) -> str:
    if len(name.encode()) > MAX_COMPANY_BYTES:
        raise problem(f"must have at most {MAX_COMPANY_BYTES} bytes of UTF-8")
    if name in (".", ".."):
        raise problem("must not be . or .., which no path can name")
    if "/" in name or name != name.strip() or any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in name):
        raise problem("must not contain a slash or control characters, nor begin or end with a space")
    return name


def _user(name: str) -> str:
    try:
        return checked_user(name, "")
    except InvalidInput as error:
        raise problem(error.fields["errors"][0]["message"]) from None


CompanyName = Annotated[Name, AfterValidator(_company)]
UserName = Annotated[Name, AfterValidator(_user)]


class CompanyRequest(Request):
    """A company to create. Creating one that exists changes nothing."""

    company: CompanyName


class KeyRequest(Request):
    """A key to create. ``sources``: the source kinds it may claim, by role where absent."""

    company: CompanyName | None = None
    roles: Annotated[tuple[Role, ...], Listed(len(Role), least=1)]
    user: UserName | None = None
    groups: Items[Name] = ()
    sources: Items[SourceKind] | None = None
    area: Name | None = None
    agent: Name | None = None
    expires_at: Moment | None = None


class KeysQuery(Page):
    """A list of the keys of a company, oldest first."""


class ScaleRequest(Request):
    """How many there are to be; what is absent stays as it is."""

    shards: Annotated[int, Field(strict=True, ge=1, le=256)] | None = None
    ledgers: Annotated[int, Field(strict=True, ge=1, le=256)] | None = None
    workers: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None


class PlaceRequest(Request):
    """Where a company is kept. ``pinned``: it is never unloaded. What is absent stays as it is."""

    pinned: Flag | None = None
    own_shard: Flag | None = None
