"""The contract as one literal table: every verb, its route, its request, who may use it, and what answers it.

The HTTP API and the Python client inside a Ray cluster both go through ``dispatch``, so that a request is parsed and
permitted in one place, whichever way it came.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from muniment.actors.store.engine import available
from muniment.cluster import schemas as s
from muniment.cluster import telemetry
from muniment.cluster.schemas.base import DEFAULT_LIMITS, Name, parse
from muniment.cluster.settings import LimitSettings
from muniment.policies.access import Permission, Principal, Role, require, require_company
from muniment.policies.errors import NotFound

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Services:
    """What answers: ``MemoryService``, ``ConflictService``, ``RecordService``, ``EffectService``, ``AdminService``,
    ``ScaleService``."""

    memory: Any
    conflicts: Any
    records: Any
    effects: Any
    admin: Any
    scale: Any


#: How an endpoint calls its service: services, principal, what the path names, the parsed request.
Call = Callable[[Services, Principal, Sequence[str], Any], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One verb. ``model``: its body, or for GET its query; None: it has neither. ``route`` names its parameters."""

    verb: str
    method: str
    route: str
    permission: Permission
    model: type[BaseModel] | None
    call: Call
    summary: str
    #: Whether the request is about the data of one company, which must exist.
    company: bool = True
    #: Whether an absent body is the empty object.
    optional_body: bool = False

    @property
    def has_body(self) -> bool:
        """Whether the request travels as the body."""
        return self.model is not None and self.method != "GET"

    @property
    def parameters(self) -> list[str]:
        """The names in the route, in order."""
        return re.findall(r"\{(\w+)\}", self.route)


_P = Permission
ENDPOINTS: tuple[Endpoint, ...] = (
    # Memory
    Endpoint("remember", "POST", "/v1/memories", _P.REMEMBER, s.RememberRequest,
             lambda a, p, _, r: a.memory.remember(p, r), "Tell facts"),
    Endpoint("recall", "POST", "/v1/recall", _P.RECALL, s.RecallRequest,
             lambda a, p, _, r: a.memory.recall(p, r), "Ask"),
    Endpoint("warm", "POST", "/v1/warm", _P.RECALL, None,
             lambda a, p, _n, _: a.memory.warm(p), "Load the company, so that the first to ask does not wait for it"),
    Endpoint("facts", "GET", "/v1/facts", _P.RECALL, s.FactsQuery,
             lambda a, p, _, r: a.memory.facts(p, r), "The current value of a slot and its history"),
    Endpoint("memories", "GET", "/v1/memories", _P.RECALL, s.MemoriesQuery,
             lambda a, p, _, r: a.memory.list_memories(p, r), "List facts"),
    Endpoint("memory", "GET", "/v1/memories/{id}", _P.RECALL, None,
             lambda a, p, n, _: a.memory.get_memory(p, n[0]), "One fact"),
    Endpoint("history", "GET", "/v1/memories/{id}/history", _P.RECALL, s.HistoryQuery,
             lambda a, p, n, r: a.memory.memory_history(p, n[0], r), "What became of a fact"),
    Endpoint("delete", "DELETE", "/v1/memories/{id}", _P.CORRECT_FACTS, None,
             lambda a, p, n, _: a.memory.delete_memory(p, n[0]), "Delete a fact"),
    Endpoint("correct", "POST", "/v1/memories/{id}/correct", _P.CORRECT_FACTS, s.CorrectRequest,
             lambda a, p, n, r: a.memory.correct_memory(p, n[0], r), "Put the right value in the place of a wrong one"),
    Endpoint("expire", "POST", "/v1/memories/{id}/expire", _P.CORRECT_FACTS, s.ExpireRequest,
             lambda a, p, n, r: a.memory.expire_memory(p, n[0], r), "End a fact that no longer holds"),
    Endpoint("erase_user", "DELETE", "/v1/users/{user}", _P.ADMINISTER_COMPANY, None,
             lambda a, p, n, _: a.memory.erase_user(p, n[0]), "Erase a user's personal facts"),
    # Conflicts, policies, decisions
    Endpoint("conflicts", "GET", "/v1/conflicts", _P.LIST_CONFLICTS, s.ConflictsQuery,
             lambda a, p, _, r: a.conflicts.list_conflicts(p, r), "List conflicts, reviews and notices"),
    Endpoint("resolve", "POST", "/v1/conflicts/{id}/resolution", _P.RULE_CONFLICTS, s.ResolutionRequest,
             lambda a, p, n, r: a.conflicts.resolve_conflict(p, n[0], r), "Rule on a conflict"),
    Endpoint("audit", "POST", "/v1/conflicts/audit", _P.CURATE, s.AuditRequest,
             lambda a, p, _, r: a.conflicts.audit_conflicts(p, r), "Find contradictions that lie in the store",
             optional_body=True),
    Endpoint("precedence", "GET", "/v1/policies/precedence", _P.CURATE, None,
             lambda a, p, _n, _: a.admin.precedence(p), "The precedence policy in force"),
    Endpoint("set_precedence", "PUT", "/v1/policies/precedence", _P.CURATE, s.PrecedenceRequest,
             lambda a, p, _, r: a.admin.set_precedence(p, r), "Replace the precedence policy"),
    Endpoint("memory_policy", "GET", "/v1/policies/memory", _P.CURATE, None,
             lambda a, p, _n, _: a.admin.memory_policy(p), "The memory policy in force"),
    Endpoint("set_memory_policy", "PUT", "/v1/policies/memory", _P.CURATE, s.MemoryPolicyRequest,
             lambda a, p, _, r: a.admin.set_memory_policy(p, r), "Replace the memory policy"),
    Endpoint("simulate", "POST", "/v1/policies/precedence/simulate", _P.CURATE, s.SimulateRequest,
             lambda a, p, _, r: a.conflicts.simulate_policy(p, r), "What a policy would have decided differently"),
    Endpoint("decisions", "GET", "/v1/decisions", _P.READ_DECISIONS, s.DecisionsQuery,
             lambda a, p, _, r: a.records.decisions(p, r), "List decisions"),
    Endpoint("verify", "GET", "/v1/decisions/verify", _P.READ_STATS, None,
             lambda a, p, _n, _: a.records.verify(p), "Walk the decision log's chains of hashes"),
    # Effects
    Endpoint("classify", "PUT", "/v1/tools/{tool}/classification", _P.CURATE, s.ClassificationRequest,
             lambda a, p, n, r: a.admin.classify(p, n[0], r), "Say which arguments of a tool name its effect"),
    Endpoint("classification", "GET", "/v1/tools/{tool}/classification", _P.CURATE, None,
             lambda a, p, n, _: a.admin.classification(p, n[0]), "The classification of a tool"),
    Endpoint("propose", "POST", "/v1/effects/propose", _P.EFFECTS, s.ProposeRequest,
             lambda a, p, _, r: a.effects.propose(p, r), "Propose an effect"),
    Endpoint("confirm", "POST", "/v1/effects/confirm", _P.EFFECTS, s.ReservationRequest,
             lambda a, p, _, r: a.effects.confirm(p, r), "Say that the tool returned success"),
    Endpoint("renew", "POST", "/v1/effects/renew", _P.EFFECTS, s.ReservationRequest,
             lambda a, p, _, r: a.effects.renew(p, r), "Extend the lease of a reservation"),
    Endpoint("release", "POST", "/v1/effects/release", _P.EFFECTS, s.ReservationRequest,
             lambda a, p, _, r: a.effects.release(p, r), "Say that the effect did not happen"),
    Endpoint("effects", "GET", "/v1/effects", _P.EFFECTS, s.EffectsQuery,
             lambda a, p, _, r: a.effects.list_effects(p, r), "List keys and their state"),
    Endpoint("forget", "POST", "/v1/effects/forget", _P.CURATE, s.ForgetRequest,
             lambda a, p, _, r: a.effects.forget(p, r), "Make a confirmed key count as not done"),
    Endpoint("import_effects", "POST", "/v1/effects/import", _P.CURATE, s.ImportKeysRequest,
             lambda a, p, _, r: a.effects.import_keys(p, r), "Bring in confirmed keys of an older system"),
    Endpoint("trail", "GET", "/v1/runs/{run_id}/trail", _P.READ_TRAILS, s.TrailQuery,
             lambda a, p, n, r: a.effects.trail(p, n[0], r), "The recorded decisions of a run, in order"),
    # Operations
    Endpoint("stats", "GET", "/v1/stats", _P.READ_STATS, None,
             lambda a, p, _n, _: a.records.stats(p), "Counts and sizes of the company"),
    Endpoint("create_company", "POST", "/v1/companies", _P.OPERATE, s.CompanyRequest,
             lambda a, p, _, r: a.admin.create_company(p, r), "Create a company; one that exists stays as it is",
             company=False),
    Endpoint("delete_company", "DELETE", "/v1/companies/{company}", _P.OPERATE, None,
             lambda a, p, n, _: a.admin.delete_company(p, n[0]), "Erase a company and everything it has",
             company=False),
    Endpoint("place", "PUT", "/v1/companies/{company}", _P.OPERATE, s.PlaceRequest,
             lambda a, p, n, r: a.scale.place(p, n[0], r), "Pin a company, or give it a shard of its own",
             company=False),
    Endpoint("scale", "POST", "/v1/scale", _P.OPERATE, s.ScaleRequest,
             lambda a, p, _, r: a.scale.scale(p, r), "Say how many of each part there are to be",
             company=False),
    Endpoint("scaling", "GET", "/v1/scale", _P.OPERATE, None,
             lambda a, p, _n, _: a.scale.scaling(p), "How many there are, and how far it is", company=False),
    Endpoint("keys", "GET", "/v1/keys", _P.ADMINISTER_COMPANY, s.KeysQuery,
             lambda a, p, _, r: a.admin.keys(p, r), "List the keys of the company"),
    Endpoint("create_key", "POST", "/v1/keys", _P.ADMINISTER_COMPANY, s.KeyRequest,
             lambda a, p, _, r: a.admin.create_key(p, r), "Create a key; only this answer ever holds it",
             company=False),
    Endpoint("revoke_key", "DELETE", "/v1/keys/{id}", _P.ADMINISTER_COMPANY, None,
             lambda a, p, n, _: a.admin.revoke_key(p, n[0]), "End a key at once"),
)  # fmt: skip
BY_VERB: Mapping[str, Endpoint] = {endpoint.verb: endpoint for endpoint in ENDPOINTS}

_NAME: TypeAdapter[str] = TypeAdapter(Name)


async def dispatch(
    services: Services,
    principal: Principal,
    endpoint: Endpoint,
    named: Sequence[str],
    data: Any,
    limits: LimitSettings = DEFAULT_LIMITS,
) -> Answer:
    """The answer of ``endpoint``. ``data``: its request, as plain JSON or as an instance of its model.

    Raises ``Forbidden`` before anything else is looked at, then ``InvalidInput``, then what the service raises.
    """
    require(principal, endpoint.permission)
    names = [_name(text) for text in named]
    if endpoint.company:
        company = require_company(principal)
        if Role.OPERATOR in principal.roles:
            await services.admin.require_company(company)
    request = None if endpoint.model is None else parse(endpoint.model, data, limits)
    with telemetry.span(endpoint.verb) as span, available():
        answer = await endpoint.call(services, principal, names, request)
        telemetry.name_decisions(span, answer)
    return answer


def _name(text: str) -> str:
    """What a path names, in NFC. What no name can be does not exist."""
    try:
        return _NAME.validate_python(text)
    except ValidationError:
        raise NotFound("there is nothing of this name") from None
