"""The control store: who may act, what is classified, and which precedence holds.

Few rows, written by few, read with every request: every method is one transaction, and nothing is remembered longer
than it is so (``unchanged``): a revoked key is refused by the next request of any process. What is changed here is in
the control decision log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from muniment.actors.clock import Clock, system_clock
from muniment.actors.ids import new_id
from muniment.actors.store.control_tables import (
    TABLES,
    access_keys,
    calibrations,
    classifications,
    companies,
    control_decisions,
    control_heads,
    memory_policies,
    precedence_policies,
)
from muniment.actors.store.decision_log import Decision, DecisionLog, microseconds
from muniment.actors.store.engine import available, create_schema, open_engine, writing
from muniment.actors.store.keys import OPERATOR_ID, key_hash, key_id_of, new_key
from muniment.actors.store.unchanged import Unchanged
from muniment.policies.access import Grant, Role
from muniment.policies.errors import NotFound, StateConflict, StoreUnavailable
from muniment.policies.model import SourceKind

MAX_KEYS = 10_000
MAX_TOOLS = 10_000
#: Versions of a classification or policy that are kept; the decision log keeps the digest of each for ever.
KEPT_VERSIONS = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """One version of something written: ``version`` counts from 1, ``body`` is plain JSON."""

    version: int
    body: dict[str, Any]
    at: datetime
    actor: str


#: What tells two states of what is written for a company apart; see ``ControlStore.in_force``.
InForce = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The gate's threshold that suits a company's facts under an embedding model, and what it was found by.

    ``queries``: how many were asked. ``searches_l2``: the share of them that search L2 with it. ``recall_lost``: what
    that costs against always searching.
    """

    threshold: float
    queries: int
    searches_l2: float
    recall_lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is listed: what it grants and when it was made; never its text."""

    grant: Grant
    created_at: datetime


class ControlStore:
    """Companies, keys, classifications, policies and calibrations in one database."""

    def __init__(self, url: str, clock: Clock = system_clock) -> None:
        self.engine = open_engine(url)
        self._clock = clock
        create_schema(self.engine, TABLES)
        #: Whether a read is a look into a file of this machine.
        self.local = self.engine.dialect.name == "sqlite"
        self._unchanged = Unchanged(self.engine)

    def close(self) -> None:
        """Closes the connections."""
        self._unchanged.close()
        self.engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with _available(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with _available(), writing(self.engine).begin() as connection:
            yield connection

    # Companies

    def create_company(self, company: str, actor: str) -> bool:
        """Whether the company was created; False where it exists. ``StateConflict`` while it is being erased."""
        with self._writing() as connection:
            closing = _closing(connection, company, lock=True)
            if closing is not None:
                _refuse_closing(closing)
                return False
            row = {"company": company, "created_at": microseconds(self._clock()), "closing": False}
            connection.execute(companies.insert().values(row))
            self._record(connection, company, "company", "created", actor, {"company": company})
            return True

    def has_company(self, company: str) -> bool:
        """Whether anybody may act for the company."""
        with self._reading() as connection:
            return _closing(connection, company) is False

    def close_company(self, company: str) -> int:
        """Revokes all keys and refuses new ones, before the data is erased: the number of keys. ``NotFound``."""
        with self._writing() as connection:
            if _closing(connection, company, lock=True) is None:
                raise NotFound("there is no such company")
            connection.execute(companies.update().where(companies.c.company == company).values(closing=True))
            return connection.execute(access_keys.delete().where(access_keys.c.company == company)).rowcount

    def erase_company(self, company: str, actor: str) -> dict[str, int]:
        """Erases what is left of a closed company here; its name can then be used afresh. Counts per kind."""
        named = {
            "classifications": classifications,
            "precedence_policies": precedence_policies,
            "memory_policies": memory_policies,
            "calibrations": calibrations,
            "control_decisions": control_decisions,
        }
        with self._writing() as connection:
            if not _closing(connection, company, lock=True):
                raise StateConflict("the company is not closed")
            counts = {
                name: connection.execute(table.delete().where(table.c.company == company)).rowcount
                for name, table in named.items()
            }
            connection.execute(control_heads.delete().where(control_heads.c.company == company))
            connection.execute(companies.delete().where(companies.c.company == company))
            # In the operator's own stream: that of the company is gone.
            self._record(connection, "", "company", "erased", actor, {"company": company})
        return counts

    # Keys

    def create_key(
        self,
        company: str,
        actor: str,
        *,
        roles: frozenset[Role],
        user: str | None = None,
        groups: frozenset[str] = frozenset(),
        source_kinds: frozenset[SourceKind] | None = None,
        area: str | None = None,
        agent: str | None = None,
        expires_at: datetime | None = None,
    ) -> tuple[str, Grant]:
        """A new key's text, which nobody can read again, and what it grants. ``NotFound`` where no company is."""
        now = self._clock()
        grant = Grant(
            key_id=new_id("k", now),
            company=company,
            roles=roles,
            user=user,
            groups=groups,
            source_kinds=source_kinds,
            area=area,
            agent=agent,
            expires_at=expires_at,
        )
        key = new_key(grant.key_id)
        with self._writing() as connection:
            _require_open(connection, company)
            count = sa.select(sa.func.count()).where(access_keys.c.company == company)
            if connection.execute(count).scalar_one() >= MAX_KEYS:
                raise StateConflict(f"the company has {MAX_KEYS} keys; revoke those that are not used")
            connection.execute(access_keys.insert().values(_key_row(grant, key, now)))
            inputs = {"id": grant.key_id, **_granted(grant)}
            self._record(connection, company, "key", "created", actor, inputs)
        return key, grant

    def adopt_operator_key(self, key: str) -> None:
        """Makes ``key`` the one operator key, in place of any other."""
        grant = Grant(key_id=OPERATOR_ID, company=None, roles=frozenset({Role.OPERATOR}))
        with self._writing() as connection:
            query = sa.select(access_keys.c.hash).where(access_keys.c.id == OPERATOR_ID)
            known = connection.execute(query).scalar()
            if known is not None and bytes(known) == key_hash(key):
                return
            connection.execute(access_keys.delete().where(access_keys.c.id == OPERATOR_ID))
            connection.execute(access_keys.insert().values(_key_row(grant, key, self._clock())))

    def grant_of(self, key: str) -> Grant | None:
        """What the key grants, or None where it is unknown or revoked, or its company is being erased."""
        key_id = key_id_of(key)
        if key_id is None:
            return None
        with _available():
            return self._unchanged.get(("grant", key_hash(key)), lambda: self._grant_of(key, key_id))

    def _grant_of(self, key: str, key_id: str) -> Grant | None:
        query = (
            sa.select(access_keys, companies.c.created_at.label("company_since"))
            .outerjoin(companies, companies.c.company == access_keys.c.company)
            .where(access_keys.c.id == key_id, companies.c.closing.is_not(True))
        )
        with self._reading() as connection:
            row = connection.execute(query).first()
        if row is None or not hmac.compare_digest(bytes(row.hash), key_hash(key)):
            return None
        return replace(_grant(row), company_since=row.company_since)

    def keys(self, company: str, after: str = "", limit: int = 200) -> list[KeyRecord]:
        """The keys of a company whose id is larger than ``after``, oldest first."""
        where = (access_keys.c.company == company, access_keys.c.id > after)
        query = sa.select(access_keys).where(*where).order_by(access_keys.c.id).limit(limit)
        with self._reading() as connection:
            return [
                KeyRecord(grant=_grant(row), created_at=_moment(row.created_at)) for row in connection.execute(query)
            ]

    def revoke_key(self, company: str, key_id: str, actor: str) -> None:
        """Removes a key of the company. ``NotFound`` where it has none of this id."""
        where = (access_keys.c.company == company, access_keys.c.id == key_id)
        with self._writing() as connection:
            if connection.execute(access_keys.delete().where(*where)).rowcount == 0:
                raise NotFound("there is no such key")
            self._record(connection, company, "key", "revoked", actor, {"id": key_id})

    # What is written about tools and precedence, in versions

    def put_classification(
        self, company: str, tool: str, body: dict[str, Any], actor: str, replaces: int | None = None
    ) -> Versioned:
        """Stores a new version; the same body again is no new version.

        ``replaces``: the version that must be in force (0: none), of anything written here; else ``StateConflict``.
        """
        with self._writing() as connection:
            _require_open(connection, company)
            identity = {"company": company, "tool": tool}
            tools = sa.select(sa.func.count(classifications.c.tool.distinct()))
            count = connection.execute(tools.where(classifications.c.company == company)).scalar_one()
            if count >= MAX_TOOLS and _newest(connection, classifications, identity) is None:
                raise StateConflict(f"the company has classified {MAX_TOOLS} tools")
            return self._put(connection, classifications, identity, body, actor, replaces)

    def classification(self, company: str, tool: str) -> Versioned | None:
        """The version in force, or None where the tool is not classified."""
        with self._reading() as connection:
            return _newest(connection, classifications, {"company": company, "tool": tool})

    def put_precedence(self, company: str, body: dict[str, Any], actor: str, replaces: int | None = None) -> Versioned:
        """Stores a new version; the same body again is no new version."""
        with self._writing() as connection:
            _require_open(connection, company)
            return self._put(connection, precedence_policies, {"company": company}, body, actor, replaces)

    def precedence(self, company: str) -> Versioned | None:
        """The version in force, or None where nobody wrote one."""
        with self._reading() as connection:
            return _newest(connection, precedence_policies, {"company": company})

    def put_memory_policy(
        self, company: str, body: dict[str, Any], actor: str, replaces: int | None = None
    ) -> Versioned:
        """Stores a new version; the same body again is no new version."""
        with self._writing() as connection:
            _require_open(connection, company)
            return self._put(connection, memory_policies, {"company": company}, body, actor, replaces)

    def memory_policy(self, company: str) -> Versioned | None:
        """The version in force, or None where nobody wrote one."""
        with self._reading() as connection:
            return _newest(connection, memory_policies, {"company": company})

    def in_force(self, asked: Collection[str]) -> dict[str, InForce]:
        """Changes with whatever is written for a company's memory; to know whether a copy is still right.

        The last one is when the company was made, None where there is none that anybody acts for.
        """

        def read() -> dict[str, InForce]:
            with self._reading() as connection:
                rows = connection.execute(_IN_FORCE, {"asked": sorted(asked)}).all()
            return dict.fromkeys(asked, _NOTHING) | {company: tuple(state) for company, *state in rows}

        with _available():
            return self._unchanged.get(("in_force", frozenset(asked)), read)

    def precedence_versions(self, company: str) -> list[Versioned]:
        """Every version that is kept, oldest first."""
        table = precedence_policies
        query = sa.select(table).where(table.c.company == company).order_by(table.c.version)
        with self._reading() as connection:
            return [_versioned(row) for row in connection.execute(query)]

    def _put(
        self,
        connection: sa.Connection,
        table: sa.Table,
        identity: dict[str, str],
        body: dict[str, Any],
        actor: str,
        replaces: int | None,
    ) -> Versioned:
        before = _newest(connection, table, identity)
        if before is not None and before.body == body:
            return before
        known = 0 if before is None else before.version
        if replaces not in (None, known):
            raise StateConflict(f"version {known} is in force, not {replaces}: read it and write again", version=known)
        now, version = self._clock(), known + 1
        row = {**identity, "version": version, "at": microseconds(now), "actor": actor, "body": body}
        connection.execute(table.insert().values(row))
        old = [table.c[name] == value for name, value in identity.items()]
        connection.execute(table.delete().where(*old, table.c.version <= version - KEPT_VERSIONS))
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        kind = _KINDS[table]
        named = {name: value for name, value in identity.items() if name != "company"}
        inputs = {**named, "version": version, "sha256": digest}
        self._record(connection, identity["company"], kind, "written", actor, inputs, version)
        return Versioned(version=version, body=body, at=now, actor=actor)

    # Calibrations

    def calibrate(self, company: str, model: str, found: Calibration, actor: str) -> None:
        """Stores what was found for a company under a model, in place of what was found before."""
        row = {"company": company, "model": model, "at": microseconds(self._clock()), "body": asdict(found)}
        with self._writing() as connection:
            _require_open(connection, company)
            where = (calibrations.c.company == company, calibrations.c.model == model)
            connection.execute(calibrations.delete().where(*where))
            connection.execute(calibrations.insert().values(row))
            self._record(connection, company, "calibration", "written", actor, {"model": model, **asdict(found)})

    def calibrations(self, company: str) -> dict[str, Calibration]:
        """What was found for the company, by model."""
        query = sa.select(calibrations).where(calibrations.c.company == company)
        with self._reading() as connection:
            return {row.model: Calibration(**row.body) for row in connection.execute(query)}

    # Decisions

    def decisions(
        self, company: str, after: tuple[int, str, int] = (0, "", 0), limit: int = 200, kind: str | None = None
    ) -> list[dict[str, Any]]:
        """Entries of the control decision log , oldest first.

        Kinds: company, key, classification, policy, memory_policy, calibration.
        """
        with self._reading() as connection:
            return list(_log().entries(connection, company, after=after, limit=limit, kind=kind))

    def verify(self, company: str | None = None) -> tuple[int, dict[str, Any] | None]:
        """Walks the hash chains: the number of entries and the first that does not fit, or None."""
        with self._reading() as connection:
            return _log().verify(connection, company)

    def record(self, kind: str, outcome: str, actor: str, inputs: Mapping[str, Any]) -> None:
        """Puts something that an operator did into the operator's own stream."""
        with self._writing() as connection:
            self._record(connection, "", kind, outcome, actor, inputs)

    def _record(
        self,
        connection: sa.Connection,
        company: str,
        kind: str,
        outcome: str,
        actor: str,
        inputs: Mapping[str, Any],
        version: int = 0,
    ) -> None:
        now = self._clock()
        decision = Decision(
            id=new_id("d", now),
            company=company,
            at=now,
            kind=kind,
            rule="permission",
            reason=f"{kind.replace('_', ' ')} {outcome}",
            actor=actor,
            outcome=outcome,
            policy_version=version,
            inputs=dict(inputs),
        )
        stream = f"control/{company}"
        # Several processes write here, each in its own transaction: the head is locked and read afresh.
        connection.execute(sa.select(control_heads.c.seq).where(control_heads.c.stream == stream).with_for_update())
        _log().append(connection, stream, company, [decision])


#: What the control log calls what is written in versions.
_KINDS = {classifications: "classification", precedence_policies: "policy", memory_policies: "memory_policy"}


def _in_force() -> sa.Select[Any]:
    """Of each company that is ``asked`` about: the version and time of each policy's newest version, the time of the
    newest calibration, and when the company was made: None where it is being erased."""
    company = companies.c.company
    newest = [
        sa.select(column).where(table.c.company == company).order_by(table.c.version.desc()).limit(1).scalar_subquery()
        for table in (precedence_policies, memory_policies)
        for column in (table.c.version, table.c.at)
    ]
    calibrated = sa.select(sa.func.max(calibrations.c.at)).where(calibrations.c.company == company).scalar_subquery()
    made = sa.case((companies.c.closing.is_not(True), companies.c.created_at))
    asked = sa.bindparam("asked", expanding=True, type_=sa.String)
    return sa.select(company, *newest, calibrated, made).where(company.in_(asked))


_IN_FORCE = _in_force()
#: Of a company that there is not.
_NOTHING: InForce = (None,) * (len(_IN_FORCE.selected_columns) - 1)


@contextmanager
def _available() -> Iterator[None]:
    """What fails because the store is away, or another process was first, becomes ``StoreUnavailable``."""
    try:
        with available():
            yield
    except sa.exc.IntegrityError as error:
        raise StoreUnavailable("another process wrote the same at the same time", retry_after_seconds=1) from error


def _log() -> DecisionLog:
    return DecisionLog(control_decisions, control_heads)


def _closing(connection: sa.Connection, company: str, lock: bool = False) -> bool | None:
    """Whether the company is being erased, or None where there is none; ``lock``: nobody else changes that now."""
    query = sa.select(companies.c.closing).where(companies.c.company == company)
    return connection.execute(query.with_for_update() if lock else query).scalar()


def _require_open(connection: sa.Connection, company: str) -> None:
    closing = _closing(connection, company, lock=True)
    if closing is None:
        raise NotFound("there is no such company")
    _refuse_closing(closing)


def _refuse_closing(closing: bool) -> None:
    if closing:
        raise StateConflict("the company is being erased; erase it again to finish")


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _granted(grant: Grant) -> dict[str, Any]:
    sources = None if grant.source_kinds is None else sorted(kind.value for kind in grant.source_kinds)
    return {
        "roles": [role.value for role in Role if role in grant.roles],
        "user": grant.user,
        "groups": sorted(grant.groups),
        "sources": sources,
        "area": grant.area,
        "agent": grant.agent,
    }


def _key_row(grant: Grant, key: str, now: datetime) -> dict[str, Any]:
    return {
        "id": grant.key_id,
        "company": grant.company,
        "hash": key_hash(key),
        "created_at": microseconds(now),
        "expires_at": None if grant.expires_at is None else microseconds(grant.expires_at),
        "granted": _granted(grant),
    }


def _grant(row: Any) -> Grant:
    granted = row.granted
    sources = granted["sources"]
    return Grant(
        key_id=row.id,
        company=row.company,
        roles=frozenset(Role(role) for role in granted["roles"]),
        user=granted["user"],
        groups=frozenset(granted["groups"]),
        source_kinds=None if sources is None else frozenset(SourceKind(kind) for kind in sources),
        area=granted["area"],
        agent=granted["agent"],
        expires_at=None if row.expires_at is None else _moment(row.expires_at),
    )


def _newest(connection: sa.Connection, table: sa.Table, identity: Mapping[str, str]) -> Versioned | None:
    where = [table.c[name] == value for name, value in identity.items()]
    row = connection.execute(sa.select(table).where(*where).order_by(table.c.version.desc()).limit(1)).first()
    return None if row is None else _versioned(row)


def _versioned(row: Any) -> Versioned:
    return Versioned(version=row.version, body=row.body, at=_moment(row.at), actor=row.actor)
