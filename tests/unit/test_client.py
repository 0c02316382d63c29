"""The client over HTTP, against a server that says what each test wants said."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from muniment.cluster import AsyncClient, Client
from muniment.cluster.effect import Duplicate
from muniment.cluster.endpoints import BY_VERB
from muniment.cluster.transport import NotSent, url_of
from muniment.cluster.verbs import Request, Verbs
from muniment.policies.errors import (
    DeadlineExceeded,
    InvalidInput,
    MunimentError,
    Overloaded,
    StaleReservation,
    Unavailable,
)

Reply = tuple[int, dict[str, str], Any]


@dataclass
class Server:
    """What it was asked, and what it says next: replies in order, the last one again and again; None breaks off."""

    url: str = ""
    replies: list[Reply | None] = field(default_factory=lambda: [(200, {}, {"ok": True})])
    asked: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event | None = None


def problem(status: int, code: str, headers: dict[str, str] | None = None, **members: Any) -> Reply:
    return status, headers or {}, {"code": code, "detail": "what happened", "status": status, **members}


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            state.asked.append(
                {"method": self.command, "path": self.path, "body": body, "headers": dict(self.headers.items())}
            )
            if state.hold is not None:
                state.hold.wait()
            reply = state.replies.pop(0) if len(state.replies) > 1 else state.replies[0]
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        state.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield state
        if state.hold is not None:
            state.hold.set()
        http.shutdown()
        thread.join()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, key="mk_1") as made:
        yield made


class Recorder(Verbs[Request]):
    """Keeps the request of a verb instead of sending it."""

    def _send(self, request: Request) -> Request:
        return request


PUBLIC = sorted(name for name, _ in inspect.getmembers(Verbs, inspect.isfunction) if not name.startswith("_"))


def called(name: str) -> Request:
    """The request of a verb, called with a made-up value for each argument it needs."""
    values: dict[str, Any] = {"facts": [], "policy": {}, "effects": [], "arguments": {}, "key_paths": [], "roles": []}
    verb: Callable[..., Request] = getattr(Recorder(), name)
    needed = [
        p for p in inspect.signature(verb).parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    return verb(**{parameter.name: values.get(parameter.name, "x") for parameter in needed})


@pytest.mark.parametrize("name", PUBLIC)
def test_every_verb_is_the_endpoint_of_that_name(name: str) -> None:
    request, endpoint = called(name), BY_VERB[name]
    assert (request.verb, request.method) == (name, endpoint.method)
    assert request.route == re.sub(r"\{\w+\}", "{}", endpoint.route)
    assert len(request.named) == len(endpoint.parameters)
    assert (request.body is not None) == endpoint.has_body


def test_every_endpoint_has_a_verb() -> None:
    assert set(PUBLIC) == set(BY_VERB)


def test_a_request_says_who_asks_and_carries_only_what_was_said(server: Server) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with Client(server.url, key="mk_1", user="José", company="acme") as client:
        client.recall("q", top_k=3, as_of=moment, filters={"tags": ("a", "b")}, min_score=None)
        client.memories(tags=["a", "b"], limit=2)
        client.revoke_key("k/1 ?")
    recall, memories, revoke = server.asked
    assert recall["body"] == {
        "query": "q",
        "top_k": 3,
        "as_of": "2026-01-02T03:04:05Z",
        "filters": {"tags": ["a", "b"]},
    }
    assert recall["headers"]["Authorization"] == "Bearer mk_1"
    assert recall["headers"]["X-User"].encode("latin-1").decode() == "José"
    assert recall["headers"]["X-Company"] == "acme"
    assert memories["path"] == "/v1/memories?tags=a&tags=b&limit=2"
    assert revoke["path"] == "/v1/keys/k%2F1%20%3F"


def test_a_naive_time_is_refused_before_anything_is_sent(client: Client, server: Server) -> None:
    with pytest.raises(InvalidInput):
        client.facts("s", "f", as_of=datetime(2026, 1, 2))  # noqa: DTZ001
    assert server.asked == []


@pytest.mark.parametrize(
    ("reply", "kind", "fields"),
    [
        (problem(422, "invalid_field", errors=[{"pointer": "/facts/0/text", "message": "m"}]), InvalidInput,
         {"errors": [{"pointer": "/facts/0/text", "message": "m"}]}),
        (problem(409, "stale_reservation", state="lapsed", holder={"run_id": "r"}), StaleReservation,
         {"state": "lapsed", "holder": {"run_id": "r"}}),
        (problem(418, "of_a_newer_service", errors=[], extra=1), MunimentError, {"extra": 1}),
        ((418, {}, "I'm a teapot"), MunimentError, {}),
    ],
    ids=["invalid", "stale", "unknown code", "no problem document"],
)  # fmt: skip
def test_errors_come_back_as_their_classes(
    client: Client, server: Server, reply: Reply, kind: type[MunimentError], fields: dict[str, Any]
) -> None:
    server.replies = [reply]
    with pytest.raises(kind) as caught:
        client.confirm("t")
    assert type(caught.value) is kind
    assert caught.value.fields == fields
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [problem(503, "unavailable"), problem(429, "overloaded"), (503, {}, "no replica"), (500, {}, "it died"), None],
    ids=["unavailable", "overloaded", "a proxy's 503", "a proxy's 500", "broken off"],
)
def test_what_failed_for_a_moment_is_sent_again_as_the_same_write(
    client: Client, server: Server, failure: Reply | None
) -> None:
    server.replies = [failure, failure, (200, {}, {"results": []})]
    assert client.remember([{"text": "t", "source": {"kind": "counterparty"}}]) == {"results": []}
    assert len(server.asked) == 3
    keys = {asked["body"]["idempotency_key"] for asked in server.asked}
    assert len(keys) == 1
    assert all(keys)


def test_two_writes_are_two_writes(client: Client, server: Server) -> None:
    client.expire("f_1", reason="r")
    client.expire("f_1", reason="r")
    client.expire("f_1", reason="r", idempotency_key="mine")
    keys = [asked["body"]["idempotency_key"] for asked in server.asked]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_a_key_is_not_created_twice_because_an_answer_was_lost(client: Client, server: Server) -> None:
    server.replies = [None, (200, {}, {"id": "k"})]
    with pytest.raises(Unavailable):
        client.create_key(["agent"], company="c")
    assert len(server.asked) == 1


def test_the_last_error_is_raised_when_the_next_attempt_would_be_past_the_deadline(server: Server) -> None:
    server.replies = [problem(429, "overloaded", {"Retry-After": "3600"})]
    with Client(server.url, key="k", timeout_seconds=30) as client, pytest.raises(Overloaded) as caught:
        client.recall("q")
    assert caught.value.fields["retry_after_seconds"] == 3600
    assert len(server.asked) == 1


def test_no_answer_until_the_deadline_is_its_own_error(server: Server) -> None:
    server.hold = threading.Event()
    with Client(server.url, key="k", timeout_seconds=0.2) as client, pytest.raises(DeadlineExceeded):
        client.recall("q")


def test_nobody_there_is_told_by_its_address() -> None:
    with (
        Client("http://127.0.0.1:9", key="k", timeout_seconds=0.2) as client,
        pytest.raises(NotSent, match=r"127\.0\.0\.1:9"),
    ):
        client.recall("q")


def test_one_client_serves_many_threads(client: Client, server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.recall(f"q{number}"), range(40)))
    assert answers == [{"ok": True}] * 40
    assert {asked["body"]["query"] for asked in server.asked} == {f"q{number}" for number in range(40)}


def test_the_synchronous_client_works_where_a_loop_runs(server: Server) -> None:
    async def inside() -> Any:
        with Client(server.url, key="k") as client:
            return client.recall("q")

    assert asyncio.run(inside()) == {"ok": True}


def test_the_asynchronous_client_has_many_under_way(server: Server) -> None:
    async def work() -> list[Any]:
        async with AsyncClient(server.url, key="k") as client:
            return await asyncio.gather(*(client.recall(f"q{number}") for number in range(20)))

    assert asyncio.run(work()) == [{"ok": True}] * 20


def test_a_closed_client_leaves_no_thread(server: Server) -> None:
    client = Client(server.url, key="k")
    assert "muniment-client" in {thread.name for thread in threading.enumerate()}
    client.close()
    client.close()
    assert "muniment-client" not in {thread.name for thread in threading.enumerate()}


def test_an_effect_runs_its_body_only_on_allow(client: Client, server: Server) -> None:
    reserved = {"token": "t", "expires_at": "2026-01-01T00:00:00Z", "lease_seconds": 60}
    allow = {"verdict": "allow", "reason": "free", "reservation": reserved}
    duplicate = {"verdict": "duplicate", "reason": "confirmed", "origin": {"run_id": "r1"}, "run": {"stop": False}}
    server.replies = [(200, {}, allow), (200, {}, {"state": "confirmed"}), (200, {}, duplicate)]
    call: dict[str, Any] = {"area": "a", "agent": "b", "tool": "t", "arguments": {"x": 1}}
    done = []
    with client.effect(**call, run="r1", step="1"):
        done.append(1)
    with pytest.raises(Duplicate) as caught, client.effect(**call, run="r2", step="1"):
        done.append(2)
    assert done == [1]
    assert caught.value.origin == {"run_id": "r1"}
    assert [asked["path"] for asked in server.asked] == [
        "/v1/effects/propose",
        "/v1/effects/confirm",
        "/v1/effects/propose",
    ]


def test_what_a_path_and_a_query_say_is_encoded_once() -> None:
    named = Request(
        "q", "GET", "/v1/runs/{}/trail", ("a/b é%2F",), query={"open": True, "limit": 3, "kinds": ["x", "ü&"]}
    )
    address = "http://host:8000/below"
    assert str(url_of(address, named)) == (
        "http://host:8000/below/v1/runs/a%2Fb%20%C3%A9%252F/trail?open=true&limit=3&kinds=x&kinds=%C3%BC%26"
    )


def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "localhost")
    with Client("http://far.example", key="k", timeout_seconds=5) as client:
        client.recall("q")
    assert server.asked[0]["path"] == "http://far.example/v1/recall"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Client("http://127.0.0.1:9", key="k", timeout_seconds=0.2) as client, pytest.raises(NotSent):
        client.recall("q")
