"""The story of Dana and Lee over real HTTP, from the message to the recall after the owner's ruling."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.live import Service

NOW = datetime.now(UTC).replace(microsecond=0)
POLICY = {
    "fields": {"contact": {"sensitive": True, "self_authority": True}},
    "slots": [{"subject": "Aurora", "field": "contact", "owner": "ana"}],
    "escalation": {"due_days": 3, "delegate": "boss"},
}


def days_ago(days: float) -> str:
    return (NOW - timedelta(days=days)).isoformat()


class Api:
    """The API as one key sees it."""

    def __init__(self, service: Service, key: str) -> None:
        self.http = httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None, expect: int = 200, **query: Any) -> Any:
        response = self.http.request(method, path, json=body, params=query or None)
        assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response.json()

    def tell(self, **fact: Any) -> dict[str, Any]:
        result: dict[str, Any] = self("POST", "/v1/memories", {"facts": [fact]})["results"][0]
        return result

    def contact(self, **times: str) -> Any:
        return self("GET", "/v1/facts", subject="aurora", field="Contact", **times)

    def recalled(self, **times: str) -> list[dict[str, Any]]:
        body = {"query": "who is the contact of Aurora?", "filters": {"subject": "Aurora", "field": "contact"}}
        results: list[dict[str, Any]] = self("POST", "/v1/recall", {**body, **times})["results"]
        return results


class Desk:
    """A company with a CRM, an agent, the owner of the account, another owner, and a curator."""

    def __init__(self, service: Service) -> None:
        company = f"company-{uuid.uuid4().hex[:12]}"

        def api(*roles: str, **options: Any) -> Api:
            return Api(service, service.key(company, *roles, **options))

        self.crm = api("agent", user="crm-sync", sources=["system_of_record"])
        self.agent = api("agent", user="assistant")
        self.owner = api("owner", user="ana")
        self.other = api("owner", user="eve")
        self.curator = api("curator", "auditor", user="cora")
        self.apis = [self.crm, self.agent, self.owner, self.other, self.curator]
        self.curator("PUT", "/v1/policies/precedence", POLICY)


@pytest.fixture
def desk(service: Service) -> Iterator[Desk]:
    desk = Desk(service)
    yield desk
    for api in desk.apis:
        api.http.close()


def dana() -> dict[str, Any]:
    return {
        "text": "the contact of Aurora is Dana",
        "subject": "Aurora",
        "field": "contact",
        "value": "Dana",
        "effective_at": days_ago(300),
        "source": {"kind": "system_of_record", "id": "crm"},
    }


def lee_by_mail() -> dict[str, Any]:
    return {
        "text": "Lee looks after the project now",
        "subject": "Aurora",
        "field": "contact",
        "value": "Lee",
        "effective_at": days_ago(14),
        "source": {"kind": "counterparty", "id": "mail-7", "party": "Aurora"},
    }


def the_clients_own_message(desk: Desk) -> dict[str, Any]:
    return desk.agent.tell(**lee_by_mail())


def the_agents_note_of_it(desk: Desk) -> dict[str, Any]:
    mail = desk.agent.tell(
        text="a mail from Aurora: Lee looks after the project now",
        source={"kind": "counterparty", "id": "mail-7", "party": "Aurora"},
    )
    note = {"kind": "agent_summary", "id": "note-1", "author": "assistant", "derived_from": [mail["id"]]}
    return desk.agent.tell(**{**lee_by_mail(), "source": note})


@pytest.mark.parametrize("say", [the_clients_own_message, the_agents_note_of_it])
def test_dana_stays_until_the_owner_confirms_lee(desk: Desk, say: Any) -> None:
    first = desk.crm.tell(**dana())
    told = say(desk)
    assert (told["outcome"], told["rule"]) == ("held", "sensitive_needs_owner")

    # Dana stays in use, and whoever asks is told that it may have changed.
    for answer in (desk.agent.contact(), *desk.agent.recalled()):
        fact = answer.get("current") or answer["fact"]
        assert (fact["value"], fact["status"], fact["owner"]) == ("Dana", "current", "ana")
        assert answer["dispute"]["notice"] == "the contact may have changed"
        assert answer["dispute"]["conflict_id"] == told["conflict_id"]
        assert answer["dispute"]["other"]["value"] == "Lee"

    # The owner has both, with sources and dates; nobody else has it on their list, nor may rule.
    (conflict,) = desk.owner("GET", "/v1/conflicts", status="open", kind="conflict", subject="AURORA")["conflicts"]
    assert conflict["id"] == told["conflict_id"]
    assert [conflict[side]["value"] for side in ("incumbent", "challenger")] == ["Dana", "Lee"]
    assert conflict["incumbent"]["source"] == {"kind": "system_of_record", "id": "crm"}
    assert datetime.fromisoformat(conflict["challenger"]["effective_at"]) == NOW - timedelta(days=14)
    opened, due = (datetime.fromisoformat(conflict[name]) for name in ("opened_at", "due_at"))
    assert due - opened == timedelta(days=3)
    assert desk.other("GET", "/v1/conflicts")["conflicts"] == []
    ruling = {"decision": "accept_challenger", "note": "she called me"}
    path = f"/v1/conflicts/{conflict['id']}/resolution"
    assert desk.other("POST", path, ruling, expect=403)["code"] == "forbidden"
    assert desk.agent("POST", path, ruling, expect=403)["code"] == "forbidden"
    (found,) = desk.curator("POST", "/v1/conflicts/audit", {"subject": "Aurora"})["conflicts"]
    assert found["id"] == conflict["id"]

    # The owner confirms Lee: at once, once, and for good.
    answer = desk.owner("POST", path, {**ruling, "idempotency_key": "k"})
    assert (answer["current"]["value"], answer["current"]["id"]) == ("Lee", told["id"])
    assert desk.owner("POST", path, {**ruling, "idempotency_key": "k"}) == answer
    again = desk.owner("POST", path, {"decision": "keep_incumbent"}, expect=409)
    assert (again["code"], again["resolution"]["decision"]) == ("already_ruled", "accept_challenger")
    for answer in (desk.agent.contact(), *desk.agent.recalled()):
        assert (answer.get("current") or answer["fact"])["value"] == "Lee"
        assert "dispute" not in answer
    old = desk.agent("GET", f"/v1/memories/{first['id']}")
    assert (old["status"], old["superseded_by"]) == ("superseded", told["id"])
    assert desk.owner("GET", "/v1/conflicts", status="open")["conflicts"] == []
    assert desk.crm.tell(**dana())["outcome"] == "kept"
    assert desk.owner("GET", "/v1/conflicts", status="open")["conflicts"] == []
    audit = desk.curator("POST", "/v1/conflicts/audit")
    assert audit == {"conflicts": [], "most_overruled": [{"field": "contact", "times": 1}]}

    # Everything stands in the log.
    entries = desk.curator("GET", "/v1/decisions", subject="aurora", field="contact")["entries"]
    assert [(entry["kind"], entry["outcome"]) for entry in entries] == [
        ("conflict", "stored"),  # by somebody else than the owner, who is to look at it
        ("conflict", "held"),
        ("ruling", "accept_challenger"),
        ("conflict", "kept"),
    ]
    assert entries[2]["actor"] == "ana"
    assert entries[2]["inputs"]["note"] == "she called me"
    assert desk.curator("GET", "/v1/decisions/verify")["intact"]
    story = desk.agent("GET", f"/v1/memories/{told['id']}/history")["history"]
    assert [entry["kind"] for entry in story] == ["recorded", "conflict", "ruling", "conflict"]


def test_both_times_are_answered(desk: Desk) -> None:
    desk.crm.tell(**dana())
    before = datetime.now(UTC).isoformat()
    told = the_clients_own_message(desk)
    desk.owner("POST", f"/v1/conflicts/{told['conflict_id']}/resolution", {"decision": "accept_challenger"})
    after = datetime.now(UTC).isoformat()

    def held(**times: str) -> set[Any]:
        current = desk.agent.contact(**times)["current"]
        found = {result["fact"]["value"] for result in desk.agent.recalled(**times)}
        return {None if current is None else current["value"]} | (found or {None})

    assert held(as_of=days_ago(400)) == {None}
    assert held(as_of=days_ago(100)) == {None}  # what lost a ruling does not count
    assert held(as_of=days_ago(100), known_at=before) == {"Dana"}
    assert held(as_of=days_ago(7)) == {"Lee"}
    assert held(as_of=days_ago(7), known_at=before) == {"Dana"}
    assert held(known_at=before) == {"Dana"}
    assert held(known_at=after) == {"Lee"}
    assert held(as_of=days_ago(100), known_at=days_ago(1)) == {None}


def test_another_policy_is_tried_before_it_is_written(desk: Desk) -> None:
    desk.crm.tell(**dana())
    told = the_clients_own_message(desk)
    policy = {**POLICY, "fields": {"contact": {"self_authority": True, "proposers": ["*"]}}}
    found = desk.curator("POST", "/v1/policies/precedence/simulate", {"policy": policy})
    (decision,) = found["decisions"]
    assert (decision["outcome"], decision["would_be"]["outcome"]) == ("held", "replaced")
    same = desk.curator("POST", "/v1/policies/precedence/simulate", {"policy": POLICY})
    assert (same["decisions"], same["slots"]) == ([], [])
    assert desk.agent.contact()["current"]["value"] == "Dana"
    # A policy that is written names the owner from then on, also of what is open.
    desk.curator("PUT", "/v1/policies/precedence", {**POLICY, "slots": [], "default_owner": "eve"})
    (conflict,) = desk.other("GET", "/v1/conflicts", kind="conflict")["conflicts"]
    assert (conflict["id"], conflict["owner"]) == (told["conflict_id"], "eve")
    assert desk.owner("GET", "/v1/conflicts")["conflicts"] == []
    desk.other("POST", f"/v1/conflicts/{told['conflict_id']}/resolution", {"decision": "keep_incumbent"})
    assert desk.agent.contact()["current"]["value"] == "Dana"
