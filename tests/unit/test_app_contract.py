from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.control_tables import TABLES
from muniment.actors.store.engine import sqlite_url
from muniment.actors.store.keys import OPERATOR_ID, new_key
from muniment.cluster.admin_service import AdminService
from muniment.cluster.endpoints import ENDPOINTS, Endpoint, Services
from muniment.cluster.settings import LimitSettings, Settings
from muniment.deploy.app import OPEN_PATHS, create_app
from muniment.deploy.problems import MEDIA_TYPE, STATUSES
from muniment.policies import errors
from muniment.policies.access import TABLE, Extent, Principal, Role
from muniment.policies.errors import MunimentError

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
    "simulate": {"policy": {}},
    "classify": {"key_paths": ["/to"], "window": {"seconds": 60}},
    "propose": PROPOSAL,
    "confirm": {"token": "t"},
    "renew": {"token": "t"},
    "release": {"token": "t"},
    "forget": {**EFFECT, "reason": "y"},
    "import_effects": {"effects": [EFFECT]},
    "create_company": {"company": "acme"},
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
        self.memory, self.conflicts, self.records, self.effects = self.recording = [Recording() for _ in range(4)]
        self.admin = AdminService(self.store)
        settings = Settings(data_dir=folder, limits=LimitSettings(**limits))
        self.app = create_app(Services(self.memory, self.conflicts, self.records, self.effects, self.admin), settings)
        self.begin()

    def begin(self) -> None:
        """One company, the operator's key, and nothing else."""
        with self.store.engine.begin() as connection:
            for table in reversed(TABLES):
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture
def world(shared):
    shared.begin()
    return shared


@pytest.fixture
def agent(world):
    return world.key("agent")


def is_problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert {"type", "title", "status", "detail", "code", "errors", "request_id"} <= set(body)
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert code is None or body["code"] == code
    return body


# Who may enter


def test_every_route_needs_a_key_but_the_ones_that_are_listed(world):
    routes = [(method, route.path) for route in world.app.routes for method in route.methods]
    assert {path for _, path in routes if path in OPEN_PATHS} == OPEN_PATHS
    closed = [(method, path) for method, path in routes if path not in OPEN_PATHS]
    assert len(closed) == len(ENDPOINTS)
    for method, path in [*closed, ("GET", "/"), ("GET", "/v1/nothing"), ("GET", "/docs/"), ("POST", "//healthz")]:
        response = world.send(method, path)
        is_problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"
    assert world.calls == 0


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic eDp5", "bearer x", "Bearer mk_k_1_" + "0" * 64, "Bearer " + "x" * 9000],
)
def test_what_is_no_key_opens_nothing(world, authorization):
    is_problem(world.send("GET", "/v1/stats", headers={"Authorization": authorization}), 401)


def test_a_key_opens_until_it_is_revoked_or_expires(world):
    auditor = world.key("auditor")
    assert world.send("GET", "/v1/stats", auditor).json() == {"verb": "stats"}
    assert world.send("GET", "/v1/stats", headers={"Authorization": f"bearer  {auditor}"}).status_code == 200
    [record] = world.store.keys("acme")
    world.store.revoke_key("acme", record.grant.key_id, "test")
    is_problem(world.send("GET", "/v1/stats", auditor), 401)
    is_problem(world.send("GET", "/v1/stats", world.key("auditor", expires_at=datetime.now(UTC))), 401)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert world.send("GET", "/v1/stats", world.key("auditor", expires_at=soon)).status_code == 200


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.OPERATOR])
def test_every_verb_asks_for_its_permission(world, role):
    key = world.key(role.value)
    world.store.put_classification("acme", "acme", {"key_paths": [], "window": "off"}, "test")
    for endpoint in ENDPOINTS:
        before = world.calls
        response = world.call(endpoint, key)
        if TABLE[endpoint.permission, role] is Extent.NONE:
            is_problem(response, 403, "forbidden")
            assert world.calls == before
        else:
            assert response.status_code in (200, 404), (endpoint.verb, response.text)  # 404: a key "acme" to revoke


def test_an_operator_names_a_company_that_exists(world):
    for endpoint in ENDPOINTS:
        if endpoint.company:
            assert is_problem(world.call(endpoint, world.operator), 422)["errors"][0]["pointer"] == "/X-Company"
            is_problem(world.call(endpoint, world.operator, headers={"X-Company": "globex"}), 404)
    assert world.calls == 0
    assert world.send("GET", "/v1/stats", world.operator, headers={"X-Company": "acme"}).status_code == 200
    assert world.records.calls[0][1].company == "acme"
    for name in ("a/b", "x" * 200):
        is_problem(world.send("GET", "/v1/stats", world.operator, headers={"X-Company": name}), 422)


def test_the_actor_is_the_bound_user_else_x_user_else_the_key(world, agent):
    bound = world.key("agent", user="jos\u00e9")

    def actor(key: str, **headers: str) -> str:
        body = {"query": "x"}
        sent = {name: value.encode() for name, value in headers.items()}
        assert world.send("POST", "/v1/recall", key, json=body, headers=sent).status_code == 200
        return world.memory.calls[-1][1].actor

    assert actor(agent).startswith("key:k_")
    assert actor(agent, **{"X-User": "lee"}) == "lee"
    assert actor(bound) == "jos\u00e9"
    assert actor(bound, **{"X-User": "jose\u0301"}) == "jos\u00e9"
    is_problem(world.send("GET", "/v1/memories", bound, headers={"X-User": "lee"}), 403)
    is_problem(world.send("GET", "/v1/memories", agent, headers={"X-User": "key:k_1"}), 422)
    is_problem(world.send("GET", "/v1/memories", agent, headers={"X-User": " "}), 422)
    is_problem(world.send("GET", "/v1/memories", agent, headers={"X-User": "x" * 600}), 422)


def test_another_company_is_forbidden(world, agent):
    world.store.create_company("globex", "key:operator")
    is_problem(world.send("GET", "/v1/memories", agent, headers={"X-Company": "globex"}), 403)
    assert world.send("GET", "/v1/memories", agent, headers={"X-Company": "acme"}).status_code == 200
    admin = world.key("admin")
    is_problem(world.send("DELETE", "/v1/companies/globex", admin), 403)
    is_problem(world.send("POST", "/v1/keys", admin, json={"company": "globex", "roles": ["agent"]}), 403)
    assert world.store.has_company("globex")


def test_without_authentication_everybody_is_the_operator(tmp_path, world):
    open_admin = AdminService(world.store, auth_enabled=False)
    principal = asyncio.run(open_admin.authenticate(None, None, "acme"))
    assert (principal.roles, principal.company) == ({Role.OPERATOR}, "acme")


# What is asked


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.verb)
def test_every_verb_reaches_its_service(world, endpoint):
    world.store.put_classification("acme", "acme", {"key_paths": [], "window": "off"}, "test")
    key = world.operator
    response = world.call(endpoint, key, headers={"X-Company": "acme"})
    assert response.status_code == (404 if endpoint.verb == "revoke_key" else 200)
    assert response.headers["content-type"] == ("application/json" if response.status_code == 200 else MEDIA_TYPE)
    calls = [call for recording in world.recording for call in recording.calls]
    if calls:
        verb, principal, arguments = calls[0]
        assert response.json() == {"verb": verb}
        assert principal.key_id == OPERATOR_ID
        assert len(arguments) == len(endpoint.parameters) + (endpoint.model is not None)
        assert all(argument == "acme" for argument in arguments[: len(endpoint.parameters)])


@pytest.mark.parametrize("name", ["github/create_issue", "a b", "caf\u00e9", "a?b", "%", "x#y", "a..b"])
def test_a_name_in_a_path_may_hold_anything(world, name):
    key = world.key("curator")
    path = f"/v1/tools/{quote(name, safe='')}/classification"
    body = {"key_paths": ["/to"], "window": {"permanent": True}}
    assert world.send("PUT", path, key, json=body).json()["tool"] == name
    assert world.send("GET", path, key).json() == {
        "key_paths": ["/to"], "window": {"permanent": True}, "lease_seconds": 60, "max_duplicates_per_run": 3,
        "blocked": False, "block_when_tainted": False, "tool": name, "version": 1,
    }  # fmt: skip
    is_problem(world.send("GET", "/v1/tools/other/classification", key), 404)


@pytest.mark.parametrize("path", ["/v1/memories/%00", "/v1/memories/" + "x" * 600, "/v1/memories/%20", "/v1/memories/"])
def test_what_no_name_can_be_does_not_exist(world, agent, path):
    is_problem(world.send("GET", path, agent), 404)
    assert world.calls == 0


def test_a_route_or_method_that_is_not_there(world, agent):
    is_problem(world.send("GET", "/v2/memories", agent), 404, "not_found")
    response = world.send("PATCH", "/v1/memories", agent)
    is_problem(response, 405, "method_not_allowed")
    assert "POST" in response.headers["allow"] or "GET" in response.headers["allow"]
    is_problem(world.send("POST", "/healthz"), 405)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_what_is_not_json_is_400(world, agent, body):
    is_problem(world.send("POST", "/v1/memories", agent, content=body), 400, "malformed_body")
    assert world.calls == 0


def test_arguments_may_nest_as_deep_as_a_body(world, agent):
    nested: Any = {}
    for _ in range(62):
        nested = {"a": nested}
    assert world.send("POST", "/v1/effects/propose", agent, json={**PROPOSAL, "arguments": nested}).status_code == 200
    is_problem(world.send("POST", "/v1/effects/propose", agent, json={**PROPOSAL, "arguments": {"a": nested}}), 400)


@pytest.mark.parametrize(
    ("literal", "pointer"),
    [("NaN", "/facts/0/importance"), ("Infinity", "/facts/0/importance"), ("-Infinity", "/facts/0/importance"),
     ("1e999", "/facts/0/importance"), ("9" * 5000, "/facts/0/importance"), ('"\\ud800"', "/facts/0/importance"),
     ("null}, 5", "/facts/1"), ("1, \"\\ud800\": 1", "/facts/0")],
)  # fmt: skip
def test_odd_literals_are_422_with_their_pointer(world, agent, literal, pointer):
    body = f'{{"facts": [{{"text": "x", "source": {{"kind": "counterparty"}}, "importance": {literal}}}]}}'
    if literal == "null}, 5":
        body = body.replace("5}]", "5]")
    found = is_problem(world.send("POST", "/v1/memories", agent, content=body), 422, "invalid_field")
    assert [error["pointer"] for error in found["errors"]] == [pointer]
    assert world.calls == 0


def test_a_long_integer_is_an_error_of_its_field(world, agent):
    body = json.dumps({**PROPOSAL, "arguments": {"to": 1}}).replace('"to": 1', '"to": ' + "9" * 5000)
    found = is_problem(world.send("POST", "/v1/effects/propose", agent, content=body), 422)
    assert found["errors"][0]["pointer"] == "/arguments/to"


def test_a_batch_with_one_wrong_fact_reaches_nobody(world, agent):
    facts = [dict(FACT) for _ in range(1000)]
    facts[699]["text"] = ""
    found = is_problem(world.send("POST", "/v1/memories", agent, json={"facts": facts}), 422)
    assert found["errors"] == [{"pointer": "/facts/699/text", "message": "must not be empty"}]
    assert world.calls == 0


def test_a_wrong_query(world, agent):
    for query, pointer in (("limit=0", "/limit"), ("colour=red", "/colour"), ("limit=1&limit=2", "/limit")):
        found = is_problem(world.send("GET", f"/v1/memories?{query}", agent), 422)
        assert found["errors"][0]["pointer"] == pointer
    is_problem(world.send("GET", "/v1/memories/f_1?colour=red", agent), 422)
    is_problem(world.send("POST", "/v1/recall?top_k=3", agent, json={"query": "x"}), 422)


def test_an_audit_needs_no_body(world):
    assert world.send("POST", "/v1/conflicts/audit", world.key("curator")).status_code == 200


def test_a_body_that_is_too_large_is_413_also_where_its_length_is_a_lie(tmp_path):
    world = World(tmp_path, body_bytes=2048)
    agent = world.key("agent")
    fitting = json.dumps({"query": "x" * 2000}).encode()
    assert world.send("POST", "/v1/recall", agent, content=fitting).status_code == 200

    async def chunks():
        for _ in range(100):
            yield b" " * 1000

    for content in (b" " * 2049, chunks()):
        found = is_problem(world.send("POST", "/v1/recall", agent, content=content), 413, "too_large")
        assert found["limit_bytes"] == 2048
    is_problem(world.send("POST", "/v1/recall", content=b" " * 9999), 401)
    world.close()


# How it is answered


def test_the_status_of_every_error():
    codes = {kind.code: status for kind, status in STATUSES.items()}
    assert codes == {
        "malformed_body": 400, "unauthenticated": 401, "forbidden": 403, "not_found": 404, "state_conflict": 409,
        "too_large": 413, "invalid_field": 422, "overloaded": 429, "unavailable": 503, "fenced": 503, "internal": 500,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (errors.MissingKeyPath.at("/arguments/to", "is absent"), 422, None),
        (errors.AlreadyRuled("ruled", resolution={"decision": "dismiss"}), 409, None),
        (errors.StaleReservation("stale", state="released"), 409, None),
        (errors.IdempotencyMismatch("another body"), 409, None),
        (errors.Overloaded("full", retry_after_seconds=2.5), 429, "3"),
        (errors.StoreUnavailable("down"), 503, "1"),
        (errors.DeadlineExceeded("late", retry_after_seconds=0), 503, "1"),
        (errors.ModelUnavailable("no model"), 503, "1"),
        (errors.Fenced("replaced"), 503, "1"),
        (errors.CorruptData("bits"), 500, None),
        (MunimentError("boom"), 500, None),
        (ValueError("a secret"), 500, None),
    ],
)
def test_errors_of_a_service(world, agent, error, status, retry_after):
    async def fail() -> dict[str, Any]:
        raise error

    world.memory.answer = fail
    response = world.send("POST", "/v1/recall", agent, json={"query": "x"})
    found = is_problem(response, status, getattr(error, "code", "internal"))
    assert response.headers.get("retry-after") == retry_after
    assert "a secret" not in response.text
    fields = getattr(error, "fields", {})
    assert {name: found[name] for name in fields} == fields


def test_a_request_id_comes_back(world, agent):
    assert world.send("GET", "/healthz", headers={"X-Request-Id": "run-7.1"}).headers["x-request-id"] == "run-7.1"
    given = world.send("GET", "/healthz", headers={"X-Request-Id": "a b;"}).headers["x-request-id"]
    assert len(given) == 32


def test_any_text_comes_back_as_utf_8(world, agent):
    async def echo() -> dict[str, Any]:
        return {"text": "\ud55c\uae00 \U0001f600 <script>"}

    world.memory.answer = echo
    response = world.send("POST", "/v1/recall", agent, json={"query": "x"})
    assert response.content == '{"text":"\ud55c\uae00 \U0001f600 <script>"}'.encode()


def test_probes(world):
    assert world.send("GET", "/healthz").json() == {"status": "ok"}
    assert world.send("HEAD", "/healthz").status_code == 200
    world.records.parts = {"down": [], "degraded": ["reranker"]}
    ready = world.send("GET", "/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["reranker"])
    world.records.parts = {"down": ["store"], "degraded": []}
    down = world.send("GET", "/readyz")
    assert (down.status_code, down.json()["down"]) == (503, ["store"])


def test_the_document_names_every_verb_and_the_limits_in_force(tmp_path):
    world = World(tmp_path, text_bytes=1000, batch_facts=7)
    shown = world.send("GET", "/openapi.json").json()
    world.close()
    operations = {entry.get("operationId"): entry for path in shown["paths"].values() for entry in path.values()}
    assert {endpoint.verb for endpoint in ENDPOINTS} <= set(operations)
    assert all("default" in operations[endpoint.verb]["responses"] for endpoint in ENDPOINTS)
    schemas = shown["components"]["schemas"]
    assert schemas["RememberRequest"]["properties"]["facts"]["maxItems"] == 7
    assert schemas["FactIn"]["properties"]["text"]["maxLength"] == 1000
    assert shown["info"]["x-limits"]["body_bytes"] == 8 * 1024 * 1024
    assert {parameter["name"] for parameter in operations["facts"]["parameters"]} >= {"subject", "field", "as_of"}
    references = {part.split('"')[0] for part in json.dumps(shown).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    assert "/v1/tools/{tool}/classification" in shown["paths"]


def test_the_docs_open(world):
    assert "text/html" in world.send("GET", "/docs").headers["content-type"]


def test_a_client_that_goes_cancels_its_wait(world, agent):
    """Straight over ASGI: the client hangs up while its proposal waits."""
    cancelled = threading.Event()

    async def go() -> None:
        waiting = asyncio.Event()

        async def wait_for_ever() -> dict[str, Any]:
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return {}

        world.effects.answer = wait_for_ever
        messages = [{"type": "http.request", "body": json.dumps(PROPOSAL).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        headers = [(b"authorization", f"Bearer {agent}".encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/effects/propose", "raw_path": b"/v1/effects/propose", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("test", 1), "server": ("test", 80),
        }  # fmt: skip
        await asyncio.wait_for(world.app(scope, receive, send), 10)

    asyncio.run(go())
    assert cancelled.is_set()


# Anything at all

SLOW = hypothesis_settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)

BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FUZZED = [endpoint for endpoint in ENDPOINTS if endpoint.has_body]


@hypothesis_settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.data(), st.sampled_from(FUZZED))
def test_no_body_makes_a_server_error(world, data, endpoint):
    right = REQUESTS.get(endpoint.verb) or {}
    changed = data.draw(st.dictionaries(st.sampled_from([*endpoint.model.model_fields, "x"]), BODIES, max_size=3))
    body = data.draw(BODIES) if data.draw(st.booleans()) else {**right, **changed}
    content = json.dumps(body).encode()
    response = world.call(endpoint, world.operator, headers={"X-Company": "acme"}, content=content, json=None)
    assert response.status_code < 500
    assert response.status_code == 200 or response.json()["code"]


@hypothesis_settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.binary(max_size=200))
def test_no_bytes_make_a_server_error(world, content):
    response = world.send("POST", "/v1/recall", world.operator, headers={"X-Company": "acme"}, content=content)
    assert response.status_code in (400, 422)


@hypothesis_settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(
    st.dictionaries(st.sampled_from(["limit", "cursor", "subject", "tags", "min_importance", "x"]), st.text(max_size=9))
)
def test_no_query_makes_a_server_error(world, query):
    response = world.send("GET", "/v1/memories", world.operator, headers={"X-Company": "acme"}, params=query)
    assert response.status_code in (200, 422)
