"""Telling owners outside: a signed HTTP request for each conflict that opens, and for each that becomes overdue.

The receiver checks ``Muniment-Signature``: ``v1=`` and the hex HMAC-SHA256, under the shared secret, of the value of
``Muniment-Timestamp`` (seconds since the epoch), a full stop and the body as it came. ``Muniment-Delivery`` is the
message's id: a message may come twice, as after a crash, and has the same id then. Any 2xx says that it has arrived.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import sqlalchemy as sa

from muniment.actors.clock import Clock
from muniment.actors.store import conflict_store, memory_store, outbox_store
from muniment.actors.store.conflict_store import OPEN, Conflict
from muniment.actors.store.engine import available
from muniment.actors.store.group_commit import GroupCommitter
from muniment.actors.store.outbox_store import Message
from muniment.actors.wire import source_to_dict, to_rfc3339
from muniment.policies.errors import Fenced, MunimentError
from muniment.policies.model import Fact, Scope

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = timedelta(seconds=10)
_MAX_ATTEMPTS: Final = 8
_AT_ONCE: Final = 100
#: How long the sender sleeps where nothing is due, and between two tries where the store is away.
_IDLE_SECONDS: Final = 60.0
_SHOWN_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """``secret``: what requests are signed with. ``hosts``: the only host names that are told; empty: any."""

    secret: bytes
    hosts: frozenset[str] = frozenset()
    timeout_seconds: float = 10.0


def pause_after(attempts: int) -> timedelta:
    """How long to wait after this many failed attempts: 10 seconds, and four times as long each time after."""
    pause: timedelta = _FIRST_PAUSE * 4 ** (attempts - 1)
    return pause


def signature(secret: bytes, timestamp: int, body: bytes) -> str:
    """The value of ``Muniment-Signature``."""
    return "v1=" + hmac.new(secret, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def payload(message: Message, conflict: Conflict, facts: dict[str, Fact]) -> dict[str, Any]:
    """What is sent: the conflict as its owner sees it, long texts cut. Of a personal one only that there is one."""
    shown: dict[str, Any] = {
        "id": conflict.id,
        "kind": conflict.kind.value,
        "rule": conflict.rule.value,
        "reason": conflict.reason,
        "owner": conflict.owner,
        "opened_at": to_rfc3339(conflict.opened_at),
    }
    if conflict.due_at is not None:
        shown["due_at"] = to_rfc3339(conflict.due_at)
    if conflict.delegate is not None:
        shown["delegate"] = conflict.delegate
    slot = conflict.slot
    if conflict.user is None:
        if slot is not None:
            shown["slot"] = {"subject": slot.subject, "field": slot.field, "scope": slot.scope.value}
        for name, id in (("incumbent", conflict.subject_id), ("challenger", conflict.challenger_id)):
            fact = facts.get(id or "")
            if fact is not None and fact.scope is Scope.SHARED:
                shown[name] = _fact(fact)
    return {"delivery": message.id, "event": message.event, "company": message.company, "conflict": shown}


def _fact(fact: Fact) -> dict[str, Any]:
    value = fact.value[:_SHOWN_CHARACTERS] if isinstance(fact.value, str) else fact.value
    shown = {"id": fact.id, "text": fact.text[:_SHOWN_CHARACTERS], "value": value, "status": fact.status.value}
    source = {name: text for name, text in source_to_dict(fact.source).items() if name != "derived_from"}
    dates = {name: getattr(fact, name) for name in ("effective_at", "expires_at", "recorded_at")}
    given = {name: to_rfc3339(moment) for name, moment in dates.items() if moment is not None}
    return {**shown, "source": {**source, "kind": fact.source.kind.value}, **given}


class WebhookSender:
    """Sends a role's messages from a thread of its own until ``close``. Before a message is sent its next attempt is
    written, through the shard's fence, so that a replaced instance sends nothing and a crash loses nothing."""

    def __init__(
        self,
        engine: sa.Engine,
        role: str,
        committer: GroupCommitter,
        options: WebhookOptions,
        clock: Clock,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._engine = engine
        self._role = role
        self._committer = committer
        self._options = options
        self._clock = clock
        # Redirects are never followed: what an owner's address says is told nowhere else.
        self._client = httpx.Client(
            timeout=options.timeout_seconds, follow_redirects=False, trust_env=False, transport=transport
        )
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something may be due now."""
        self._wake.set()

    def close(self) -> None:
        """Ends after the message that is under way."""
        self._ended = True
        self._wake.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._ended:
            self._wake.clear()
            try:
                with available():
                    pause = self._send_due()
            except Fenced:
                log.info("%s was replaced and sends no messages any more", self._role)
                return
            except MunimentError as error:
                log.warning("messages to owners wait: %s", error.detail)
                pause = _IDLE_SECONDS
            except Exception:
                log.exception("messages to owners wait, for a reason that nobody foresaw")
                pause = _IDLE_SECONDS
            self._wake.wait(pause)

    def _send_due(self) -> float:
        """Sends what is due; seconds until the next is."""
        now = self._clock()
        with self._engine.connect() as connection:
            messages = outbox_store.due(connection, self._role, now, _AT_ONCE)
            following = outbox_store.next_due(connection, self._role)
        failed: dict[str, datetime] = {}
        for message in messages:
            if self._ended:
                return 0.0
            self._handle(message, failed)
        if messages:
            return 0.0
        return _IDLE_SECONDS if following is None else min(_IDLE_SECONDS, (following - now).total_seconds())

    def _handle(self, message: Message, failed: dict[str, datetime]) -> None:
        if message.url in failed:
            # One slow receiver costs one time-out a round, however much waits for it.
            until = failed[message.url]
            self._write(lambda c: outbox_store.postpone(c, [message.id], until, tried=False))
            return
        attempts = message.attempts + 1
        until = self._clock() + pause_after(attempts)
        self._write(lambda c: outbox_store.postpone(c, [message.id], until, tried=True))
        found = self._read(message)
        problem = None if found is None else self._send(message, found)
        if problem is not None and attempts < _MAX_ATTEMPTS:
            log.warning("message %s did not arrive (attempt %d): %s", message.id, attempts, problem)
            failed[message.url] = until
            return
        if problem is not None:
            log.error("message %s is given up after %d attempts: %s", message.id, attempts, problem)
        self._write(lambda c: outbox_store.remove(c, message.id))

    def _write(self, body: Callable[[sa.Connection], None]) -> None:
        self._committer.submit(body).result()

    def _read(self, message: Message) -> dict[str, Any] | None:
        """What to send, None where the conflict has ended meanwhile."""
        with self._engine.connect() as connection:
            conflict = conflict_store.get_conflict(connection, message.company, message.conflict_id)
            if conflict is None or conflict.status != OPEN:
                return None
            ids = [id for id in (conflict.subject_id, conflict.challenger_id) if id is not None]
            return payload(message, conflict, memory_store.get_facts(connection, message.company, ids))

    def _send(self, message: Message, found: dict[str, Any]) -> str | None:
        """Why the message did not arrive, None where it did."""
        try:
            url = httpx.URL(message.url)
        except httpx.InvalidURL as error:
            return f"not an address: {error}"
        if self._options.hosts and url.host not in self._options.hosts:
            return f"{url.host} is not among the hosts that may be told"
        body = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
        timestamp = int(self._clock().timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "muniment",
            "Muniment-Event": message.event,
            "Muniment-Delivery": message.id,
            "Muniment-Timestamp": str(timestamp),
            "Muniment-Signature": signature(self._options.secret, timestamp, body),
        }
        try:
            with self._client.stream("POST", url, content=body, headers=headers) as answer:
                return None if answer.is_success else f"status {answer.status_code}"
        except (httpx.HTTPError, ValueError) as error:  # a name that is none cannot be looked up either
            return type(error).__name__
