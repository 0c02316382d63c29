"""Who may write what: the epoch of each role's instance, and the map from partitions to members.

The map lies in the store of what it divides, and each member's row of ``epochs`` counts the changes of what it has. A
member's transaction locks and reads that row anyway; whoever moves something changes it. So a move waits for the
transactions under way at both ends, and those that follow know of it: no two ever write to the same partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import sqlalchemy as sa

from muniment.actors.store import memory_tables
from muniment.actors.store.engine import roles, writing
from muniment.actors.store.statements import read_row
from muniment.policies.errors import Fenced, Moved, NotFound
from muniment.policies.partitioning import Divided, Kind, PartitionMap, Unit, assign


@dataclass(frozen=True, slots=True)
class Role:
    """How many of a kind there are to be, and are used; for shards and ledgers also who has what."""

    kind: Kind
    wanted: int = 1
    used: int = 1
    map: PartitionMap = field(default_factory=PartitionMap)

    @property
    def divided(self) -> bool:
        """Whether each of them has partitions of its own."""
        return self.kind in get_args(Divided)

    @property
    def needed(self) -> set[int]:
        """The numbers of those that are to be there now: that have something, or are to, or are used."""
        return {*range(self.wanted), *self.map.owners()} if self.divided else set(range(self.used))


def read_role(connection: sa.Connection, kind: Kind) -> Role:
    """What the store says of a kind; where it says nothing, there is one, and it has everything."""
    row = connection.execute(sa.select(roles).where(roles.c.kind == kind)).first()
    return Role(kind) if row is None else Role(kind, row.wanted, row.used, _map(row))


def _map(row: Any) -> PartitionMap:
    content = row.map
    return PartitionMap(
        tuple(content["members"]),
        content["apart"],
        frozenset(content["to_be_apart"]),
        frozenset(content["pinned"]),
        tuple(content["stamps"]),
        row.version,
    )


def _content(found: PartitionMap) -> dict[str, Any]:
    return {
        "members": list(found.members),
        "apart": dict(found.apart),
        "to_be_apart": sorted(found.to_be_apart),
        "pinned": sorted(found.pinned),
        "stamps": list(found.stamps),
    }


def begin(connection: sa.Connection, kind: Kind, members: int) -> None:
    """Says how many there are to be of a kind, where that was never said."""
    if connection.execute(sa.select(roles.c.kind).where(roles.c.kind == kind)).first() is None:
        content = _content(PartitionMap(assign(members)) if Role(kind).divided else PartitionMap())
        row = {"kind": kind, "wanted": members, "used": members, "version": 0, "map": content}
        connection.execute(roles.insert().values(row))


def want(connection: sa.Connection, kind: Kind, members: int) -> None:
    """Says how many there are to be of a kind from now on."""
    connection.execute(roles.update().where(roles.c.kind == kind).values(wanted=members))


def use(connection: sa.Connection, kind: Kind, members: int) -> None:
    """Says how many of a kind that has no partitions are used from now on."""
    connection.execute(roles.update().where(roles.c.kind == kind).values(used=members))


def move(connection: sa.Connection, kind: Divided, unit: Unit, old: int, new: int) -> bool:
    """Gives a unit that ``old`` has to ``new``; False where another one has it by now, and nothing is changed.

    Waits for the transactions that are under way at both.
    """
    before = _locked(connection, kind)
    if before.of_unit(unit) != old:
        return False
    _count(connection, kind, old, new)
    after = before.moved(unit, new)
    _save(connection, kind, after)
    if kind == "shard":
        _take_messages_along(connection, after, old)
    return True


def place_company(
    connection: sa.Connection, company: str, *, pinned: bool | None = None, apart: bool | None = None
) -> PartitionMap:
    """Says whether a company is never unloaded, and whether it is to have a shard of its own; None: as it is."""
    before = _locked(connection, "shard")
    after = before
    if pinned is not None:
        after = replace(after, pinned=after.pinned | {company} if pinned else after.pinned - {company})
    if apart is not None:
        wished = after.to_be_apart
        after = replace(after, to_be_apart=wished | {company} if apart else wished - {company})
    if after != before:
        after = replace(after, version=before.version + 1)
        _count(connection, "shard", after.of_company(company))
        _save(connection, "shard", after)
    return after


def _locked(connection: sa.Connection, kind: Divided) -> PartitionMap:
    """The map, which nobody else changes until the transaction ends."""
    row = connection.execute(sa.select(roles).where(roles.c.kind == kind).with_for_update()).first()
    if row is None:
        raise NotFound(f"the store has no map of {kind}s")
    return _map(row)


def _save(connection: sa.Connection, kind: Divided, after: PartitionMap) -> None:
    connection.execute(roles.update().where(roles.c.kind == kind).values(version=after.version, map=_content(after)))


def _count(connection: sa.Connection, kind: Divided, *members: int) -> None:
    """Tells members that what they have has changed; one that never started finds it so when it does."""
    told = sa.text(
        "INSERT INTO epochs (role, epoch, moves) VALUES (:role, 0, 1)"
        " ON CONFLICT (role) DO UPDATE SET moves = epochs.moves + 1"
    )
    for member in sorted(members):  # all in one order, so that no two wait for each other
        connection.execute(told, {"role": f"{kind}-{member}"})


def _take_messages_along(connection: sa.Connection, after: PartitionMap, old: int) -> None:
    """Messages to owners are sent by the shard that has the company."""
    o = memory_tables.outbox.c
    role = f"shard-{old}"
    waiting = connection.execute(sa.select(o.company).where(o.role == role).distinct()).scalars().all()
    for company in waiting:
        if after.of_company(company) != old:
            gone = memory_tables.outbox.update().where(o.role == role, o.company == company)
            connection.execute(gone.values(role=f"shard-{after.of_company(company)}"))


class Fence:
    """The right to write as ``role`` to what the role has: the newest instance holds it, and an older one is refused
    in its transaction. ``role``: a kind and a number, "shard-0".

    ``on_moved``: told the partitions of which something came or went, inside the transaction that learns of it, before
    anything else is done there.
    """

    def __init__(self, engine: sa.Engine, role: str) -> None:
        self.role = role
        kind, _, number = role.rpartition("-")
        self._kind = cast("Kind", kind)
        self.number = int(number)
        self.on_moved: Callable[[sa.Connection, frozenset[int]], None] | None = None
        take = sa.text(
            "INSERT INTO epochs (role, epoch, moves) VALUES (:role, 1, 0)"
            " ON CONFLICT (role) DO UPDATE SET epoch = epochs.epoch + 1 RETURNING epoch, moves"
        )
        with writing(engine).begin() as connection:
            taken = connection.execute(take, {"role": role}).one()
            self.map = read_role(connection, self._kind).map
        self.epoch: int = taken.epoch
        self._moves: int = taken.moves
        self._look = "SELECT epoch, moves FROM epochs WHERE role = ?"
        # Whoever takes over, or moves something, waits for the transactions that have passed the check.
        self._check = self._look + ("" if engine.dialect.name == "sqlite" else " FOR SHARE")

    def check(self, connection: sa.Connection) -> None:
        """Raises ``Fenced`` where a newer instance took over; until the transaction ends, none can, and nothing moves.

        What came or went since is known from here on.
        """
        moves = self._moves_now(connection, self._check)
        if moves == self._moves:
            return
        before, self.map = self.map, read_role(connection, self._kind).map
        try:
            if self.on_moved is not None:
                self.on_moved(connection, self.map.changed_since(before))
        except BaseException:
            self.map = before
            raise
        self._moves = moves

    def look(self, connection: sa.Connection) -> bool:
        """The same in a transaction that only reads, and without holding anybody up: whether what is known of the map
        still holds, which ``check`` brings up to date."""
        return self._moves_now(connection, self._look) == self._moves

    def has_company(self, company: str) -> bool:
        """Whether a company is this member's, as it knows."""
        return self.map.of_company(company) == self.number

    def require_company(self, company: str) -> None:
        """Raises ``Moved`` where a company is another member's."""
        if not self.has_company(company):
            raise Moved(f"{self.role} does not have this company any more")

    def has_partition(self, partition: int) -> bool:
        """Whether a partition is this member's, as it knows."""
        return self.map.members[partition] == self.number

    def _moves_now(self, connection: sa.Connection, statement: str) -> int:
        row = read_row(connection, statement, self.role)
        newest, moves = (None, 0) if row is None else row
        if newest != self.epoch:
            raise Fenced(f"{self.role}: epoch {self.epoch} was replaced by {newest}", role=self.role)
        return int(moves)
