from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import sqlite_url
from muniment.actors.store.keys import OPERATOR_ID, new_key
from muniment.cluster.admin_service import AdminService
from muniment.cluster.schemas import (
    ClassificationRequest,
    CompanyRequest,
    KeyRequest,
    KeysQuery,
    MemoryPolicyRequest,
    PrecedenceRequest,
    SimulateRequest,
    parse,
)
from muniment.policies.access import Principal, Role
from muniment.policies.effect_gate import Window
from muniment.policies.errors import Forbidden, InvalidInput, NotFound, StateConflict, Unauthenticated, Unavailable
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.model import SourceKind

CLASSIFICATION = {"key_paths": ["to.name"], "window": {"seconds": 60}, "lease_seconds": 5}


class Part:
    """A part with data of every company: three rows each, until it is told to erase them."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.arriving = 0

    async def erase_company(self, company: str) -> dict[str, int]:
        erased, self.rows[company] = self.rows.get(company, 3), self.arriving
        self.arriving = max(0, self.arriving - 1)
        return {"facts": erased}

    async def remaining_of(self, company: str) -> int:
        return self.rows.get(company, 3)


@pytest.fixture
def parts():
    return Part(), Part()


@pytest.fixture
def service(tmp_path, parts):
    store = ControlStore(sqlite_url(tmp_path / "control.db"))
    made = AdminService(store, erasers=parts)
    store.create_company("acme", "test")
    yield made
    made.close()


ALL = frozenset(SourceKind)
OPERATOR = Principal(
    company=None, key_id=OPERATOR_ID, roles=frozenset({Role.OPERATOR}), actor="key:operator", source_kinds=ALL
)
ADMIN = Principal(
    company="acme", key_id="k_1", roles=frozenset({Role.ADMIN, Role.CURATOR}), actor="ana", source_kinds=ALL
)
AGENT = Principal(company="acme", key_id="k_2", roles=frozenset({Role.AGENT}), actor="key:k_2")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def made_key(service: AdminService, principal: Principal, **asked: Any) -> dict[str, Any]:
    return run(service.create_key(principal, parse(KeyRequest, {"roles": ["agent"], **asked})))


def test_a_key_opens_for_whom_it_was_made(service):
    made = made_key(
        service,
        OPERATOR,
        company="globex",
        roles=["owner", "agent"],
        user="ana",
        groups=["finance"],
        area="sales",
        expires_at="2100-01-01T00:00:00Z",
    )
    assert {name: made[name] for name in ("company", "roles", "user", "groups", "area", "expires_at")} == {
        "company": "globex",
        "roles": ["agent", "owner"],
        "user": "ana",
        "groups": ["finance"],
        "area": "sales",
        "expires_at": "2100-01-01T00:00:00Z",
    }
    assert made["sources"] == ["agent_summary", "authorized_person", "counterparty", "unattributed"]
    principal = run(service.authenticate(f"Bearer {made['key']}"))
    assert (principal.company, principal.actor, principal.key_id) == ("globex", "ana", made["id"])
    run(service.revoke_key(principal_of_admin("globex"), made["id"]))
    with pytest.raises(Unauthenticated):
        run(service.authenticate(f"Bearer {made['key']}"))


def principal_of_admin(company: str) -> Principal:
    return Principal(company=company, key_id="k_9", roles=frozenset({Role.ADMIN}), actor="root", source_kinds=ALL)


def test_keys_are_listed_without_their_text_in_pages(service):
    texts = [made_key(service, ADMIN)["key"] for _ in range(5)]
    ids, cursor = [], None
    while True:
        page = run(service.keys(ADMIN, KeysQuery(limit=2, cursor=cursor)))
        assert not any(text.rpartition("_")[2] in str(page) for text in texts)
        ids += [key["id"] for key in page["keys"]]
        cursor = page.get("next")
        if cursor is None:
            break
    assert ids == [text.removeprefix("mk_").rpartition("_")[0] for text in texts]


def test_nobody_makes_an_operator_or_a_key_of_another_company(service):
    for principal in (ADMIN, OPERATOR):
        with pytest.raises(Forbidden):
            made_key(service, principal, company="acme", roles=["operator"])
    with pytest.raises(Forbidden):
        made_key(service, ADMIN, company="globex")
    acting = replace(OPERATOR, company="acme")  # X-Company
    assert made_key(service, acting)["company"] == "acme"
    assert made_key(service, acting, company="globex")["company"] == "globex"
    with pytest.raises(InvalidInput) as caught:
        made_key(service, OPERATOR)
    assert caught.value.fields["errors"][0]["pointer"] == "/company"
    with pytest.raises(NotFound):
        run(service.revoke_key(ADMIN, "k_1"))


def test_every_verb_asks_who_it_is_for(service):
    for work in (
        service.create_company(ADMIN, CompanyRequest(company="globex")),
        service.delete_company(ADMIN, "acme"),
        service.create_key(AGENT, KeyRequest(roles=(Role.AGENT,))),
        service.keys(AGENT, KeysQuery()),
        service.revoke_key(AGENT, "k_1"),
        service.classify(AGENT, "mail", parse(ClassificationRequest, CLASSIFICATION)),
        service.classification(AGENT, "mail"),
        service.set_precedence(AGENT, parse(PrecedenceRequest, {})),
        service.precedence(AGENT),
        service.set_memory_policy(AGENT, parse(MemoryPolicyRequest, {})),
        service.memory_policy(AGENT),
    ):
        with pytest.raises(Forbidden):
            run(work)


def test_headers_name_user_and_company(service):
    operator = new_key(OPERATOR_ID)
    service._store.adopt_operator_key(operator)
    principal = run(service.authenticate(f"Bearer {operator}", "cafe\u0301", "cafe\u0301"))
    assert (principal.actor, principal.company) == ("caf\u00e9", "caf\u00e9")
    for user, company, pointer in ((" ", None, "/X-User"), ("key:k", None, "/X-User"), (None, "a/b", "/X-Company")):
        with pytest.raises(InvalidInput) as caught:
            run(service.authenticate(f"Bearer {operator}", user, company))
        assert caught.value.fields["errors"][0]["pointer"] == pointer
    with pytest.raises(NotFound):
        run(service.require_company("globex"))


def test_a_company_comes_and_goes(service, parts):
    assert run(service.create_company(OPERATOR, CompanyRequest(company="globex")))["created"] is True
    assert run(service.create_company(OPERATOR, CompanyRequest(company="globex")))["created"] is False
    key = made_key(service, OPERATOR, company="globex")["key"]
    gone = run(service.delete_company(OPERATOR, "globex"))
    assert gone["erased"]["facts"] == 6
    assert gone["erased"]["keys"] == 1
    assert gone["remaining"] == 0
    with pytest.raises(Unauthenticated):
        run(service.authenticate(f"Bearer {key}"))
    with pytest.raises(NotFound):
        run(service.delete_company(OPERATOR, "globex"))
    assert run(service.create_company(OPERATOR, CompanyRequest(company="globex")))["created"] is True


def test_what_arrives_while_a_company_is_erased_is_erased_too(service, parts):
    parts[0].arriving = 2
    assert run(service.delete_company(OPERATOR, "acme")) == {
        "erased": {
            "keys": 0, "facts": 6 + 2 + 1, "classifications": 0, "precedence_policies": 0, "memory_policies": 0,
            "calibrations": 0, "control_decisions": 1
        },
        "remaining": 0,
    }  # fmt: skip


def test_a_company_that_cannot_be_erased_stays_closed_until_it_is(service, parts):
    parts[1].arriving = 100
    with pytest.raises(Unavailable):
        run(service.delete_company(OPERATOR, "acme"))
    with pytest.raises(StateConflict):
        made_key(service, OPERATOR, company="acme")
    with pytest.raises(NotFound):
        run(service.require_company("acme"))
    parts[1].arriving = 0
    assert run(service.delete_company(OPERATOR, "acme"))["remaining"] == 0


def test_a_tool_is_classified(service):
    with pytest.raises(NotFound):
        run(service.classification(ADMIN, "mail"))
    told = run(service.classify(ADMIN, "mail", parse(ClassificationRequest, CLASSIFICATION)))
    assert told == run(service.classification(ADMIN, "mail"))
    assert told == {
        "key_paths": ["/to/name"], "window": {"seconds": 60}, "lease_seconds": 5, "max_duplicates_per_run": 3,
        "blocked": False, "block_when_tainted": False, "tool": "mail", "version": 1,
    }  # fmt: skip
    stored = service._store.classification("acme", "mail")
    domain = parse(ClassificationRequest, stored.body).to_domain("acme", "mail", stored.version)
    assert (domain.window, domain.lease_seconds, domain.key_paths[0].pointer) == (Window(seconds=60), 5, "/to/name")
    off = run(service.classify(ADMIN, "mail", parse(ClassificationRequest, {"key_paths": [], "window": "off"})))
    assert (off["window"], off["version"]) == ("off", 2)


def test_the_memory_policy_is_replaced_whole(service):
    assert run(service.memory_policy(ADMIN)) == {
        **MemoryPolicy().model_dump(mode="json", exclude_none=True),
        "version": 0,
    }
    policy = {"entities": {"order": "ord-[0-9]+"}, "retention": "lru"}
    written = run(service.set_memory_policy(ADMIN, parse(MemoryPolicyRequest, policy)))
    assert {name: written[name] for name in ("entities", "retention", "version")} == {**policy, "version": 1}
    assert run(service.memory_policy(ADMIN)) == written
    assert "retention" not in run(service.set_memory_policy(ADMIN, parse(MemoryPolicyRequest, {})))


def test_precedence_is_replaced_whole(service):
    assert run(service.precedence(ADMIN))["version"] == 0
    policy = {"ranks": [["counterparty"], ["system_of_record"]], "default_owner": "ana"}
    written = run(service.set_precedence(ADMIN, parse(PrecedenceRequest, policy)))
    assert (written["version"], written["ranks"], written["default_owner"]) == (1, policy["ranks"], "ana")
    assert run(service.precedence(ADMIN)) == written
    replaced = run(service.set_precedence(ADMIN, parse(PrecedenceRequest, {})))
    assert replaced["version"] == 2
    assert "default_owner" not in replaced


def test_what_was_read_can_be_written_back_and_only_over_what_was_read(service):
    path = {"key_paths": ["/to"], "window": {"permanent": True}}
    run(service.classify(ADMIN, "mail", parse(ClassificationRequest, path)))
    documents = [
        (service.precedence, service.set_precedence, PrecedenceRequest, {"default_owner": "ana"}),
        (service.memory_policy, service.set_memory_policy, MemoryPolicyRequest, {"retention": "lru"}),
        (
            lambda who: service.classification(who, "mail"),
            lambda who, body: service.classify(who, "mail", body),
            ClassificationRequest,
            {"blocked": True},
        ),
    ]
    for read, write, request, change in documents:
        first = run(read(ADMIN))
        second = run(write(ADMIN, parse(request, {**first, **change})))
        assert (second["version"], run(read(ADMIN))) == (first["version"] + 1, {**second, **change})
        assert run(write(ADMIN, parse(request, second))) == second
        # Sent again, it stands already; something else must be written over what has been read since.
        assert run(write(ADMIN, parse(request, {**first, **change}))) == second
        with pytest.raises(StateConflict) as raised:
            run(write(ADMIN, parse(request, first)))
        assert raised.value.fields["version"] == second["version"]
        for version in (-1, "1", 1.5, True):
            with pytest.raises(InvalidInput):
                parse(request, {**first, "version": version})
    read = run(service.precedence(ADMIN))
    assert parse(SimulateRequest, {"policy": read}).policy.default_owner == "ana"
    with pytest.raises(InvalidInput):
        run(service.classify(ADMIN, "mail", parse(ClassificationRequest, {**path, "tool": "post"})))


def test_an_expired_key_and_none_at_all(service):
    made = made_key(service, ADMIN, expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    for header in (f"Bearer {made['key']}", None, "", "Basic x", "Bearer " + "x" * 5000):
        with pytest.raises(Unauthenticated):
            run(service.authenticate(header))


def test_no_key_makes_one_that_reaches_further_than_itself(service):
    bound = replace(ADMIN, area="north", source_kinds=frozenset({SourceKind.COUNTERPARTY}))
    with pytest.raises(Forbidden):
        made_key(service, bound)
    with pytest.raises(Forbidden):
        made_key(service, bound, sources=["counterparty"], area="south")
    assert made_key(service, bound, sources=["counterparty"])["area"] == "north"
