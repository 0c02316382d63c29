"""The HTTP API over a real control store and services that only record, for tests without Ray or a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.control_tables import TABLES
from muniment.actors.store.engine import sqlite_url
from muniment.actors.store.keys import OPERATOR_ID, new_key
from muniment.cluster.admin_service import AdminService
from muniment.cluster.endpoints import Endpoint, Services
from muniment.cluster.settings import LimitSettings, Settings
from muniment.deploy.app import create_app
from muniment.deploy.problems import MEDIA_TYPE
from muniment.policies.access import Principal, Role

FACT = {"text": "the invoice contact is Dana", "source": {"kind": "system_of_record", "id": "crm"}}
PROPOSAL = {
    "area": "sales", "agent": "closer", "tool": "mail", "arguments": {"to": "lee"}, "run_id": "r", "step_id": "s"
}  # fmt: skip
EFFECT = {"area": "sales", "agent": "closer", "tool": "mail", "arguments": {"to": "lee"}}
#: A request that is right, for every verb that has one.
REQUESTS: dict[str, Any] = {
    "remember": {"facts": [FACT]},
    "recall": {"query": "who?"},
    "facts": {"subject": "acme", "field": "contact"},
    "correct": {"text": "x", "reason": "y"},
    "expire": {"reason": "y"},
    "resolve": {"decision": "keep_incumbent"},
    "set_precedence": {"default_owner": "ana"},
    "set_memory_policy": {"languages": ["pt"]},
    "simulate": {"policy": {}},
    "classify": {"key_paths": ["/to"], "window": {"seconds": 60}},
    "propose": PROPOSAL,
    "confirm": {"token": "t"},
    "renew": {"token": "t"},
    "release": {"token": "t"},
    "forget": {**EFFECT, "reason": "y"},
    "import_effects": {"effects": [EFFECT]},
    "create_company": {"company": "acme"},
    "place": {"pinned": True},
    "scale": {"shards": 3},
    "create_key": {"roles": ["agent"]},
}


class Recording:
    """A service that answers every verb with what it was asked, or as told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Principal, tuple[Any, ...]]] = []
        self.answer: Callable[[], Awaitable[dict[str, Any]]] | None = None
        self.parts: dict[str, Any] = {"down": [], "degraded": []}

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def call(principal: Principal, *arguments: Any) -> dict[str, Any]:
            self.calls.append((verb, principal, arguments))
            return {"verb": verb} if self.answer is None else await self.answer()

        return call

    async def ready(self) -> dict[str, Any]:
        return self.parts


class World:
    """The application over a real control store and recording services."""

    def __init__(self, folder: Any, **limits: int) -> None:
        self.store = ControlStore(sqlite_url(folder / "control.db"))
        self.operator = new_key(OPERATOR_ID)
        self.recording = [Recording() for _ in range(5)]
        self.memory, self.conflicts, self.records, self.effects, self.scale = self.recording
        self.admin = AdminService(self.store)
        settings = Settings(data_dir=folder, limits=LimitSettings(**limits))
        services = Services(self.memory, self.conflicts, self.records, self.effects, self.admin, self.scale)
        self.app = create_app(services, settings)
        self.begin()

    def begin(self) -> None:
        """One company, the operator's key, and nothing else."""
        with self.store.engine.begin() as connection:
            for table in reversed(list(TABLES)):
                connection.execute(table.delete())
        self.store.adopt_operator_key(self.operator)
        self.store.create_company("acme", "key:operator")
        for recording in self.recording:
            recording.__init__()  # type: ignore[misc]

    def key(self, *roles: str, company: str = "acme", **granted: Any) -> str:
        return self.store.create_key(company, "test", roles=frozenset(Role(role) for role in roles), **granted)[0]

    def send(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(go())

    def call(self, endpoint: Endpoint, key: str | None, **options: Any) -> httpx.Response:
        path = endpoint.route.format(**dict.fromkeys(endpoint.parameters, "acme"))
        asked = REQUESTS.get(endpoint.verb)
        if endpoint.has_body:
            options.setdefault("json", asked or {})
        return self.send(endpoint.method, path, key, params=None if endpoint.has_body else asked, **options)

    @property
    def calls(self) -> int:
        return sum(len(recording.calls) for recording in self.recording)

    def close(self) -> None:
        self.admin.close()


def is_problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert {"type", "title", "status", "detail", "code", "errors", "request_id"} <= set(body)
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert code is None or body["code"] == code
    return body
