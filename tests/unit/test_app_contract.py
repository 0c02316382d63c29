from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from muniment.actors.store.keys import OPERATOR_ID
from muniment.cluster.admin_service import AdminService
from muniment.cluster.endpoints import ENDPOINTS
from muniment.deploy.app import OPEN_PATHS
from muniment.deploy.problems import MEDIA_TYPE
from muniment.policies.access import TABLE, Extent, Role

from .http_world import FACT, PROPOSAL, World, is_problem


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


# Who may enter


def test_every_route_needs_a_key_but_the_ones_that_are_listed(world):
    found = [route for route in world.app.routes if isinstance(route, Route)]
    routes = [(method, route.path) for route in found for method in route.methods]
    assert {path for _, path in routes if path in OPEN_PATHS} == OPEN_PATHS
    closed = [(method, path) for method, path in routes if path not in OPEN_PATHS]
    assert len(closed) == len(ENDPOINTS) + 2  # and the metrics, and a page of FastAPI's for OAuth, which nobody needs
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
