"""The review desk: who gets in, what its forms send, what its pages show and never execute."""

from __future__ import annotations

import base64
import re
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient

from muniment.deploy.console import messages, views
from muniment.deploy.console.session import COOKIE
from muniment.policies.errors import InvalidInput, Unavailable
from muniment.policies.model import Outcome, SourceKind, Status
from muniment.policies.rulings import Decision
from muniment.policies.weighing import Rule

from ..console_world import ARABIC, DANA, HOSTILE, LEE, LONG, NOW, World, busy_world, conflict, fact

PAGES = ("/conflicts", "/facts?subject=a&field=b", "/decisions", "/runs?run=r1")


def visit(world: World, key: str | None = "ana-key", **headers: str) -> TestClient:
    client = TestClient(world.app(), base_url="https://desk.test", headers=headers, follow_redirects=False)
    if key is not None:
        assert client.post("/console/sign-in", data={"key": key}).status_code == 303
    return client


def token_of(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def rule(client: TestClient, id: str, decision: str, headers: dict[str, str] | None = None, **fields: str) -> Any:
    token = token_of(client.get("/console/conflicts").text)
    sent = {"token": token, "decision": decision, **fields}
    return client.post(f"/console/conflicts/{id}", data=sent, headers=headers)


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not open, or left open."""

    void = frozenset({"meta", "link", "input", "img", "br", "rect", "line", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


# --- Signing in


@pytest.mark.parametrize("path", ["", *PAGES])
def test_without_a_session_every_page_leads_to_the_door(path: str) -> None:
    world = World()
    client = visit(world, key=None)
    response = client.get(f"/console{path}")
    if path == "":
        response = client.get(response.headers["location"])
    assert (response.status_code, response.headers["location"]) == (303, "/console/sign-in")
    assert world.asked == []


def test_a_good_key_begins_a_session_that_scripts_cannot_read() -> None:
    client = visit(World(), key=None)
    response = client.post("/console/sign-in", data={"key": " ana-key "})
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(COOKIE)
    assert {"HttpOnly", "Secure", "Path=/console", "SameSite=lax"} <= set(cookie.split("; "))
    assert client.get("/console/conflicts").status_code == 200


@pytest.mark.parametrize("form", [{"key": ""}, {"key": "wrong"}, {"key": "ana-key", "user": "somebody else"}])
def test_a_bad_key_is_told_so_and_begins_nothing(form: dict[str, str]) -> None:
    response = visit(World(), key=None).post("/console/sign-in", data=form)
    assert response.status_code in (401, 403)
    assert "set-cookie" not in response.headers
    assert 'role="alert"' in response.text


SURROGATE = base64.urlsafe_b64encode(b'["\\ud800", null, null]').decode()
NESTED = base64.urlsafe_b64encode(b"[" * 2_000).decode()


@pytest.mark.parametrize(
    "cookie", ["", "x", "WzFd", "bnVsbA==", "WzEsMiwzXQ==", "eyJrZXkiOjF9", "A" * 5000, SURROGATE, NESTED]
)
def test_a_cookie_that_is_none_of_ours_is_nobody(cookie: str) -> None:
    client = visit(World(), key=None)
    response = client.get("/console/conflicts", headers={"cookie": f"{COOKIE}={cookie}"})
    assert response.status_code == 303


def test_a_revoked_key_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visit(World())
    monkeypatch.setattr("tests.console_world.KEYS", {}, raising=True)
    response = client.get("/console/conflicts")
    assert (response.status_code, response.headers["location"]) == (303, "/console/sign-in")
    assert COOKIE in response.headers["set-cookie"]


def test_signing_out() -> None:
    client = visit(World())
    token = token_of(client.get("/console/conflicts").text)
    assert client.post("/console/sign-out", data={"token": token}).status_code == 303
    assert client.get("/console/conflicts").headers["location"] == "/console/sign-in"


# --- Other sites


@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.test"}],
)
def test_forms_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    client = visit(world)
    assert rule(client, "c_1", "keep_incumbent", headers).status_code == 403
    assert visit(world, key=None).post("/console/sign-in", data={"key": "ana-key"}, headers=headers).status_code == 403
    assert world.resolved == {}


@pytest.mark.parametrize("token", ["", "0" * 32, "ã"])
def test_a_form_without_the_sessions_token_is_refused(token: str) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    sent = {"token": token, "decision": "keep_incumbent"}
    assert visit(world).post("/console/conflicts/c_1", data=sent).status_code == 403
    assert world.resolved == {}


def test_pages_run_no_foreign_script_and_cannot_be_framed() -> None:
    response = visit(World()).get("/console/conflicts")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["cache-control"] == "no-store"
    tags = parsed(response.text).tags
    assert not [a for tag, a in tags if tag == "style" or "style" in a or any(n.startswith("on") for n in a)]
    assert [a["src"] for tag, a in tags if tag == "script"] == ["/console/static/htmx.min.js"]


# --- Conflicts


def test_a_conflict_shows_both_facts_with_source_dates_and_reason() -> None:
    page = unescape(visit(busy_world()).get("/console/conflicts").text)
    for shown in ("Dana Moreira", "Lee Santos", "System of record", "Agent's summary", "crm/accounts/1044", "CRM sync"):
        assert shown in page
    for shown in ("2024-03-01", "2026-06-01 10:02 UTC", "from outside", "only its owner may change it", "in 2 days"):
        assert shown in page
    assert "overdue since" in page
    assert page.count('value="accept_challenger"') == 2  # A review has no challenger.


def test_closed_conflicts_show_the_ruling() -> None:
    page = visit(busy_world()).get("/console/conflicts?show=closed").text
    assert "the new value was accepted" in page
    assert "Phoned them." in page
    assert "<form" not in page.split("<main")[1]


@pytest.mark.parametrize(("show", "kind"), [("conflict", "conflict"), ("review", "review"), ("nonsense", None)])
def test_the_filter_asks_for_one_kind(show: str, kind: str | None) -> None:
    world = World()
    visit(world).get(f"/console/conflicts?show={show}")
    assert world.asked == [("conflicts", {"status": "open", "limit": 20} | ({"kind": kind} if kind else {}))]


def test_an_empty_desk_says_so_and_a_long_one_goes_on() -> None:
    world = World()
    client = visit(world)
    assert "Nothing waits for you." in client.get("/console/conflicts").text
    world.following = "c&next"
    page = client.get("/console/conflicts?show=review").text
    assert "/console/conflicts?show=review&amp;cursor=c%26next" in page


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"decision": "accept_challenger", "note": " phoned "}, {"decision": "accept_challenger", "note": "phoned"}),
        ({"decision": "keep_incumbent", "value": "x"}, {"decision": "keep_incumbent"}),
        ({"decision": "dismiss"}, {"decision": "dismiss"}),
        ({"decision": "new_value", "value": "Rui", "text": "It is Rui."}, None),
        ({"decision": "new_value", "value": "12,5", "type": "number"}, {"decision": "new_value", "value": 12.5}),
        ({"decision": "new_value", "value": "1000", "type": "number"}, {"decision": "new_value", "value": 1000}),
        ({"decision": "new_value", "value": "0.125", "type": "number"}, {"decision": "new_value", "value": 0.125}),
        ({"decision": "new_value", "value": "1000,000", "type": "number"}, {"decision": "new_value", "value": 1000.0}),
        ({"decision": "new_value", "value": "1,000", "type": "text"}, {"decision": "new_value", "value": "1,000"}),
        ({"decision": "new_value", "value": "false", "type": "boolean"}, {"decision": "new_value", "value": False}),
        (
            {"decision": "both_valid", "user": "eva"},
            {"decision": "both_valid", "rescope": {"user": "eva", "scope": "personal"}},
        ),
        (
            {"decision": "both_valid", "effective_at": "2026-07-01", "subject": ""},
            {"decision": "both_valid", "rescope": {"effective_at": "2026-07-01T00:00:00Z"}},
        ),
    ],
)
def test_each_form_sends_its_ruling(fields: dict[str, str], asked: dict[str, Any] | None) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    response = rule(visit(world), "c_1", **fields)
    assert (response.status_code, response.headers["location"]) == (303, "/console/conflicts")
    assert world.asked[-1] == ("resolve", fields if asked is None else asked)


def test_with_scripts_the_confirmation_takes_the_cards_place() -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    response = rule(
        visit(world), "c_1", "accept_challenger", {"hx-request": "true"}, slot_subject="Acme Lda", slot_field="contact"
    )
    assert response.status_code == 200
    assert "Lee Santos" in response.text
    assert "subject=Acme%20Lda" in response.text
    assert parsed(response.text).tags[0] == (
        "article",
        {"class": "card ruled", "role": "status", "tabindex": "-1", "autofocus": None},
    )


@pytest.mark.parametrize("scripts", [True, False])
def test_a_second_ruling_says_that_it_is_one(scripts: bool) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    client = visit(world)
    token = token_of(client.get("/console/conflicts").text)
    sent = {"token": token, "decision": "keep_incumbent"}
    headers = {"hx-request": "true"} if scripts else {}
    assert client.post("/console/conflicts/c_1", data=sent, headers=headers).status_code in (200, 303)
    again = client.post("/console/conflicts/c_1", data=sent, headers=headers)
    assert again.status_code == 409
    assert "Somebody has decided this already." in again.text
    assert ("hx-retarget" in again.headers) == scripts


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"decision": "new_value"}, "The right value: is required by new_value"),
        ({"decision": "new_value", "value": "many", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "true", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "1,000", "type": "number"}, "may mean 1000 or 1.0000"),
        ({"decision": "new_value", "value": "-1.250", "type": "number"}, "may mean -1250 or -1.2500"),
        ({"decision": "new_value", "value": "1 000", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "1.000,50", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "1,000,000", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "[1,2]", "type": "number"}, "The right value: must be a number"),
        ({"decision": "new_value", "value": "NaN", "type": "number"}, "The right value: must be a finite number"),
        ({"decision": "new_value", "value": "1e999", "type": "number"}, "The right value: must be a finite number"),
        ({"decision": "new_value", "value": "maybe", "type": "boolean"}, "The right value: must be true or false"),
        ({"decision": "both_valid"}, "Both are true"),
        ({"decision": "bake a cake"}, "must be 'accept_challenger'"),
    ],
)
def test_a_wrong_form_names_the_field_by_its_label(fields: dict[str, str], told: str) -> None:
    world = World(conflicts=[conflict("c_1", challenger=LEE)])
    response = rule(visit(world), "c_1", headers={"hx-request": "true"}, **fields)
    assert response.status_code == 422
    assert told in unescape(response.text)
    assert world.resolved == {}


def test_what_a_key_may_not_do_the_desk_does_not_do_for_it() -> None:
    world = busy_world()
    response = visit(world, key="agent-key").get("/console/conflicts")
    assert response.status_code == 403
    assert "Your key does not allow this." in response.text
    assert world.asked == []


@pytest.mark.parametrize(("error", "status"), [(Unavailable("shard-0"), 503), (InvalidInput.at("/cursor", "no"), 422)])
def test_a_failing_service_is_told_without_its_inside(error: Exception, status: int) -> None:
    response = visit(World(fails=error)).get("/console/conflicts")
    assert response.status_code == status
    assert "shard-0" not in response.text


def test_a_form_that_is_none_is_refused() -> None:
    client = visit(World())
    assert client.post("/console/conflicts/c_1", json={"decision": "dismiss"}).status_code == 400
    too_many = "&".join(f"a{n}=1" for n in range(60))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/console/conflicts/c_1", content=too_many, headers=form).status_code == 400
    assert client.post("/console/conflicts/c_1", content="token=%FF", headers=form).status_code == 400


# --- Facts, decisions, runs


def test_a_slot_is_shown_as_a_timeline() -> None:
    page = visit(busy_world()).get("/console/facts?subject=Acme+Lda&field=primary_contact").text
    places = [page.index(name, page.index("<ol")) for name in ("Eva Pinto", "Lee Santos", "Tiago Neves", "Marta Reis")]
    assert places == sorted(places)
    assert "2022-01-10</time> until 2023-02-01" in page
    assert page.count("<rect") == 7
    assert "Disputed" in page


def test_facts_without_a_name_or_without_a_past() -> None:
    world = World()
    client = visit(world)
    assert "Name a subject and a field" in client.get("/console/facts?subject=x").text
    assert world.asked == []
    assert "Nothing was ever recorded" in client.get("/console/facts?subject=x&field=y").text


def test_the_timeline_tells_what_held_from_what_did_not() -> None:
    answer = busy_world().facts
    states = {entry.fact["id"]: entry.state for entry in views.timeline(answer, NOW)}
    assert states == {
        "f_a": "superseded",
        "f_b": "superseded",
        "f_1": "current",
        "f_c": "evidence",
        "f_d": "aside",
        "f_2": "disputed",
        "f_e": "ahead",
    }


def test_the_strip_fits_its_frame_whatever_the_dates() -> None:
    same = [fact(f"f{n}", n, effective_at="2026-06-15T09:30:00Z") for n in range(40)]
    for history in (same, [*same, fact("old", 0, effective_at="0001-01-01T00:00:00Z")]):
        strip = views.strip(views.timeline({"current": same[0], "history": history}, NOW), NOW)
        assert strip is not None
        assert all(strip.label_width <= bar.x and bar.x + bar.width <= strip.width for bar in strip.bars)
        assert len(strip.bars) <= 24
    assert views.strip(views.timeline({"current": DANA, "history": []}, NOW), NOW) is None


def test_decisions_are_searched_and_shown() -> None:
    world = busy_world()
    page = unescape(visit(world).get("/console/decisions?subject=Acme&since=2026-01-01&kind=").text)
    assert world.asked == [("decisions", {"subject": "Acme", "since": "2026-01-01T00:00:00Z", "limit": 20})]
    assert "This is sensitive" in page
    assert "policy version 3" in page
    assert '"rank": 4' in page
    rows = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in page.split("<tr>")[2:]]
    assert [row[0] for row in rows] == ["new", "in"]
    assert [" 5 " in " ".join(rows[0]), " 1 " in " ".join(rows[1])] == [True, True]


def test_a_runs_trail() -> None:
    world = busy_world()
    page = visit(world).get("/console/runs?run=run/42").text
    assert [verdict for verdict in ("allowed", "duplicate", "blocked") if verdict in page] == [
        "allowed",
        "duplicate",
        "blocked",
    ]
    assert "/console/runs?run=run-41" in page
    assert "Name a run" in visit(World()).get("/console/runs").text
    assert "no record of this run" in visit(World()).get("/console/runs?run=x").text


# --- Whatever the text


@pytest.mark.parametrize(
    "text", [HOSTILE, LONG, ARABIC, '"><script>1</script>', "{{ 7 * 7 }}", "\u202eevil", "a" * 9000]
)
def test_no_text_breaks_or_takes_over_a_page(text: str) -> None:
    wild = dict.fromkeys(("id", "uri", "author", "role", "party"), text)
    shown = fact(
        "f_9", text, text=text, source={"kind": "counterparty", **wild}, evidence=[{"kind": "counterparty", **wild}]
    )
    world = World(
        conflicts=[
            conflict("c_1", incumbent=shown, challenger=shown, owner=text, rule=text,
                     slot={"subject": text, "field": text, "scope": "personal", "user": text})
        ],
        facts={"current": shown, "history": [shown, {**shown, "id": "f_8"}],
               "dispute": {"conflict_id": "c_1", "notice": text, "other": shown}},
        decisions=[{"id": text, "at": "2026-06-01T00:00:00Z", "kind": text, "rule": text, "reason": text, "actor": text,
                    "policy_version": 1, "inputs": {text: text, "challenger": {**shown, "rank": 0}},
                    "outcome": text, "subject": text, "field": text}],
        trail=[{"seq": 1, "at": "2026-06-01T00:00:00Z", "step_id": text, "tool": text, "verdict": text, "reason": text,
                "decision_id": "d", "origin": {"run_id": text, "step_id": text}}],
    )  # fmt: skip
    client = visit(world)
    for path in ("/conflicts", "/facts?subject=s&field=f", "/decisions", "/runs?run=r"):
        response = client.get(f"/console{path}")
        assert response.status_code == 200
        tags = parsed(response.text).tags
        assert [a for tag, a in tags if tag == "script"] == [{"src": "/console/static/htmx.min.js", "defer": None}]
        assert not [tag for tag, _ in tags if tag == "img"]
        assert views.chip(text) in unescape(response.text)


# --- Languages


def test_the_browsers_language_is_spoken_until_another_is_chosen() -> None:
    client = visit(busy_world(), **{"accept-language": "fr;q=0.9, pt-BR"})
    page = client.get("/console/conflicts").text
    assert '<html lang="pt">' in page
    assert "Manter" in page
    chosen = client.get("/console/language/en?back=/console/facts")
    assert chosen.headers["location"] == "/console/facts"
    assert '<html lang="en">' in client.get("/console/conflicts").text


@pytest.mark.parametrize("back", ["https://evil.test", "//evil.test", "/v1/keys", "/console\\..\\x", ""])
def test_the_way_back_stays_inside(back: str) -> None:
    response = visit(World()).get("/console/language/pt", params={"back": back})
    assert response.headers["location"] == "/console"
    assert visit(World()).get("/console/language/xx").status_code == 404


def test_both_languages_say_everything() -> None:
    english, portuguese = (messages.CATALOGUES[language] for language in messages.LANGUAGES)
    assert english.keys() == portuguese.keys()
    for name in english:
        assert re.findall(r"{\w+}", english[name]) == re.findall(r"{\w+}", portuguese[name])
    known = {f"rule.{rule.value}" for rule in Rule} | {f"source.{kind.value}" for kind in SourceKind}
    known |= {f"status.{status.value}" for status in Status}
    known |= {f"{group}.{decision.value}" for decision in Decision for group in ("ruled", "resolution", "decided")}
    known |= {f"outcome.{outcome.value}" for outcome in Outcome}
    assert known <= english.keys()


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        *[(0.5, "just now"), (5, "5 min ago"), (120, "2 h ago"), (1500, "yesterday"), (4400, "3 days ago")],
        *[(-30, "in 30 min"), (-1500, "tomorrow"), (-4400, "in 3 days"), (1e6, "2024-07-20")],
    ],
)
def test_distances_in_time(minutes: float, told: str) -> None:
    assert messages.distance(NOW - timedelta(minutes=minutes), NOW, messages.words("en")) == told


def test_static_files_are_served_and_nothing_else() -> None:
    client = visit(World(), key=None)
    assert client.get("/console/static/console.css").headers["content-type"].startswith("text/css")
    assert client.get("/console/static/htmx.min.js").status_code == 200
    for name in ("htmx.LICENSE", "..%2Frouter.py", "nothing"):
        assert client.get(f"/console/static/{name}").status_code == 404
