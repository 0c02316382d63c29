"""The story of Dana and Lee from end to end: told over HTTP, ruled in the browser, recalled over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from muniment.cluster import launcher
from tests.live import start_service

from .desk import Desk

POLICY = {"fields": {"primary_contact": {"owner": "ana", "sensitive": True, "self_authority": True}}}
DANA = {
    "text": "Dana is the main contact of Acme.",
    "subject": "Acme",
    "field": "primary_contact",
    "value": "Dana",
    "source": {"kind": "system_of_record", "id": "crm/1044"},
    "effective_at": "2025-01-01T00:00:00Z",
}
MESSAGE = {
    "text": "Lee now takes care of our project.",
    "source": {"kind": "counterparty", "party": "Acme", "id": "mail-7", "external": True},
}
NOTE = {
    "text": "Acme says that Lee is the main contact now.",
    "subject": "Acme",
    "field": "primary_contact",
    "value": "Lee",
    "effective_at": "2026-01-15T00:00:00Z",
}


def test_dana_and_lee(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    data_dir = tmp_path_factory.mktemp("desk").resolve()
    try:
        service = start_service(data_dir)
        agent = service.key("us", "agent")
        ana = service.key("us", "owner", user="ana", sources=["system_of_record"])
        with service.client(service.key("us", "admin")) as admin:
            admin.set_precedence(POLICY)
        with service.client(ana) as owner:
            owner.remember([DANA])
        with service.client(agent) as client:
            heard = client.remember([MESSAGE])["results"][0]["id"]
            source = {"kind": "agent_summary", "author": "assistant", "derived_from": [heard]}
            told = client.remember([NOTE | {"source": source}])["results"][0]
            assert told["outcome"] == "held"

            page = browser.new_context(locale="en-GB").new_page()
            desk = Desk(page, service.url)
            desk.sign_in(ana)
            assert {"Dana", "Lee", "crm/1044", "assistant"} <= set(page.inner_text("main").split())
            desk.shot("live-conflict")
            page.get_by_label("Note").first.fill("Phoned them.")
            page.get_by_role("button", name="Use “").click()
            page.get_by_role("status").wait_for()
            page.reload()
            page.get_by_text("Nothing waits for you.").wait_for()
            desk.go("/facts?subject=Acme&field=primary_contact")
            page.get_by_role("heading", name="Timeline").wait_for()
            desk.shot("live-timeline")
            desk.go("/decisions?subject=Acme")
            page.get_by_text("The owner accepted the new value.").wait_for()
            desk.shot("live-decisions")
            assert desk.complaints == []

            found = client.recall("Who is the main contact of Acme?", filters={"field": "primary_contact"})["results"]
            assert [(r["fact"]["value"], "dispute" in r) for r in found] == [("Lee", False)]
    finally:
        launcher.stop(data_dir)
