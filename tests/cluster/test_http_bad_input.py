"""Whatever is sent, the answer names what is wrong, nothing of it is stored, and it is never a server error."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muniment.cluster.endpoints import ENDPOINTS
from tests.live import Service

FACT: dict[str, Any] = {"text": "a fact", "source": {"kind": "agent_summary"}}


@pytest.fixture(scope="module")
def company() -> str:
    return f"wrong-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def http(service: Service, company: str) -> Iterator[httpx.Client]:
    """A connection that may everything within one company."""
    headers = {"Authorization": f"Bearer {service.operator_key}", "X-Company": company}
    service.key(company, "agent")
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        yield client


def stored(http: httpx.Client) -> int:
    return len(http.get("/v1/memories", params={"limit": 200}).json()["memories"])


def wrong(response: httpx.Response, status: int) -> list[str]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return [error["pointer"] for error in response.json()["errors"]]


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ('"text": ""', "/text"),
        ('"text": "' + "x" * 40 * 1024 + '"', "/text"),
        ('"text": "\\ud800"', "/text"),
        ('"text": "\\u0000"', "/text"),
        ('"text": "x", "importance": NaN', "/importance"),
        ('"text": "x", "importance": Infinity', "/importance"),
        ('"text": "x", "importance": 1e999', "/importance"),
        ('"text": "x", "effective_at": "2026-01-02T03:04:05"', "/effective_at"),
        ('"text": "x", "subject": "acme"', "/field"),
        ('"text": "x", "subject": "acme", "field": "n", "value": ' + "9" * 30, "/value"),
        ('"text": "x", "colour": "red"', "/colour"),
        ('"text": "x", "scope": "personal", "user": 7', "/user"),
        ('"text": "x", "metadata": {"a": [NaN]}', "/metadata/a/0"),
    ],
)
def test_a_wrong_fact_is_named_and_nothing_is_stored(http: httpx.Client, changed: str, pointer: str) -> None:
    before = stored(http)
    good = json.dumps(FACT)
    body = f'{{"facts": [{good}, {{{changed}, "source": {{"kind": "agent_summary"}}}}]}}'
    assert wrong(http.post("/v1/memories", content=body), 422) == ["/facts/1" + pointer]
    assert stored(http) == before


def test_the_700th_of_a_thousand_is_named_and_nothing_is_stored(http: httpx.Client) -> None:
    before = stored(http)
    facts = [{**FACT, "text": f"fact {n}"} for n in range(1000)]
    facts[699]["text"] = " "
    assert wrong(http.post("/v1/memories", json={"facts": facts}), 422) == ["/facts/699/text"]
    assert wrong(http.post("/v1/memories", json={"facts": []}), 422) == ["/facts"]
    assert wrong(http.post("/v1/memories", json={"facts": [FACT] * 1001}), 422) == ["/facts"]
    assert stored(http) == before


@pytest.mark.parametrize(
    "body", [b"", b"nope", b'{"facts": [', b"\xff", b'{"facts": "\xc3\x28"}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_not_json(http: httpx.Client, body: bytes) -> None:
    wrong(http.post("/v1/memories", content=body), 400)


def test_a_body_over_the_limit(http: httpx.Client) -> None:
    wrong(http.post("/v1/memories", content=b" " * (8 * 1024 * 1024 + 1)), 413)

    def chunks() -> Iterator[bytes]:
        for _ in range(900):
            yield b" " * 10_000

    wrong(http.post("/v1/memories", content=chunks()), 413)


def test_bytes_that_are_not_http(service: Service) -> None:
    host, _, port = service.url.removeprefix("http://").partition(":")
    for sent in (
        b"GARBAGE\r\n\r\n",
        b"POST /v1/memories HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"\x00" * 100,
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(sent + b"\r\n\r\n")
            assert connection.recv(64).startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{service.url}/healthz").status_code == 200


CURSORS = ["x", "AAAA", "k_1", "z" * 2000, "\u00e9", "kwAAAA==", "k8////////////8BAQ==", "gZAB"] + [
    base64.urlsafe_b64encode(msgpack.packb(values)).decode()  # integers that no store can compare with
    for values in ([2**64 - 1, b""], [2**63, "s", 1, 1], [1, "s", 2**64 - 1, 1], [1, "s", 1, 2**63])
]


def test_cursors_of_nobody(http: httpx.Client) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.model is not None and "cursor" in endpoint.model.model_fields and endpoint.method == "GET":
            path = endpoint.route.format(**dict.fromkeys(endpoint.parameters, "x"))
            for cursor in CURSORS:
                assert http.get(path, params={"cursor": cursor}).status_code in (200, 422), (path, cursor)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
BODIES: dict[str, Any] = {
    "remember": {"facts": [{**FACT, "subject": "s", "field": "f", "value": 1}]},
    "recall": {"query": "who?"},
    "correct": {"text": "x", "value": 1, "reason": "y"},
    "expire": {"reason": "y"},
    "resolve": {"decision": "keep_incumbent"},
    "simulate": {"policy": {}},
    "classify": {"key_paths": ["/to"], "window": {"seconds": 60}},
    "propose": {
        "area": "a", "agent": "b", "tool": "t", "arguments": {"to": 1}, "run_id": "r", "step_id": "s", "wait_ms": 0
    },
    "confirm": {"token": "t"},
    "renew": {"token": "t"},
    "release": {"token": "t"},
    "forget": {"area": "a", "agent": "b", "tool": "t", "arguments": {"to": 1}, "reason": "x"},
    "import_effects": {"effects": [{"area": "a", "agent": "b", "tool": "t", "arguments": {"to": 2}}]},
}  # fmt: skip
WITH_BODY = [endpoint for endpoint in ENDPOINTS if endpoint.has_body and endpoint.company]
WITH_QUERY = [endpoint for endpoint in ENDPOINTS if endpoint.model is not None and endpoint.method == "GET"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FEW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@FEW
@given(st.data(), st.sampled_from(WITH_BODY))
def test_no_body_makes_a_server_error(http: httpx.Client, data: st.DataObject, endpoint: Any) -> None:
    fields = [name for name in endpoint.model.model_fields if name not in ("root", "wait_ms")]
    changed = data.draw(st.dictionaries(st.sampled_from([*fields, "x"]), JSON, max_size=2))
    body = data.draw(JSON) if data.draw(st.integers(0, 5)) == 0 else {**BODIES.get(endpoint.verb, {}), **changed}
    path = endpoint.route.format(**dict.fromkeys(endpoint.parameters, "x"))
    response = http.request(endpoint.method, path, content=json.dumps(body))
    assert response.status_code < 500, response.text


@FEW
@given(st.data(), st.sampled_from(WITH_QUERY))
def test_no_query_makes_a_server_error(http: httpx.Client, data: st.DataObject, endpoint: Any) -> None:
    names = st.sampled_from([*endpoint.model.model_fields, "x"])
    query = data.draw(st.dictionaries(names, NAMES, max_size=3))
    path = endpoint.route.format(**dict.fromkeys(endpoint.parameters, "x"))
    assert http.get(path, params=query).status_code < 500


@FEW
@given(
    st.sampled_from([e for e in ENDPOINTS if e.parameters]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_no_path_makes_a_server_error(http: httpx.Client, endpoint: Any, name: str) -> None:
    path = endpoint.route.format(**dict.fromkeys(endpoint.parameters, quote(name, safe="")))
    body = BODIES.get(endpoint.verb) if endpoint.has_body else None
    if endpoint.verb != "delete_company":
        assert http.request(endpoint.method, path, json=body).status_code < 500
