"""Who calls, and what administrators do: companies, keys, classifications, policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from muniment.actors.clock import Clock, system_clock
from muniment.actors.store.control_store import ControlStore, KeyRecord, Versioned
from muniment.actors.store.keys import OPERATOR_ID, key_hash
from muniment.actors.store.reach import Reach
from muniment.actors.wire import to_rfc3339
from muniment.cluster.schemas import (
    ClassificationRequest,
    CompanyRequest,
    KeyRequest,
    KeysQuery,
    MemoryPolicyRequest,
    PrecedenceRequest,
    WrittenMemoryPolicy,
    WrittenPrecedence,
)
from muniment.cluster.schemas.admin import CompanyName, UserName
from muniment.policies.access import (
    Grant,
    Permission,
    Principal,
    Role,
    confine,
    principal_of,
    require,
    require_company,
    require_same_company,
    source_kinds_of,
)
from muniment.policies.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    Unauthenticated,
    Unavailable,
)
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.precedence_policy import PrecedencePolicy

T = TypeVar("T")
_COMPANY: TypeAdapter[str] = TypeAdapter(CompanyName)
_USER: TypeAdapter[str] = TypeAdapter(UserName)
Answer = dict[str, Any]
#: Longer than any key; what is longer is not looked up.
_MAX_AUTHORIZATION_CHARS = 256
_THREADS = 4
#: Keys of which what the store last said is kept.
_SEEN = 10_000
#: A write that was under way when a company was closed may still arrive; so often its data is erased again.
_ERASE_ROUNDS = 5


class Eraser(Protocol):
    """A part that holds data of companies."""

    async def erase_company(self, company: str) -> dict[str, int]:
        """Erases all it has of the company: counts per kind."""
        ...

    async def remaining_of(self, company: str) -> int:
        """How many rows it still has of the company."""
        ...


class AdminService:
    """Control data over the control store. ``erasers``: the parts a company's data lies in besides it.

    Its threads are its own, so that no other part's blocking work delays who may enter. ``offline_seconds``: for how
    long after the store last knew a key it opens what needs no store, while the store is away.
    """

    def __init__(
        self,
        store: ControlStore,
        erasers: Sequence[Eraser] = (),
        clock: Clock = system_clock,
        auth_enabled: bool = True,
        offline_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._erasers = erasers
        self._clock = clock
        self._auth_enabled = auth_enabled
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="control")
        self._reach = Reach(self._threads)
        self._offline_seconds = offline_seconds
        self._seen: dict[bytes, tuple[float, Grant]] = {}

    async def _read(self, function: Callable[..., T], *arguments: Any) -> T:
        """A read: SQLite answers in less time than a thread takes to start on it, and waits for no writer."""
        return function(*arguments) if self._store.local else await self._run(function, *arguments)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Ends the threads and closes the store."""
        self._threads.shutdown()
        self._store.close()

    # Who calls

    async def authenticate(
        self, authorization: str | None, x_user: str | None = None, x_company: str | None = None
    ) -> Principal:
        """Who acts: from the ``Authorization`` header (``Bearer KEY``), ``X-User`` and ``X-Company``.

        Raises ``Unauthenticated``, ``Forbidden`` (another user or company than the key's), ``InvalidInput``.
        """
        grant = await self._grant(authorization)
        if grant.company is None and x_company is not None:
            x_company = _header(_COMPANY, x_company, "/X-Company")
        if x_user is not None:
            x_user = _header(_USER, x_user, "/X-User")
        return principal_of(grant, self._clock(), x_user, x_company)

    async def _grant(self, authorization: str | None) -> Grant:
        if authorization is None and not self._auth_enabled:
            return Grant(key_id=OPERATOR_ID, company=None, roles=frozenset({Role.OPERATOR}))
        if authorization is None:
            raise Unauthenticated("a key is needed: Authorization: Bearer KEY")
        scheme, _, key = authorization[:_MAX_AUTHORIZATION_CHARS].partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("the Authorization header must be: Bearer KEY")
        grant = await self._grant_of(key.strip())
        if grant is None:
            raise Unauthenticated("the key is unknown or revoked")
        return grant

    async def _grant_of(self, key: str) -> Grant | None:
        """What the store says of the key; while it is away, what it said a short while ago."""
        digest = key_hash(key)
        try:
            if self._store.local:
                grant = self._store.grant_of(key)
            else:
                grant = await self._reach.ask(self._store.grant_of, key)
        except StoreUnavailable:
            seen_at, grant = self._seen.get(digest, (0.0, None))
            if grant is None or time.monotonic() - seen_at > self._offline_seconds:
                raise
            return grant
        self._seen.pop(digest, None)
        if grant is not None:
            if len(self._seen) >= _SEEN:
                self._seen.pop(next(iter(self._seen)))
            self._seen[digest] = time.monotonic(), grant
        return grant

    async def require_company(self, company: str) -> None:
        """Raises ``NotFound`` where an operator names a company that does not exist."""
        if not await self._read(self._store.has_company, company):
            raise NotFound("there is no such company")

    # Companies

    async def create_company(self, principal: Principal, request: CompanyRequest) -> Answer:
        """Creates the company if need be."""
        require(principal, Permission.OPERATE)
        created = await self._run(self._store.create_company, request.company, principal.actor)
        return {"company": request.company, "created": created}

    async def delete_company(self, principal: Principal, company: str) -> Answer:
        """Revokes its keys, erases its data everywhere, and frees its name. What broke off is finished by repeating."""
        require(principal, Permission.OPERATE)
        require_same_company(principal, company)
        erased = {"keys": await self._run(self._store.close_company, company)}
        for _ in range(_ERASE_ROUNDS):
            for eraser in self._erasers:
                for kind, count in (await eraser.erase_company(company)).items():
                    erased[kind] = erased.get(kind, 0) + count
            remaining = sum([await eraser.remaining_of(company) for eraser in self._erasers])
            if remaining == 0:
                break
        else:
            raise Unavailable(f"{remaining} rows are still being written; repeat the request", retry_after_seconds=1)
        erased |= await self._run(self._store.erase_company, company, principal.actor)
        return {"erased": erased, "remaining": remaining}

    # Keys

    async def create_key(self, principal: Principal, request: KeyRequest) -> Answer:
        """Creates a key and, for an operator, its company if need be. Only this answer holds the key's text."""
        require(principal, Permission.ADMINISTER_COMPANY)
        if Role.OPERATOR in request.roles:
            raise Forbidden("an operator key comes from the data directory of the service only")
        if request.company is not None:
            require_same_company(principal, request.company)
        company = request.company or principal.company
        if company is None:
            raise InvalidInput.at("/company", "an operator key must name the company")
        request = _no_wider(principal, request)
        if Role.OPERATOR in principal.roles:
            await self._run(self._store.create_company, company, principal.actor)
        key, grant = await self._run(self._create_key, company, principal.actor, request)
        return {"key": key, **_key_out(KeyRecord(grant=grant, created_at=self._clock()))}

    def _create_key(self, company: str, actor: str, request: KeyRequest) -> tuple[str, Grant]:
        return self._store.create_key(
            company,
            actor,
            roles=frozenset(request.roles),
            user=request.user,
            groups=frozenset(request.groups),
            source_kinds=None if request.sources is None else frozenset(request.sources),
            area=request.area,
            agent=request.agent,
            expires_at=request.expires_at,
        )

    async def keys(self, principal: Principal, query: KeysQuery) -> Answer:
        """A page of the company's keys, oldest first."""
        require(principal, Permission.ADMINISTER_COMPANY)
        company, after = require_company(principal), query.cursor or ""
        found = await self._read(self._store.keys, company, after, query.limit + 1)
        answer: Answer = {"keys": [_key_out(record) for record in found[: query.limit]]}
        if len(found) > query.limit:
            answer["next"] = found[query.limit - 1].grant.key_id
        return answer

    async def revoke_key(self, principal: Principal, key_id: str) -> Answer:
        """Ends a key of the company at once."""
        require(principal, Permission.ADMINISTER_COMPANY)
        await self._run(self._store.revoke_key, require_company(principal), key_id, principal.actor)
        return {"id": key_id, "revoked": True}

    # Tools and policies

    async def classify(self, principal: Principal, tool: str, request: ClassificationRequest) -> Answer:
        """Replaces the classification of a tool."""
        require(principal, Permission.CURATE)
        if request.tool not in (None, tool):
            raise InvalidInput.at("/tool", "is another tool than the one that is classified")
        body = request.model_dump(mode="json", exclude_none=True, exclude={"tool", "version"})
        company = require_company(principal)
        written = await self._run(self._store.put_classification, company, tool, body, principal.actor, request.version)
        return _classification_out(tool, written)

    async def classification(self, principal: Principal, tool: str) -> Answer:
        """The classification in force. ``NotFound`` where the tool has none."""
        require(principal, Permission.CURATE)
        found = await self._read(self._store.classification, require_company(principal), tool)
        if found is None:
            raise NotFound("the tool is not classified")
        return _classification_out(tool, found)

    async def set_precedence(self, principal: Principal, request: PrecedenceRequest) -> Answer:
        """Replaces the precedence policy."""
        return await self._replace(principal, request.root, self._store.put_precedence)

    async def precedence(self, principal: Principal) -> Answer:
        """The precedence policy in force; version 0 is the default, which nobody wrote."""
        return await self._in_force(principal, self._store.precedence, PrecedencePolicy())

    async def set_memory_policy(self, principal: Principal, request: MemoryPolicyRequest) -> Answer:
        """Replaces the memory policy."""
        return await self._replace(principal, request.root, self._store.put_memory_policy)

    async def memory_policy(self, principal: Principal) -> Answer:
        """The memory policy in force; version 0 is the default, which nobody wrote."""
        return await self._in_force(principal, self._store.memory_policy, MemoryPolicy())

    async def _replace(
        self,
        principal: Principal,
        policy: WrittenPrecedence | WrittenMemoryPolicy,
        put: Callable[..., Versioned],
    ) -> Answer:
        require(principal, Permission.CURATE)
        body = policy.model_dump(mode="json", exclude_none=True, exclude={"version"})
        return _policy_out(await self._run(put, require_company(principal), body, principal.actor, policy.version))

    async def _in_force(
        self, principal: Principal, read: Callable[[str], Versioned | None], default: BaseModel
    ) -> Answer:
        require(principal, Permission.CURATE)
        found = await self._read(read, require_company(principal))
        if found is None:
            return {**default.model_dump(mode="json", exclude_none=True), "version": 0}
        return _policy_out(found)


def _no_wider(principal: Principal, request: KeyRequest) -> KeyRequest:
    """The key as it may be made: no key makes one that reaches further than itself. Raises ``Forbidden``."""
    roles, sources = frozenset(request.roles), request.sources
    wanted = Grant(key_id="", company=None, roles=roles, source_kinds=None if sources is None else frozenset(sources))
    if not source_kinds_of(wanted) <= principal.source_kinds:
        raise Forbidden("a key may not be made for source kinds that its maker may not claim")
    area = confine(principal.area, request.area, "/area")
    return request.model_copy(update={"area": area, "agent": confine(principal.agent, request.agent, "/agent")})


def _header(kind: TypeAdapter[str], text: str, name: str) -> str:
    try:
        return kind.validate_python(text)
    except ValidationError as error:
        raise InvalidInput.at(name, error.errors()[0]["msg"]) from None


def _key_out(record: KeyRecord) -> Answer:
    grant = record.grant
    answer: Answer = {
        "id": grant.key_id,
        "company": grant.company,
        "roles": [role.value for role in Role if role in grant.roles],
        "user": grant.user,
        "groups": sorted(grant.groups),
        "sources": sorted(kind.value for kind in source_kinds_of(grant)),
        "created_at": to_rfc3339(record.created_at),
    }
    optional = {"area": grant.area, "agent": grant.agent}
    if grant.expires_at is not None:
        optional["expires_at"] = to_rfc3339(grant.expires_at)
    return answer | {name: value for name, value in optional.items() if value is not None}


def _classification_out(tool: str, found: Versioned) -> Answer:
    return {**found.body, "tool": tool, "version": found.version}


def _policy_out(found: Versioned) -> Answer:
    return {**found.body, "version": found.version}
