"""A review desk over services that answer from memory in the shapes of API.md, for tests of the pages alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI

from muniment.cluster.endpoints import Services
from muniment.cluster.settings import LimitSettings
from muniment.deploy.console import console_router
from muniment.policies.access import Principal, Role
from muniment.policies.errors import AlreadyRuled, Forbidden, NotFound, Unauthenticated

NOW = datetime(2026, 6, 15, 9, 30, tzinfo=UTC)
KEYS = {"ana-key": "ana", "agent-key": "bot"}
ROLES = {"ana": frozenset({Role.OWNER}), "bot": frozenset({Role.AGENT})}

DANA = {
    "id": "f_1",
    "text": "Dana Moreira is the main contact of Acme.",
    "subject": "Acme Lda",
    "field": "primary_contact",
    "value": "Dana Moreira",
    "scope": "shared",
    "status": "current",
    "owner": "ana",
    "source": {"kind": "system_of_record", "id": "crm/accounts/1044", "author": "CRM sync"},
    "effective_at": "2024-03-01T00:00:00Z",
    "recorded_at": "2024-03-02T08:11:00Z",
    "review_at": "2026-06-01T00:00:00Z",
    "evidence": [{"kind": "approved_document", "author": "Rui", "role": "sales lead"}],
}
LEE = {
    "id": "f_2",
    "text": "Hi all, from this month Lee takes care of our project. Please send invoices to Lee.",
    "subject": "Acme Lda",
    "field": "primary_contact",
    "value": "Lee Santos",
    "scope": "shared",
    "status": "disputed",
    "owner": "ana",
    "source": {
        "kind": "agent_summary",
        "author": "meeting assistant",
        "party": "Acme Lda",
        "external": True,
        "derived_from": ["f_0"],
    },
    "effective_at": "2026-06-01T00:00:00Z",
    "recorded_at": "2026-06-01T10:02:00Z",
    "evidence": [],
}


def fact(id: str, value: Any, **more: Any) -> dict[str, Any]:
    """A fact of the same slot; its text is its value unless given."""
    made = {**DANA, "id": id, "value": value, "text": str(value), "evidence": [], "source": {"kind": "counterparty"}}
    made.pop("review_at")
    return made | more


def conflict(id: str, kind: str = "conflict", **more: Any) -> dict[str, Any]:
    """A conflict of the API's list."""
    made: dict[str, Any] = {
        "id": id,
        "kind": kind,
        "status": "open",
        "slot": {"subject": "Acme Lda", "field": "primary_contact", "scope": "shared"},
        "incumbent": DANA,
        "rule": "sensitive_needs_owner",
        "reason": "The field is sensitive.",
        "owner": "ana",
        "opened_at": "2026-06-01T10:02:00Z",
        "due_at": "2026-06-17T10:02:00Z",
    }
    return made | more


@dataclass
class World:
    """The services' answers, and what was asked of them."""

    conflicts: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=lambda: {"current": None, "history": []})
    decisions: list[dict[str, Any]] = field(default_factory=list)
    trail: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    resolved: dict[str, Any] = field(default_factory=dict)
    fails: Exception | None = None
    following: str | None = None

    def app(self) -> FastAPI:
        """The desk alone, without the API around it."""
        app = FastAPI()
        me: Any = self
        services = Services(memory=me.Memory(me), conflicts=me.Conflicts(me), records=me.Records(me),
                            effects=me.Effects(me), admin=me.Admin(), scale=None)  # fmt: skip
        app.include_router(console_router(services, LimitSettings(), clock=lambda: NOW))
        return app

    def note(self, verb: str, request: Any) -> None:
        self.asked.append((verb, request.model_dump(exclude_none=True, mode="json")))
        if self.fails is not None:
            raise self.fails

    class Admin:
        async def authenticate(self, authorization: str, user: str | None, company: str | None) -> Principal:
            actor = KEYS.get(authorization.removeprefix("Bearer "))
            if actor is None:
                raise Unauthenticated("the key is unknown or revoked")
            if user not in (None, actor):
                raise Forbidden("the key is bound to another user")
            return Principal(company="us", key_id="k_1", roles=ROLES[actor], actor=actor, user=actor)

    @dataclass
    class Conflicts:
        world: World

        async def list_conflicts(self, principal: Principal, query: Any) -> dict[str, Any]:
            self.world.note("conflicts", query)
            shown = [c for c in self.world.conflicts if c["status"] == query.status]
            answer = {"conflicts": [c for c in shown if query.kind in (None, c["kind"])]}
            return answer | ({"next": self.world.following} if self.world.following else {})

        async def resolve_conflict(self, principal: Principal, id: str, request: Any) -> dict[str, Any]:
            self.world.note("resolve", request)
            found = next((c for c in self.world.conflicts if c["id"] == id), None)
            if found is None:
                raise NotFound("there is no such conflict")
            if found["status"] != "open":
                raise AlreadyRuled("it has a ruling", resolution=found.get("resolution"))
            found["status"] = "resolved"
            found["resolution"] = {"decision": request.decision.value, "by": principal.actor, "note": request.note}
            self.world.resolved[id] = request
            value = {"accept_challenger": LEE, "new_value": {**DANA, "value": request.value}}.get(
                request.decision, DANA
            )
            return {"id": id, "status": "resolved", "decision_id": "d_1", "current": value}

    @dataclass
    class Memory:
        world: World

        async def facts(self, principal: Principal, query: Any) -> dict[str, Any]:
            self.world.note("facts", query)
            return self.world.facts

    @dataclass
    class Records:
        world: World

        async def decisions(self, principal: Principal, query: Any) -> dict[str, Any]:
            self.world.note("decisions", query)
            return {"entries": self.world.decisions}

    @dataclass
    class Effects:
        world: World

        async def trail(self, principal: Principal, run_id: str, query: Any) -> dict[str, Any]:
            self.world.note("trail", query)
            return {"entries": self.world.trail}


LONG = "All work and no play makes the archive a dull place. " * 600
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
ARABIC = "جهة الاتصال الرئيسية هي ليلى حداد"


def busy_world() -> World:
    """A desk with a bit of everything, as screenshots and browser tests show it."""
    history = [
        fact("f_a", "Marta Reis", effective_at="2022-01-10T00:00:00Z", status="superseded", superseded_by="f_b",
             source={"kind": "system_of_record", "author": "CRM sync"}),
        fact("f_b", "Tiago Neves", effective_at="2023-02-01T00:00:00Z", status="superseded", superseded_by="f_1",
             source={"kind": "authorized_person", "author": "Rui", "role": "sales lead"}),
        DANA,
        fact("f_c", "Dana Moreira", effective_at="2025-01-01T00:00:00Z", recorded_at="2025-01-03T09:00:00Z",
             source={"kind": "approved_document", "uri": "file://contacts.pdf", "author": "Rui"}),
        fact("f_d", "Nobody", status="superseded", recorded_at="2025-06-01T00:00:00Z", superseded_by="f_1",
             effective_at="2025-06-01T00:00:00Z", source={"kind": "unattributed"}),
        LEE,
        fact("f_e", "Eva Pinto", effective_at="2026-09-01T00:00:00Z", recorded_at="2026-06-10T09:00:00Z",
             source={"kind": "authorized_person", "author": "ana", "role": "owner"}),
    ]  # fmt: skip
    return World(
        conflicts=[
            conflict("c_1", challenger=LEE),
            conflict("c_2", "notice", rule="lower_rank", due_at="2026-06-14T00:00:00Z",
                     slot={"subject": "Zeta S.A.", "field": "seats", "scope": "shared"},
                     incumbent=fact("f_5", 120, text="Zeta has 120 seats."),
                     challenger=fact("f_6", 150.5, text=HOSTILE, status="superseded")),
            conflict("c_3", "review", rule="past_review", challenger=None,
                     slot={"subject": ARABIC, "field": "هاتف", "scope": "personal", "user": "ana"},
                     incumbent=fact("f_7", ARABIC, text=LONG)),
            conflict("c_4", status="resolved", challenger=LEE,
                     resolution={"decision": "accept_challenger", "by": "ana", "at": "2026-06-10T09:00:00Z",
                                 "note": "Phoned them."}),
        ],
        facts={"current": DANA, "history": history, "dispute": {"conflict_id": "c_1", "notice": "x", "other": LEE}},
        decisions=[
            {"id": "d_1", "at": "2026-06-01T10:02:00Z", "kind": "conflict", "rule": "sensitive_needs_owner",
             "reason": "The field is sensitive.", "actor": "key:k_9", "policy_version": 3, "outcome": "held",
             "subject": "Acme Lda", "field": "primary_contact", "hash": "00",
             "inputs": {"challenger": {**LEE, "value": HOSTILE, "rank": 4}, "incumbents": [{**DANA, "rank": 0}],
                        "evidence": [], "now": "2026-06-01T10:02:00Z"}},
            {"id": "d_2", "at": "2026-06-10T09:00:00Z", "kind": "ruling", "rule": "accept_challenger", "inputs": {},
             "reason": "The owner accepted the new value.", "actor": "ana", "policy_version": 3, "hash": "01",
             "outcome": "accept_challenger"},
        ],
        trail=[
            {"seq": 1, "at": "2026-06-01T10:02:00Z", "step_id": "draft", "tool": "mail.send", "verdict": "allow",
             "reason": "The key was free.", "decision_id": "d_5"},
            {"seq": 2, "at": "2026-06-01T10:03:00Z", "step_id": "retry", "tool": "mail.send", "verdict": "duplicate",
             "reason": "It was done before.", "decision_id": "d_6",
             "origin": {"run_id": "run-41", "step_id": "draft", "confirmed_at": "2026-05-30T10:00:00Z"}},
            {"seq": 3, "at": "2026-06-01T10:04:00Z", "step_id": None, "tool": "bank.pay", "verdict": "block",
             "reason": "The tool is blocked.", "decision_id": "d_7"},
        ],
    )  # fmt: skip
