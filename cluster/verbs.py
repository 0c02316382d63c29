"""The verbs of the API, once, for every client: what a caller says, as the request that it becomes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from muniment.actors.wire import to_rfc3339
from muniment.policies.model import utc

Returned = TypeVar("Returned")
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a verb. ``named``: what its path names, in order. ``repeatable``: twice does what once does."""

    verb: str
    method: str
    route: str
    named: tuple[str, ...] = ()
    body: dict[str, Any] | None = None
    query: dict[str, Any] = field(default_factory=dict)
    repeatable: bool = True

    @property
    def path(self) -> str:
        """The path of the URL."""
        return self.route.format(*(quote(name, safe="") for name in self.named))


def plain(value: Any) -> Any:
    """``value`` as JSON: times (aware) in RFC 3339, enums as their strings, tuples and sets as lists."""
    if isinstance(value, datetime):
        return to_rfc3339(utc(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def _said(**fields: Any) -> dict[str, Any]:
    """The fields that were given, as JSON."""
    return {name: plain(value) for name, value in fields.items() if value is not None}


class Verbs(Generic[Returned]):
    """Every verb of API.md. Optional fields are keywords with the names they have there; None says nothing.

    A verb raises the error that the service answers: ``InvalidInput``, ``Forbidden``, ``StaleReservation``, …
    """

    def _send(self, request: Request) -> Returned:
        raise NotImplementedError

    def _post(self, verb: str, route: str, *named: str, repeatable: bool = True, **fields: Any) -> Returned:
        return self._send(Request(verb, "POST", route, named, _said(**fields), repeatable=repeatable))

    def _write(self, verb: str, route: str, *named: str, idempotency_key: str | None, **fields: Any) -> Returned:
        """A post that is safe to repeat because it carries a key, the caller's or one of its own."""
        return self._post(verb, route, *named, idempotency_key=idempotency_key or uuid.uuid4().hex, **fields)

    def _get(self, verb: str, route: str, *named: str, **query: Any) -> Returned:
        return self._send(Request(verb, "GET", route, named, query=_said(**query)))

    # Memory

    def remember(self, facts: Iterable[Json], *, idempotency_key: str | None = None) -> Returned:
        """Tells facts (1 to 1,000, as ``Fact`` of API.md); the batch commits in one transaction."""
        return self._write("remember", "/v1/memories", idempotency_key=idempotency_key, facts=list(facts))

    def recall(self, query: str, **options: Any) -> Returned:
        """Asks. Options: ``top_k``, ``filters``, ``min_score``, ``as_of``, ``known_at``, ``explain``, ``profile``."""
        return self._post("recall", "/v1/recall", query=query, **options)

    def warm(self) -> Returned:
        """Has the company loaded before it is asked for, so that the first recall does not wait for it."""
        return self._send(Request("warm", "POST", "/v1/warm"))

    def facts(
        self, subject: str, field: str, *, as_of: datetime | None = None, known_at: datetime | None = None
    ) -> Returned:
        """The current value of a slot and its history, by rule."""
        return self._get("facts", "/v1/facts", subject=subject, field=field, as_of=as_of, known_at=known_at)

    def memories(self, **filters: Any) -> Returned:
        """Lists facts: the filters of recall, ``status``, ``scope``, ``user``, ``limit``, ``cursor``."""
        return self._get("memories", "/v1/memories", **filters)

    def memory(self, fact_id: str) -> Returned:
        """One fact."""
        return self._get("memory", "/v1/memories/{}", fact_id)

    def history(self, fact_id: str, **page: Any) -> Returned:
        """What became of a fact. Options: ``limit``, ``cursor``."""
        return self._get("history", "/v1/memories/{}/history", fact_id, **page)

    def delete(self, fact_id: str) -> Returned:
        """Deletes a fact."""
        return self._send(Request("delete", "DELETE", "/v1/memories/{}", (fact_id,)))

    def correct(
        self, fact_id: str, *, text: str, reason: str, value: Any = None, idempotency_key: str | None = None
    ) -> Returned:
        """Puts the right value and text in the place of a fact that was wrong."""
        return self._write(
            "correct",
            "/v1/memories/{}/correct",
            fact_id,
            idempotency_key=idempotency_key,
            text=text,
            reason=reason,
            value=value,
        )

    def expire(self, fact_id: str, *, reason: str, idempotency_key: str | None = None) -> Returned:
        """Ends a fact that no longer holds."""
        return self._write("expire", "/v1/memories/{}/expire", fact_id, idempotency_key=idempotency_key, reason=reason)

    def erase_user(self, user: str) -> Returned:
        """Erases a user's personal facts; answers with counts."""
        return self._send(Request("erase_user", "DELETE", "/v1/users/{}", (user,)))

    # Conflicts, policies and decisions

    def conflicts(self, **filters: Any) -> Returned:
        """Lists conflicts: ``kind``, ``status``, ``owner``, ``subject``, ``field``, ``limit``, ``cursor``."""
        return self._get("conflicts", "/v1/conflicts", **filters)

    def resolve(
        self, conflict_id: str, decision: str, *, idempotency_key: str | None = None, **options: Any
    ) -> Returned:
        """Rules on a conflict. Options: ``value``, ``text``, ``rescope``, ``note``."""
        return self._write(
            "resolve",
            "/v1/conflicts/{}/resolution",
            conflict_id,
            idempotency_key=idempotency_key,
            decision=decision,
            **options,
        )

    def audit(self, **options: Any) -> Returned:
        """Contradictions that lie in the store, most damaging first. Options: ``subject``, ``limit``, ``cursor``."""
        return self._post("audit", "/v1/conflicts/audit", **options)

    def precedence(self) -> Returned:
        """The precedence policy in force."""
        return self._get("precedence", "/v1/policies/precedence")

    def set_precedence(self, policy: Json) -> Returned:
        """Replaces the precedence policy."""
        return self._send(Request("set_precedence", "PUT", "/v1/policies/precedence", body=plain(policy)))

    def memory_policy(self) -> Returned:
        """The memory policy in force: importance, entities, languages, retention."""
        return self._get("memory_policy", "/v1/policies/memory")

    def set_memory_policy(self, policy: Json) -> Returned:
        """Replaces the memory policy."""
        return self._send(Request("set_memory_policy", "PUT", "/v1/policies/memory", body=plain(policy)))

    def simulate(self, policy: Json, *, since: datetime | None = None) -> Returned:
        """What a precedence policy would have decided differently."""
        return self._post("simulate", "/v1/policies/precedence/simulate", policy=policy, since=since)

    def decisions(self, **filters: Any) -> Returned:
        """Lists decisions: ``subject``, ``field``, ``run_id``, ``since``, ``kind``, ``limit``, ``cursor``."""
        return self._get("decisions", "/v1/decisions", **filters)

    def verify(self) -> Returned:
        """Whether the decision log is intact."""
        return self._get("verify", "/v1/decisions/verify")

    # Effects

    def classify(self, tool: str, *, key_paths: Iterable[str], window: Any, **options: Any) -> Returned:
        """Says which arguments of a tool name its effect, and how long a confirmed one counts as already done.

        Options: ``lease_seconds``, ``max_duplicates_per_run``, ``blocked``, ``block_when_tainted``.
        """
        body = _said(key_paths=list(key_paths), window=window, **options)
        return self._send(Request("classify", "PUT", "/v1/tools/{}/classification", (tool,), body))

    def classification(self, tool: str) -> Returned:
        """The classification of a tool."""
        return self._get("classification", "/v1/tools/{}/classification", tool)

    def propose(
        self, *, area: str, agent: str, tool: str, arguments: Json, run_id: str, step_id: str, **options: Any
    ) -> Returned:
        """Proposes an effect. Options: ``agent_version``, ``tainted``, ``wait_ms``.

        Repeated by the same run and step it gets its own reservation back.
        """
        return self._post(
            "propose",
            "/v1/effects/propose",
            area=area,
            agent=agent,
            tool=tool,
            arguments=arguments,
            run_id=run_id,
            step_id=step_id,
            **options,
        )

    def confirm(self, token: str, *, result_ref: str | None = None) -> Returned:
        """Says that the tool returned success."""
        return self._post("confirm", "/v1/effects/confirm", token=token, result_ref=result_ref)

    def renew(self, token: str) -> Returned:
        """Extends the lease of a reservation."""
        return self._post("renew", "/v1/effects/renew", token=token)

    def release(self, token: str, *, reason: str | None = None) -> Returned:
        """Says that the effect did not happen; the next proposer may go at once."""
        return self._post("release", "/v1/effects/release", token=token, reason=reason)

    def effects(self, **filters: Any) -> Returned:
        """Lists keys: ``state``, ``area``, ``agent``, ``tool``, ``run_id``, ``limit``, ``cursor``."""
        return self._get("effects", "/v1/effects", **filters)

    def forget(self, *, area: str, agent: str, tool: str, arguments: Json, reason: str) -> Returned:
        """Makes a confirmed key count as not done."""
        return self._post(
            "forget", "/v1/effects/forget", area=area, agent=agent, tool=tool, arguments=arguments, reason=reason
        )

    def import_effects(self, effects: Iterable[Json]) -> Returned:
        """Brings in confirmed keys of an older system."""
        return self._post("import_effects", "/v1/effects/import", effects=list(effects))

    def trail(self, run_id: str, **page: Any) -> Returned:
        """The recorded decisions of a run, in order. Options: ``limit``, ``cursor``."""
        return self._get("trail", "/v1/runs/{}/trail", run_id, **page)

    # Companies and keys

    def create_company(self, company: str) -> Returned:
        """Creates a company; one that exists stays as it is."""
        return self._post("create_company", "/v1/companies", company=company)

    def delete_company(self, company: str) -> Returned:
        """Erases a company and everything it has."""
        return self._send(Request("delete_company", "DELETE", "/v1/companies/{}", (company,)))

    def place(self, company: str, *, pinned: bool | None = None, own_shard: bool | None = None) -> Returned:
        """Says whether a company is never unloaded, and whether it has a shard of its own."""
        body = _said(pinned=pinned, own_shard=own_shard)
        return self._send(Request("place", "PUT", "/v1/companies/{}", (company,), body))

    def scale(
        self,
        *,
        shards: int | None = None,
        ledgers: int | None = None,
        workers: int | None = None,
    ) -> Returned:
        """Says how many there are to be of each; how far it is, as ``scaling``."""
        return self._post("scale", "/v1/scale", shards=shards, ledgers=ledgers, workers=workers)

    def scaling(self) -> Returned:
        """How many there are, and how far it is: ``done``, or what is still to move."""
        return self._get("scaling", "/v1/scale")

    def create_key(self, roles: Iterable[str], *, company: str | None = None, **options: Any) -> Returned:
        """Creates a key; only this answer ever holds it, so a lost one is not asked for again.

        Options: ``user``, ``groups``, ``sources``, ``area``, ``agent``, ``expires_at``.
        """
        return self._post("create_key", "/v1/keys", repeatable=False, roles=list(roles), company=company, **options)

    def keys(self, **page: Any) -> Returned:
        """Lists the keys of the company. Options: ``limit``, ``cursor``."""
        return self._get("keys", "/v1/keys", **page)

    def revoke_key(self, key_id: str) -> Returned:
        """Ends a key at once."""
        return self._send(Request("revoke_key", "DELETE", "/v1/keys/{}", (key_id,)))

    def stats(self) -> Returned:
        """Counts and sizes of the company."""
        return self._get("stats", "/v1/stats")
