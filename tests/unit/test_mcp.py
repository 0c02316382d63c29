"""The MCP server, spoken to as a host does, over the real services: what it offers, answers and refuses."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult

from muniment.actors.ledger_ops import Confirm, Propose, Release, Renew
from muniment.cluster.client import AsyncClient
from muniment.cluster.effect_service import EffectService
from muniment.cluster.endpoints import BY_VERB, Services, dispatch
from muniment.cluster.schemas import ClassificationRequest
from muniment.cluster.verbs import Request
from muniment.deploy.mcp import TOOLS, WORDS, AgentTool, make_server
from muniment.policies.access import Permission, Principal
from muniment.policies.errors import MunimentError, StoreUnavailable
from tests.stores import Stores
from tests.unit.service_world import ServiceWorld
from tests.unit.test_dedupe_ledger import Bench as LedgerBench
from tests.unit.test_memory_shard import run

SUMMARY = {"kind": "agent_summary", "author": "bot"}
MAIL = {"area": "sales", "agent": "mailer", "tool": "send_mail", "arguments": {"to": "lee", "day": "2026-05-04"}}


def contact(value: str, **more: Any) -> dict[str, Any]:
    slot = {"subject": "Aurora", "field": "contact", "value": value}
    return {"text": f"the contact of Aurora is {value}", **slot, "source": SUMMARY, **more}


class Ledgers:
    """A ledger without a way to it."""

    def __init__(self, bench: LedgerBench) -> None:
        self._bench = bench

    async def propose(self, op: Propose, wait_seconds: float) -> Any:
        return self._do(op)

    async def settle(self, op: Confirm | Renew | Release) -> Any:
        return self._do(op)

    def _do(self, op: Any) -> Any:
        [answer] = self._bench.run(op)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Local(AsyncClient):
    """A client whose requests become plain JSON, are permitted and validated, and reach services of this process."""

    def __init__(self, services: Services, principal: Principal) -> None:
        self.timeout_seconds = 0.0  # what fails is not tried again
        self._to = self
        self._services, self._principal = services, principal
        self.sent: list[str] = []
        self.fails: Exception | None = None

    async def send(self, request: Request, seconds_left: float) -> dict[str, Any]:
        self.sent.append(request.verb)
        if self.fails is not None:
            raise self.fails
        endpoint = BY_VERB[request.verb]
        asked = json.loads(json.dumps(request.body if endpoint.has_body else request.query))
        answer = await dispatch(self._services, self._principal, endpoint, request.named, asked)
        return dict(json.loads(json.dumps(answer)))


class World(ServiceWorld):
    """The services of memory, conflicts and effects; the tool ``send_mail`` has a key."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self.ledger = LedgerBench(stores)
        asked = ClassificationRequest.model_validate({"key_paths": ["/to", "/day"], "window": {"seconds": 3600}})

        async def classification_of(company: str, tool: str) -> Any:
            return asked.to_domain(company, tool, 1) if tool == MAIL["tool"] else None

        effects: Any = EffectService(Ledgers(self.ledger), self.ledger.engine, classification_of)  # type: ignore[arg-type]
        self.services = Services(self.memory, self.conflicts_of, None, effects, None, None)

    def client(self, actor: str = "bot", *roles: str) -> Local:
        return Local(self.services, self.principal(actor, *(roles or ("agent",))))

    def close(self) -> None:
        self.ledger.ledger.close()
        self.ledger.engine.dispose()
        super().close()


@pytest.fixture
def world(stores: Stores) -> Iterator[World]:
    world = World(stores)
    yield world
    world.close()


@asynccontextmanager
async def host(client: AsyncClient, **options: Any) -> Any:
    """A host that is connected."""
    async with Client(make_server(client), **options) as connected:
        yield lambda name, **arguments: connected.call_tool(name, arguments)


async def answer(called: Awaitable[CallToolResult]) -> Any:
    """What a tool answers; it is there as text too."""
    result = await called
    [text] = result.content
    assert json.loads(text.text) == result.structured_content  # type: ignore[union-attr]
    assert not result.is_error, text
    return result.structured_content


async def refusal(called: Awaitable[CallToolResult]) -> Any:
    result = await called
    assert result.is_error
    assert set(result.structured_content) == {"code", "detail", "fields", "retryable"}
    return result.structured_content


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_host_finds_the_tools_and_what_they_are_for(world: World, mode: Any) -> None:
    async def scenario() -> None:
        async with Client(make_server(world.client()), mode=mode) as connected:
            offered = {tool.name: tool for tool in (await connected.list_tools()).tools}
            assert connected.instructions is not None
            for word in ("source", "slot", "`propose_effect`", "`allow`", "`duplicate`"):
                assert word in connected.instructions
            empty = await answer(connected.call_tool("facts", {"subject": "Aurora", "field": "contact"}))
            assert empty == {"current": None, "history": []}
        assert set(offered) == {
            "recall", "remember", "facts", "conflicts",
            "propose_effect", "confirm_effect", "renew_effect", "release_effect", "trail",
        }  # fmt: skip
        for tool in offered.values():
            assert tool.description
            assert tool.input_schema["type"] == "object"
            assert tool.annotations is not None
            assert tool.annotations.destructive_hint is False
        read_only = {name for name, tool in offered.items() if tool.annotations and tool.annotations.read_only_hint}
        assert read_only == {"recall", "facts", "conflicts", "trail"}

    run(scenario())


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_is_a_verb_of_the_client_with_the_arguments_of_the_api(tool: AgentTool) -> None:
    endpoint = BY_VERB[tool.verb]
    assert endpoint.permission in {
        Permission.RECALL, Permission.REMEMBER, Permission.LIST_CONFLICTS, Permission.EFFECTS, Permission.READ_TRAILS
    }  # fmt: skip
    assert endpoint.model is not None
    assert set(tool.arguments.model_fields) <= {*endpoint.model.model_fields, *endpoint.parameters}
    required = {name for name, field in endpoint.model.model_fields.items() if field.is_required()}
    assert required <= set(tool.arguments.model_fields)
    inspect.signature(getattr(AsyncClient, tool.verb)).bind(None, **dict.fromkeys(tool.arguments.model_fields))


def test_every_word_that_is_explained_is_one_of_the_arguments(world: World) -> None:
    found: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, dict):
            for group in ("properties", "$defs"):
                found.update(node.get(group, ()))
            for item in node.values():
                look(item)
            assert not {"x-limit", "x-max-bytes"} & set(node)

    async def scenario() -> None:
        async with Client(make_server(world.client())) as connected:
            for tool in (await connected.list_tools()).tools:
                look(tool.input_schema)

    run(scenario())
    assert set(WORDS) <= found


def test_what_is_remembered_is_recalled_and_a_contradiction_is_shown_and_not_settled(world: World) -> None:
    async def scenario() -> None:
        async with host(world.client()) as call, host(world.client("ana", "owner")) as owners:
            [first] = (await answer(call("remember", facts=[contact("Dana")], idempotency_key="k")))["results"]
            assert first["outcome"] == "stored"
            again = await answer(call("remember", facts=[contact("Dana")], idempotency_key="k"))
            assert again["results"] == [first]
            [held] = (await answer(call("remember", facts=[contact("Lee")])))["results"]
            assert held["outcome"] == "held"

            found = await answer(call("recall", query="contact of Aurora", top_k=3))
            [hit] = found["results"]
            assert (hit["fact"]["value"], hit["dispute"]["other"]["value"]) == ("Dana", "Lee")
            assert found["route"]["gate"]["decision"] in ("l1_only", "search_l2")
            narrowed = await answer(call("recall", query="contact of Aurora", filters={"subject": "Borealis"}))
            assert narrowed["results"] == []

            slot = await answer(call("facts", subject="Aurora", field="contact"))
            assert (slot["current"]["id"], slot["dispute"]["conflict_id"]) == (first["id"], held["conflict_id"])
            assert {fact["value"] for fact in slot["history"]} == {"Dana", "Lee"}
            before = await answer(call("facts", subject="Aurora", field="contact", known_at="2020-01-01T00:00:00Z"))
            assert before["current"] is None

            assert (await refusal(call("conflicts", status="open")))["code"] == "forbidden"
            listed = (await answer(owners("conflicts", status="open", kind="conflict")))["conflicts"]
            assert [conflict["id"] for conflict in listed] == [held["conflict_id"]]

    run(scenario())


def test_an_effect_is_allowed_once(world: World) -> None:
    async def scenario() -> None:
        async with host(world.client()) as call:
            allowed = await answer(call("propose_effect", **MAIL, run_id="r1", step_id="1"))
            token = allowed["reservation"]["token"]
            assert allowed["verdict"] == "allow"
            same = await answer(call("propose_effect", **MAIL, run_id="r1", step_id="1"))
            assert same["reservation"]["token"] == token
            other = await answer(call("propose_effect", **MAIL, run_id="r2", step_id="1", wait_ms=0))
            assert (other["verdict"], other.get("reservation")) == ("pending", None)

            assert (await answer(call("renew_effect", token=token)))["state"] == "reserved"
            done = await answer(call("confirm_effect", token=token, result_ref="mail-7"))
            assert done["state"] == "confirmed"
            twice = await answer(call("propose_effect", **MAIL, run_id="r2", step_id="1"))
            assert (twice["verdict"], twice["origin"]["run_id"]) == ("duplicate", "r1")
            stale = await refusal(call("release_effect", token=token, reason="too late"))
            assert (stale["code"], stale["fields"]["state"]) == ("stale_reservation", "confirmed")

            trail = (await answer(call("trail", run_id="r2")))["entries"]
            assert [entry["verdict"] for entry in trail] == ["pending", "duplicate"]
            page = await answer(call("trail", run_id="r2", limit=1))
            [last] = (await answer(call("trail", run_id="r2", limit=1, cursor=page["next"])))["entries"]
            assert last == trail[1]

    run(scenario())


def test_what_failed_is_released_for_others(world: World) -> None:
    async def scenario() -> None:
        async with host(world.client()) as call:
            allowed = await answer(call("propose_effect", **MAIL, run_id="r1", step_id="1"))
            token = allowed["reservation"]["token"]
            released = await answer(call("release_effect", token=token, reason="the server is down"))
            assert released["state"] == "released"
            next_one = await answer(call("propose_effect", **MAIL, run_id="r2", step_id="1"))
            assert next_one["verdict"] == "allow"
            ungoverned = await answer(call("propose_effect", **{**MAIL, "tool": "look"}, run_id="r1", step_id="2"))
            assert (ungoverned["verdict"], "reservation" in ungoverned) == ("allow", False)

    run(scenario())


@pytest.mark.parametrize(
    ("tool", "arguments", "pointer"),
    [
        ("recall", {}, "/query"),
        ("recall", {"query": "q", "tok_k": 3}, "/tok_k"),
        ("recall", {"query": "q", "as_of": "yesterday"}, "/as_of"),
        ("remember", {"facts": []}, "/facts"),
        ("remember", {"facts": [contact("Dana"), {"text": "t", "source": {"kind": "gossip"}}]}, "/facts/1/source/kind"),
        ("confirm_effect", {"token": "t", "reason": "it was done"}, "/reason"),
        ("propose_effect", {**MAIL, "arguments": {"to": "lee"}, "run_id": "r", "step_id": "s"}, "/arguments/day"),
        ("trail", {}, "/run_id"),
    ],
    ids=["absent", "unknown", "no time", "nothing", "inside", "of another verb", "a declared path", "in the path"],
)
def test_bad_input_names_the_field_and_stores_nothing(
    world: World, tool: str, arguments: dict[str, Any], pointer: str
) -> None:
    async def scenario() -> None:
        async with host(world.client()) as call:
            told = await refusal(call(tool, **arguments))
            assert told["code"] in ("invalid_field", "missing_key_path")
            assert [error["pointer"] for error in told["fields"]["errors"]] == [pointer]
            assert (told["retryable"], pointer in told["detail"]) == (False, True)

    run(scenario())
    assert world.statuses() == {}


def test_how_large_a_text_may_be_is_for_the_service_to_say(world: World) -> None:
    async def scenario() -> None:
        client = world.client()
        async with host(client) as call:
            told = await refusal(call("remember", facts=[contact("Dana", text="x" * 40_000)]))
            assert told["fields"]["errors"][0]["pointer"] == "/facts/0/text"
            await refusal(call("remember", facts=[contact("Dana", text="")]))
        assert client.sent == ["remember"]

    run(scenario())


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_failures_are_told_as_they_are(world: World, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        client = world.client()
        async with host(client, mode=mode) as call:
            client.fails = StoreUnavailable("the store did not answer", retry_after_seconds=7)
            told = await refusal(call("recall", query="q"))
            assert (told["code"], told["retryable"]) == ("store_unavailable", True)
            assert told["fields"] == {"retry_after_seconds": 7}
            client.fails = MunimentError("of a newer service")
            assert (await refusal(call("recall", query="q")))["code"] == "internal"

            client.fails = ZeroDivisionError("a secret of ours")
            with pytest.raises(MCPError) as broken:
                await call("recall", query="q")
            assert broken.value.code == INTERNAL_ERROR
            assert "secret" not in broken.value.message
            with pytest.raises(MCPError, match="no tool resolve") as unknown:
                await call("resolve", conflict_id="c_1", decision="accept_challenger")
            assert unknown.value.code == INVALID_PARAMS

    with caplog.at_level(logging.ERROR, "muniment"):
        run(scenario())
    assert "a secret of ours" in caplog.text  # for whoever runs it


def test_a_personal_fact_is_its_users_alone(world: World) -> None:
    async def scenario() -> None:
        async with host(world.client("ana", "agent")) as anas, host(world.client("rui", "agent")) as ruis:
            [told] = (await answer(anas("remember", facts=[contact("Dana", scope="personal", user="ana")])))["results"]
            assert told["outcome"] == "stored"
            assert len((await answer(anas("recall", query="contact of Aurora")))["results"]) == 1
            assert (await answer(ruis("recall", query="contact of Aurora")))["results"] == []

    run(scenario())


def test_no_other_command_waits_for_the_protocols_library() -> None:
    code = "import sys, muniment.deploy.cli; print([n for n in ('mcp', 'mcp_types') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
