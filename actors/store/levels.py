"""What gauges show of the stores, over all companies: what is open on owners' lists, and what runs hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import sqlalchemy as sa

from muniment.actors.clock import Clock, system_clock
from muniment.actors.metrics import (
    ACTORS_WANTED,
    AGE_NAMES,
    CONFLICTS_OPEN,
    CONFLICTS_OVERDUE,
    OLDEST_RESERVATION,
    RESERVATIONS,
    Levels,
)
from muniment.actors.store import conflict_store
from muniment.actors.store.decision_log import microseconds
from muniment.actors.store.tenure import read_role
from muniment.policies.model import ConflictKind
from muniment.policies.partitioning import Divided

#: Reads what gauges show now.
Read = Callable[[], Levels]


def conflict_levels(engine: sa.Engine, clock: Clock = system_clock) -> Read:
    """Of the memory store: what is open, by kind and age, and what is overdue. What there is none of shows 0."""

    def read() -> Levels:
        with engine.connect() as connection:
            found = conflict_store.open_by_age(connection, microseconds(clock()))
        counts = {(kind, age): count for kind, age, count, _ in found}
        overdue: Counter[str] = Counter()
        for kind, _, _, late in found:
            overdue[kind] += late
        for kind in ConflictKind:
            for age in AGE_NAMES:
                yield CONFLICTS_OPEN, counts.get((kind.value, age), 0), {"kind": kind.value, "age": age}
            yield CONFLICTS_OVERDUE, overdue[kind.value], {"kind": kind.value}

    return read


def wanted_levels(engine: sa.Engine, kind: Divided) -> Read:
    """How many of a kind there are to be. Each of them tells, because one that is away cannot."""

    def read() -> Levels:
        with engine.connect() as connection:
            yield ACTORS_WANTED, len(read_role(connection, kind).needed), {"kind": kind}

    return read


def reservation_levels(engine: sa.Engine, clock: Clock = system_clock) -> Read:
    """Of the effects' store: how many keys are held, and for how long the longest."""
    from muniment.actors.store import effect_store  # a shard's process does without

    def read() -> Levels:
        now = microseconds(clock())
        with engine.connect() as connection:
            count, since = effect_store.held(connection, now)
        yield RESERVATIONS, count, {}
        yield OLDEST_RESERVATION, 0.0 if since is None else max(0.0, (now - since) / 1e6), {}

    return read
