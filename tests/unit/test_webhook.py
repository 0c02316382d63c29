"""Owners are told outside: signed, again after a failure and a restart, never elsewhere, and of nothing private."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import queue
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.store import memory_tables as t
from muniment.actors.store import outbox_store
from muniment.actors.webhook import WebhookOptions, pause_after
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, BOT, MAIL, Bench, contact

SECRET = b"a shared secret"
WAIT_SECONDS = 60


class Receiver:
    """A server on loopback that answers what it is told to, and keeps what came."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 204
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                receiver.came.put((self.path, {k.lower(): v for k, v in self.headers.items()}, body))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/told"

    def next(self) -> tuple[str, dict[str, str], dict[str, Any]]:
        path, headers, body = self.came.get(timeout=WAIT_SECONDS)
        signed = f"{headers['muniment-timestamp']}.".encode() + body
        expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
        assert headers["muniment-signature"] == f"v1={expected}"
        return path, headers, json.loads(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    bench = Bench(stores, webhooks=WebhookOptions(secret=SECRET))
    yield bench
    bench.close()


def waiting(bench: Bench) -> list[Any]:
    with bench.engine.connect() as connection:
        return list(connection.execute(sa.select(t.outbox).order_by(t.outbox.c.next_at)))


def until_waiting(bench: Bench, count: int) -> list[Any]:
    pause = threading.Event()
    for _ in range(WAIT_SECONDS * 20):
        if len(waiting(bench)) == count:
            break
        pause.wait(0.05)
    rows = waiting(bench)
    assert len(rows) == count
    return rows


def test_an_owner_is_told_of_both_facts_and_of_what_is_overdue(bench: Bench, receiver: Receiver) -> None:
    escalation = {"webhook": receiver.url, "due_days": 2, "delegate": "boss"}
    bench.policy(fields={"contact": {"sensitive": True, "owner": "ana"}}, escalation=escalation)
    asyncio.run(bench.tell(contact("Dana", -3)))
    (lee,) = asyncio.run(bench.tell(contact("Lee", -1, source=MAIL), actor=BOT))
    path, headers, told = receiver.next()
    assert (path, headers["muniment-event"]) == ("/told", "conflict.opened")
    assert told["delivery"] == headers["muniment-delivery"]
    assert told["conflict"]["id"] == lee["conflict_id"]
    assert told["conflict"]["owner"] == "ana"
    sides = [told["conflict"][side] for side in ("incumbent", "challenger")]
    assert [side["value"] for side in sides] == ["Dana", "Lee"]
    assert sides[1]["source"]["id"] == "mail-7"
    (overdue,) = until_waiting(bench, 1)
    assert overdue.attempts == 0
    bench.now += timedelta(days=2, minutes=1)
    bench.shard.close()
    bench.start()
    _, headers, told = receiver.next()
    assert (headers["muniment-event"], told["conflict"]["delegate"]) == ("conflict.overdue", "boss")
    until_waiting(bench, 0)


def test_what_did_not_arrive_is_sent_again_also_after_a_restart_and_never_elsewhere(
    bench: Bench, receiver: Receiver
) -> None:
    receiver.answers = [307, 500]
    bench.policy(escalation={"webhook": receiver.url})
    asyncio.run(bench.tell(contact("Dana")))
    asyncio.run(bench.tell(contact("Lee")))
    first = receiver.next()
    for attempt in (1, 2):
        (row,) = until_waiting(bench, 1)
        assert row.attempts == attempt
        bench.shard.close()
        bench.now += pause_after(attempt) + timedelta(seconds=1)
        bench.start()
        again = receiver.next()
        assert (again[0], again[1]["muniment-delivery"]) == ("/told", first[1]["muniment-delivery"])
    until_waiting(bench, 0)
    assert receiver.came.empty()


def test_a_conflict_that_has_ended_is_told_nobody_and_another_host_nothing(bench: Bench, receiver: Receiver) -> None:
    bench.policy(escalation={"webhook": receiver.url, "due_days": 1})
    asyncio.run(bench.tell(contact("Dana")))
    (lee,) = asyncio.run(bench.tell(contact("Lee")))
    receiver.next()
    until_waiting(bench, 1)
    ruling = {"decision": "keep_incumbent"}
    arguments = {"conflict_id": lee["conflict_id"], "actor": ANA, "rules_all": True}
    asyncio.run(bench.router.resolve("acme", ruling, None, **arguments))
    bench.shard.close()
    bench.now += timedelta(days=1, minutes=1)
    bench.start()
    until_waiting(bench, 0)
    bench.shard.close()
    bench.settings = type(bench.settings)(webhooks=WebhookOptions(secret=SECRET, hosts=frozenset({"other"})))
    bench.start()
    bench.policy(escalation={"webhook": receiver.url})
    for value in ("Dana", "Lee"):
        asyncio.run(bench.tell(contact(value, subject="Borealis")))
    (row,) = until_waiting(bench, 1)
    pause = threading.Event()
    for _ in range(WAIT_SECONDS * 20):
        if row.attempts:
            break
        pause.wait(0.05)
        (row,) = waiting(bench)
    assert row.attempts == 1
    assert receiver.came.empty()


def test_an_address_that_cannot_be_one_keeps_nobody_else_from_being_told(bench: Bench, receiver: Receiver) -> None:
    bench.policy(escalation={"webhook": receiver.url})
    asyncio.run(bench.tell(contact("Dana")))
    (lee,) = asyncio.run(bench.tell(contact("Lee")))
    receiver.next()
    until_waiting(bench, 0)
    message = {"company": "acme", "role": "shard-0", "event": "conflict.opened", "conflict_id": lee["conflict_id"]}
    with bench.engine.begin() as connection:
        wrong = outbox_store.Message(id="m_0", next_at=bench.now, url="http://a..b/", **message)
        assert outbox_store.add(connection, [wrong]) == 0
    for value in ("Dana", "Lee"):
        asyncio.run(bench.tell(contact(value, subject="Borealis")))
    receiver.next()
    (row,) = until_waiting(bench, 1)
    assert (row.id, row.attempts) == ("m_0", 1)


def test_of_a_personal_conflict_only_its_being_there_is_told(bench: Bench, receiver: Receiver) -> None:
    bench.policy(escalation={"webhook": receiver.url})
    mine = {"scope": "personal", "user": "ana"}
    for value in ("Dana", "Lee"):
        asyncio.run(bench.tell(contact(value, **mine)))
    _, _, told = receiver.next()
    assert told["conflict"]["owner"] == "ana"
    assert not {"slot", "incumbent", "challenger"} & told["conflict"].keys()
    assert "Lee" not in json.dumps(told)
    assert "Aurora" not in json.dumps(told)


def test_without_a_secret_nothing_waits(stores: Stores, receiver: Receiver) -> None:
    bench = Bench(stores)
    bench.policy(escalation={"webhook": receiver.url})
    for value in ("Dana", "Lee"):
        asyncio.run(bench.tell(contact(value)))
    assert len(bench.conflicts()) == 1
    assert waiting(bench) == []
    bench.close()


def test_the_queue_of_a_company_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_store, "MAX_WAITING", 1)
    message = {"company": "acme", "role": "shard-9", "event": "e", "conflict_id": "c", "url": "http://x"}
    with bench.engine.begin() as connection:
        messages = [outbox_store.Message(id=f"m_{n}", next_at=bench.now, **message) for n in range(3)]
        assert outbox_store.add(connection, messages) == 2
