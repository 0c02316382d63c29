"""Messages to owners that are still to be sent: rows that are written with what they tell of, so that none is lost.

A row names its conflict and holds none of its content; what is sent is read when it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.memory_store import known
from muniment.actors.wire import pack, unpack

#: What is told: that a conflict, review or notice has opened, and that it was not ruled on in time.
OPENED: Final = "conflict.opened"
OVERDUE: Final = "conflict.overdue"
#: Messages that one company may have waiting; what comes after them is only on its owners' lists.
MAX_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something to tell. ``role``: the shard that sends it; ``next_at``: when it is tried (again)."""

    id: str
    company: str
    role: str
    event: str
    conflict_id: str
    url: str
    next_at: datetime
    attempts: int = 0


def add(connection: sa.Connection, messages: Sequence[Message]) -> int:
    """Adds messages as far as their companies have room; how many were left out."""
    left_out = 0
    for company in dict.fromkeys(message.company for message in messages):
        count = sa.select(sa.func.count()).select_from(t.outbox).where(t.outbox.c.company == company)
        room = max(0, MAX_WAITING - connection.execute(count).scalar_one())
        mine = [message for message in messages if message.company == company]
        left_out += max(0, len(mine) - room)
        rows = [
            {
                "id": message.id,
                "company": company,
                "role": message.role,
                "next_at": microseconds(message.next_at),
                "attempts": message.attempts,
                "body": pack([message.event, message.conflict_id, message.url]),
            }
            for message in mine[:room]
        ]
        if rows:
            connection.execute(t.outbox.insert(), rows)
    return left_out


def due(connection: sa.Connection, role: str, now: datetime, limit: int) -> list[Message]:
    """The role's messages that are to be tried by ``now``, the longest due first."""
    o = t.outbox.c
    query = sa.select(t.outbox).where(o.role == role, o.next_at <= microseconds(now)).order_by(o.next_at).limit(limit)
    found = []
    for row in connection.execute(query):
        event, conflict_id, url = unpack(row.body)
        found.append(
            Message(
                id=row.id,
                company=row.company,
                role=row.role,
                event=event,
                conflict_id=conflict_id,
                url=url,
                next_at=known(row.next_at),
                attempts=row.attempts,
            )
        )
    return found


def next_due(connection: sa.Connection, role: str) -> datetime | None:
    """When the role's next message is to be tried, None where none waits."""
    o = t.outbox.c
    at: int | None = connection.execute(sa.select(sa.func.min(o.next_at)).where(o.role == role)).scalar()
    return None if at is None else known(at)


def postpone(connection: sa.Connection, ids: Sequence[str], until: datetime, *, tried: bool) -> None:
    """These messages are tried again then; ``tried``: one more attempt counts."""
    o = t.outbox.c
    values = {"next_at": microseconds(until), **({"attempts": o.attempts + 1} if tried else {})}
    connection.execute(t.outbox.update().where(o.id.in_(ids)).values(values))


def remove(connection: sa.Connection, id: str) -> None:
    """A message has arrived, or was given up."""
    connection.execute(t.outbox.delete().where(t.outbox.c.id == id))
