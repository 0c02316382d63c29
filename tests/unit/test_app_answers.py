from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from muniment.cluster.endpoints import ENDPOINTS
from muniment.deploy.problems import STATUSES
from muniment.policies import errors
from muniment.policies.errors import MunimentError

from .http_world import PROPOSAL, REQUESTS, World, is_problem


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
    assert not re.search(r'"(ge|le|gt|lt)":', json.dumps(shown)), "those are pydantic's words, not JSON Schema's"
    assert shown["info"]["x-limits"]["body_bytes"] == 8 * 1024 * 1024
    assert {parameter["name"] for parameter in operations["facts"]["parameters"]} >= {"subject", "field", "as_of"}
    references = {part.split('"')[0] for part in json.dumps(shown).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    assert "/v1/tools/{tool}/classification" in shown["paths"]


def test_the_docs_open_and_load_nothing_from_elsewhere(world):
    page = world.send("GET", "/docs")
    assert "text/html" in page.headers["content-type"]
    loaded = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    assert len(loaded) == 3
    for path in loaded:
        assert world.send("GET", path).status_code == 200
    is_problem(world.send("GET", "/docs/files/..%2f..%2f..%2fapp.py"), 404)


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
