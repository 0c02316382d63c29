"""Effects through HTTP on a real service: verdicts, tokens, trails, permissions, and a hundred clients at once."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from muniment.cluster import AsyncClient, Client
from muniment.cluster.effect import Duplicate, EffectBlocked
from muniment.policies.errors import Forbidden, InvalidInput, MissingKeyPath, NotFound, StaleReservation
from tests.live import Service

TOOL = "github.create_issue"
ARGUMENTS = {"owner": {"name": "acme"}, "title": "disk full", "trace_id": "1"}


class World:
    """A company of its own, with a classified tool and keys of some roles."""

    def __init__(self, service: Service) -> None:
        self.url = service.url
        self.company = f"effects-{uuid.uuid4().hex[:12]}"
        self.keys = {role: service.key(self.company, role) for role in ("agent", "curator", "auditor")}
        self.other_key = service.key(f"other-{self.company}", "agent", "curator")
        self.clients = {role: Client(self.url, key=key) for role, key in self.keys.items()}
        self.agent, self.curator, self.auditor = (self.clients[r] for r in ("agent", "curator", "auditor"))
        self.classify()

    def classify(self, tool: str = TOOL, **options: Any) -> Any:
        window = options.pop("window", {"seconds": 3600})
        paths = options.pop("key_paths", ["owner.name", "/title"])
        return self.curator.classify(tool, key_paths=paths, window=window, **options)

    def propose(self, run: str, step: str = "s", client: Client | None = None, **changes: Any) -> dict[str, Any]:
        said = {"area": "ops", "agent": "triage", "tool": TOOL, "arguments": ARGUMENTS, "wait_ms": 0, **changes}
        return (client or self.agent).propose(run_id=run, step_id=step, **said)

    def token(self, run: str, **changes: Any) -> str:
        answer = self.propose(run, **changes)
        assert answer["verdict"] == "allow", answer
        return str(answer["reservation"]["token"])

    def trail(self, run: str, client: Client | None = None) -> list[dict[str, Any]]:
        return list((client or self.auditor).trail(run)["entries"])

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture
def world(service: Service) -> Iterator[World]:
    made = World(service)
    yield made
    made.close()


def test_from_allow_to_duplicate(world: World) -> None:
    allowed = world.propose("r1", "s1", agent_version="1", arguments=ARGUMENTS)
    assert allowed["verdict"] == "allow"
    assert allowed["run"] == {"duplicates": 0, "stop": False}
    token = allowed["reservation"]["token"]
    reserved = world.agent.effects(state="reserved")["effects"]
    assert [(e["run_id"], e["tool"], e["held_seconds"] >= 0) for e in reserved] == [("r1", TOOL, True)]
    confirmed = world.agent.confirm(token, result_ref="issue-7")
    assert (confirmed["state"], confirmed["late"]) == ("confirmed", False)
    assert world.agent.confirm(token) == confirmed
    noisy = {"trace_id": "other", "title": "disk full", "owner": {"name": "acme"}}
    duplicate = world.propose("r2", "s9", agent_version="2", arguments=noisy)
    assert duplicate["verdict"] == "duplicate"
    assert duplicate["origin"] == {"run_id": "r1", "step_id": "s1", "confirmed_at": confirmed["confirmed_at"]}
    assert duplicate["policy"] == "allow"
    assert "reservation" not in duplicate
    assert world.agent.effects(state="reserved")["effects"] == []
    assert world.agent.effects(state="confirmed")["effects"][0]["result_ref"] == "issue-7"
    with pytest.raises(StaleReservation) as caught:
        world.agent.release(token)
    assert caught.value.fields["state"] == "confirmed"


def test_the_trail_tells_the_verdicts_in_order(world: World) -> None:
    token = world.token("r1")
    world.propose("r2")
    world.agent.confirm(token)
    for _ in range(3):
        last = world.propose("r2")
    assert last["run"] == {"duplicates": 3, "stop": True}
    with pytest.raises(MissingKeyPath) as caught:
        world.propose("r2", arguments={"title": "x", "owner": {"name": None}})
    assert caught.value.fields["errors"][0]["pointer"] == "/arguments/owner/name"
    entries = world.trail("r2")
    assert [(e["seq"], e["verdict"]) for e in entries] == list(
        enumerate(["pending", "duplicate", "duplicate", "duplicate", "error"], 1)
    )
    assert entries[-1]["reason"] == "missing_key_path"
    assert {e["tool"] for e in entries} == {TOOL}
    assert entries[1]["origin"]["run_id"] == "r1"
    page = world.auditor.trail("r2", limit=2)
    rest = world.auditor.trail("r2", limit=200, cursor=page["next"])
    assert page["entries"] + rest["entries"] == entries
    assert "next" not in rest
    with pytest.raises(InvalidInput):
        world.auditor.trail("r2", cursor="nonsense")


def test_an_agent_sees_its_own_trail_only(world: World, service: Service) -> None:
    another_key = service.key(world.company, "agent")
    world.propose("shared-run", "s1")
    with Client(world.url, key=another_key) as another:
        world.propose("shared-run", "s2", client=another)
        assert [e["step_id"] for e in world.trail("shared-run", another)] == ["s2"]
    assert [e["step_id"] for e in world.trail("shared-run", world.agent)] == ["s1"]
    assert [e["step_id"] for e in world.trail("shared-run")] == ["s1", "s2"]


def test_policy_blocks_and_a_finished_effect_is_still_a_duplicate(world: World) -> None:
    world.classify(block_when_tainted=True)
    blocked = world.propose("r1", tainted=True, wait_ms=30_000)
    assert (blocked["verdict"], blocked["reason"]) == ("block", "run_tainted")
    world.agent.confirm(world.token("r1"))
    tainted = world.propose("r2", tainted=True)
    assert (tainted["verdict"], tainted["policy"]) == ("duplicate", "block")
    world.classify(blocked=True)
    assert world.propose("r2", arguments={**ARGUMENTS, "title": "y"})["reason"] == "tool_blocked"


def test_tools_without_a_key(world: World) -> None:
    unclassified = world.propose("r", tool="unheard.of", arguments={})
    assert (unclassified["verdict"], unclassified["reason"]) == ("allow", "unclassified")
    world.classify("restart", window="off")
    assert world.propose("r", tool="restart", arguments={})["reason"] == "window_off"
    assert "reservation" not in unclassified
    assert [e["verdict"] for e in world.trail("r")] == ["allow", "allow"]


def test_companies_do_not_meet(world: World) -> None:
    token = world.token("r1")
    world.agent.confirm(token)
    with Client(world.url, key=world.other_key) as other:
        other.classify(TOOL, key_paths=["owner.name", "/title"], window={"seconds": 3600})
        assert world.propose("r1", client=other)["verdict"] == "allow"
        with pytest.raises(StaleReservation) as caught:
            other.confirm(token)
        assert caught.value.fields["state"] == "unknown"
        assert other.trail("r1")["entries"][0]["verdict"] == "allow"
        assert len(other.trail("r1")["entries"]) == 1


def test_a_curator_forgets_and_imports(world: World) -> None:
    scope = {"area": "ops", "agent": "triage", "tool": TOOL, "arguments": ARGUMENTS}
    with pytest.raises(Forbidden):
        world.agent.forget(**scope, reason="no")
    with pytest.raises(NotFound):
        world.curator.forget(**scope, reason="nothing there")
    world.agent.confirm(world.token("r1"))
    assert world.curator.forget(**scope, reason="was a mistake")["forgotten"]
    assert [e["verdict"] for e in world.trail("r1")] == ["allow", "forgotten"]
    known = {**scope, "arguments": {**ARGUMENTS, "title": "old"}, "origin": {"run_id": "old-run"}}
    unknown = {**scope, "arguments": {**ARGUMENTS, "title": "older"}}
    imported = world.curator.import_effects([known, unknown, known])
    assert [r["outcome"] for r in imported["results"]] == ["imported", "imported", "already_confirmed"]
    assert world.propose("r", arguments=known["arguments"])["origin"] == {"run_id": "old-run"}
    assert world.propose("r", arguments=unknown["arguments"])["origin"] == {}
    with pytest.raises(MissingKeyPath) as caught:
        world.curator.import_effects([known, {**scope, "arguments": {}}])
    assert caught.value.fields["errors"][0]["pointer"] == "/effects/1/arguments/owner/name"


@pytest.mark.parametrize("bound", [{"area": "sales"}, {"agent": "mailer"}], ids=["to an area", "to an agent"])
def test_a_bound_curator_imports_and_forgets_only_there(service: Service, world: World, bound: dict[str, str]) -> None:
    effect = {"area": "ops", "agent": "triage", "tool": TOOL, "arguments": ARGUMENTS}
    with service.client(service.key(world.company, "curator", **bound)) as curator:
        with pytest.raises(Forbidden):
            curator.import_effects([{**effect, **bound}, effect])
        with pytest.raises(Forbidden):
            curator.forget(**effect, reason="not mine")
        assert curator.import_effects([{**effect, **bound}])["imported"] == 1
    assert world.propose("r")["verdict"] == "allow"


@pytest.mark.parametrize("token", ["", "nonsense", "A" * 76])
def test_what_is_no_token(world: World, token: str) -> None:
    expected = StaleReservation if len(token) == 76 else InvalidInput
    with pytest.raises(expected):
        world.agent.confirm(token)


def test_of_a_hundred_clients_one_wins_and_the_rest_are_duplicates(world: World) -> None:
    async def main() -> None:
        async with AsyncClient(world.url, key=world.keys["agent"], connections=100) as client:

            async def propose(title: str, run: str) -> Any:
                return await client.propose(
                    area="ops",
                    agent="triage",
                    tool=TOOL,
                    arguments={**ARGUMENTS, "title": title},
                    run_id=run,
                    step_id="s",
                    wait_ms=0,
                )

            for i in range(2):  # two hundred times over: see test_ledger
                answers = await asyncio.gather(*(propose(f"t{i}", f"r{c}") for c in range(100)))
                assert Counter(a["verdict"] for a in answers) == {"allow": 1, "pending": 99}
                winner = next(c for c, a in enumerate(answers) if a["verdict"] == "allow")
                await client.confirm(answers[winner]["reservation"]["token"])
                others = [c for c in range(100) if c != winner]
                later = await asyncio.gather(*(propose(f"t{i}", f"r{c}") for c in others))
                assert Counter((a["verdict"], a["origin"]["run_id"]) for a in later) == {
                    ("duplicate", f"r{winner}"): 99
                }

    asyncio.run(main())


def test_waiting_is_woken_through_http(world: World) -> None:
    async def main() -> None:
        async with AsyncClient(world.url, key=world.keys["agent"], connections=100) as client:
            said = {"area": "ops", "agent": "triage", "tool": TOOL, "arguments": ARGUMENTS, "step_id": "s"}
            held = await client.propose(run_id="r0", **said)
            waiters = [
                asyncio.create_task(client.propose(run_id=f"r{i}", wait_ms=30_000, **said)) for i in range(1, 60)
            ]
            await client.confirm(held["reservation"]["token"])
            answers = await asyncio.gather(*waiters)
            assert Counter((a["verdict"], a["origin"]["run_id"]) for a in answers) == {("duplicate", "r0"): 59}

    asyncio.run(main())


def test_with_client_effect(world: World) -> None:
    scope = {"area": "ops", "agent": "triage", "tool": TOOL, "arguments": ARGUMENTS}
    with pytest.raises(ValueError, match="failed"), world.agent.effect(**scope, run="r1", step="s"):
        raise ValueError("failed")
    with world.agent.effect(**scope, run="r2", step="s") as effect:
        assert not isinstance(effect, Duplicate)
        effect.result_ref = "issue-8"
    with pytest.raises(Duplicate) as caught, world.agent.effect(**scope, run="r3", step="s"):
        pytest.fail("the body must not run")
    assert caught.value.origin["run_id"] == "r2"
    world.classify(blocked=True)
    other = {**scope, "arguments": {**ARGUMENTS, "title": "other"}}
    with pytest.raises(EffectBlocked), world.agent.effect(**other, run="r3", step="s"):
        pytest.fail("the body must not run")
