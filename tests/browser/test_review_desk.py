"""The review desk in a real browser, over services that answer from memory: by mouse, keyboard, phone, no scripts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from ..console_world import ARABIC, HOSTILE, LEE, LONG, World, busy_world, conflict, fact
from .desk import Desk

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def served(world: World) -> Iterator[str]:
    """The desk on a free port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(world.app(), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    listening.listen()  # Connections wait until the server takes them.
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def at(browser: Any, world: World, **options: Any) -> Iterator[Desk]:
    with served(world) as url:
        context = browser.new_context(**({"viewport": DESKTOP, "locale": "en-GB"} | options))
        desk = Desk(context.new_page(), url)
        yield desk
        context.close()
        assert desk.complaints == []


def test_an_owner_signs_in_rules_on_a_conflict_and_sees_it_gone(browser: Any) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    with at(browser, world) as desk:
        desk.go("")
        desk.shot("1-sign-in")
        desk.sign_in()
        desk.shot("2-conflict")
        desk.page.get_by_label("Note").first.fill("Phoned them.")
        desk.page.get_by_role("button", name="Use “").click()
        confirmed = desk.page.get_by_role("status")
        confirmed.wait_for()
        assert "Lee Santos" in confirmed.inner_text()
        assert desk.page.get_by_role("button", name="Use “").count() == 0
        desk.shot("3-ruled")
        assert desk.page.evaluate("document.activeElement.className") == "card ruled"
        desk.page.reload()
        assert "Nothing waits for you." in desk.page.inner_text("main")
        desk.shot("4-empty")
    assert world.asked[1] == ("resolve", {"decision": "accept_challenger", "note": "Phoned them."})


def test_the_whole_desk_by_keyboard(browser: Any) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    with at(browser, world) as desk:
        desk.go("")
        desk.page.keyboard.type("ana-key")
        desk.page.keyboard.press("Enter")
        desk.page.wait_for_url("**/conflicts")
        desk.page.keyboard.press("Tab")
        assert desk.page.evaluate("document.activeElement.className") == "skip"
        for _ in range(30):
            desk.page.keyboard.press("Tab")
            if desk.page.evaluate("document.activeElement.value") == "keep_incumbent":
                break
        desk.page.keyboard.press("Enter")
        desk.page.get_by_role("status").wait_for()
    assert world.asked[1] == ("resolve", {"decision": "keep_incumbent"})


def test_another_value_and_a_form_that_is_wrong(browser: Any) -> None:
    numbers = conflict("c_1", incumbent=fact("f_1", 120), challenger=fact("f_2", 150))
    world = World(conflicts=[numbers])
    with at(browser, world) as desk:
        desk.sign_in()
        desk.page.get_by_text("Another value").click()
        desk.page.get_by_label("The right value").fill("a lot")
        desk.page.get_by_role("button", name="Use this value").click()
        alert = desk.page.get_by_role("alert").filter(has_text="must be a number")
        alert.wait_for()
        desk.complaints.clear()  # The browser reports the 422 as an error of its own.
        desk.page.get_by_label("The right value").fill("130")
        desk.page.get_by_role("button", name="Use this value").click()
        desk.page.get_by_role("status").wait_for()
    assert world.asked[-1] == ("resolve", {"decision": "new_value", "value": 130})


def test_without_scripts_the_desk_works_as_well(browser: Any) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    with at(browser, world, java_script_enabled=False) as desk:
        desk.sign_in()
        desk.page.get_by_text("Both are true").click()
        desk.page.get_by_label("It is one person's own").fill("eva")
        desk.page.get_by_role("button", name="Keep both").click()
        desk.page.get_by_text("Nothing waits for you.").wait_for()
    assert world.asked[1] == ("resolve", {"decision": "both_valid", "rescope": {"scope": "personal", "user": "eva"}})


@pytest.mark.parametrize(
    ("size", "scheme", "name"), [(DESKTOP, "light", "desk"), (DESKTOP, "dark", "dark"), (PHONE, "light", "phone")]
)
def test_every_page_fits_the_screen(browser: Any, size: dict[str, int], scheme: str, name: str) -> None:
    with at(browser, busy_world(), viewport=size, color_scheme=scheme) as desk:
        desk.sign_in()
        pages = {
            "conflicts": "/conflicts",
            "closed": "/conflicts?show=closed",
            "facts": "/facts?subject=Acme+Lda&field=primary_contact",
            "decisions": "/decisions",
            "runs": "/runs?run=run-42",
        }
        for page, path in pages.items():
            desk.go(path)
            desk.fits()
            desk.shot(f"{name}-{page}")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("text", [HOSTILE, LONG, ARABIC, "x" * 30_000], ids=["markup", "long", "rtl", "unbroken"])
def test_no_text_breaks_the_page(browser: Any, text: str, size: dict[str, int]) -> None:
    wild = fact("f_1", text, text=text, source={"kind": "counterparty", "author": text, "id": text})
    slot = {"subject": text[:500], "field": text[:500], "scope": "shared"}
    world = World(conflicts=[conflict("c_1", incumbent=wild, challenger={**wild, "id": "f_2"}, slot=slot)])
    world.facts = {"current": wild, "history": [wild, {**wild, "id": "f_2"}]}
    with at(browser, world, viewport=size) as desk:
        desk.sign_in()
        desk.fits()
        assert desk.page.title() == "Waiting for your word · Muniment"
        desk.go("/facts?subject=s&field=f")
        desk.fits()
        assert desk.page.locator("main script, main img").count() == 0
        desk.go("/conflicts")
        desk.page.get_by_role("button", name="Close without deciding").click()
        desk.page.get_by_role("status").wait_for()


def test_portuguese(browser: Any) -> None:
    with at(browser, busy_world(), locale="pt-BR") as desk:
        desk.go("")
        desk.page.get_by_label("Sua chave").fill("ana-key")
        desk.page.get_by_role("button", name="Entrar").click()
        desk.page.get_by_role("heading", name="Esperando a sua palavra").wait_for()
        desk.shot("portuguese")
        desk.page.get_by_role("link", name="English").click()
        desk.page.get_by_role("heading", name="Waiting for your word").wait_for()
