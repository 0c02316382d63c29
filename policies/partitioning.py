"""Where a tenant or a key lives: 256 fixed partitions by hash, and a stored map from partition to member.

Members are shards or ledgers. Changing their number moves whole partitions, one at a time and no more of them than
balance needs. A company may live apart, in a shard of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from muniment.policies.errors import InvalidInput
from muniment.policies.model import nfc

PARTITIONS = 256
#: Members with one company each are numbered from here on, out of the way of those that share the partitions.
FIRST_APART = 256
#: The kinds of Ray actors, and those of them that each have partitions of their own.
Kind = Literal["shard", "ledger", "worker"]
Divided = Literal["shard", "ledger"]
#: What moves: a partition, or a company that lives apart or is to.
Unit = int | str


def partition_of(company: str) -> int:
    """The partition of a company, in [0, 256): the first byte of BLAKE2b over its NFC name in UTF-8.

    Stable for ever: stored data lies where this says.
    """
    return hashlib.blake2b(nfc(company).encode(), digest_size=8, person=b"muniment-company").digest()[0]


def partition_of_key(key_hash: bytes) -> int:
    """The ledger partition of a scoped key, in [0, 256): the first byte of its hash (uniform already)."""
    return key_hash[0]


def assign(shards: int, current: Sequence[int] | None = None, partitions: int = PARTITIONS) -> tuple[int, ...]:
    """The shard (0 … ``shards`` - 1) of every partition, the loads at most one apart.

    Starting from ``current`` as few partitions move as that balance allows; the answer is a function of the arguments
    alone. Raises ``InvalidInput`` where there are no shards or more than partitions.
    """
    if not 1 <= shards <= partitions:
        raise InvalidInput.at("/shards", f"must be between 1 and {partitions}")
    before = list(current) if current is not None else [-1] * partitions
    held = Counter(shard for shard in before if 0 <= shard < shards)
    least, extra = divmod(partitions, shards)
    # Those that hold most keep the odd ones: every other choice would move more.
    fullest = sorted(range(shards), key=lambda shard: (-held[shard], shard))
    room = {shard: least + (place < extra) for place, shard in enumerate(fullest)}
    after = [-1] * partitions
    for partition, shard in enumerate(before):
        if room.get(shard, 0) > 0:
            after[partition] = shard
            room[shard] -= 1
    vacant = iter([shard for shard in range(shards) for _ in range(room[shard])])
    return tuple(shard if shard >= 0 else next(vacant) for shard in after)


def moves(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The partitions whose shard differs between two maps."""
    return [partition for partition, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """Which member has which partition. ``version`` counts its changes.

    ``members``: by partition. ``stamps``: the version at which something of each partition last moved. ``apart``: the
    companies that have a member of their own, and which. ``to_be_apart`` and ``pinned`` are wishes: who is to live
    apart, and who is never unloaded.
    """

    members: tuple[int, ...] = (0,) * PARTITIONS
    apart: Mapping[str, int] = field(default_factory=dict)
    to_be_apart: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    stamps: tuple[int, ...] = (0,) * PARTITIONS
    version: int = 0

    def of_company(self, company: str) -> int:
        """The member that has a company."""
        return self.apart.get(company, self.members[partition_of(company)])

    def of_unit(self, unit: Unit) -> int:
        """The member that has a partition, or a company."""
        return self.of_company(unit) if isinstance(unit, str) else self.members[unit]

    def has(self, unit: Unit, company: str) -> bool:
        """Whether a company moves with the unit."""
        if isinstance(unit, str):
            return company == unit
        return company not in self.apart and partition_of(company) == unit

    def owners(self) -> list[int]:
        """The members that have anything, by number."""
        return sorted({*self.members, *self.apart.values()})

    def moved(self, unit: Unit, to: int) -> PartitionMap:
        """The map after a move. A company that goes to where its partition is lives apart no more."""
        version = self.version + 1
        partition = partition_of(unit) if isinstance(unit, str) else unit
        stamps = _with(self.stamps, partition, version)
        if isinstance(unit, int):
            return replace(self, members=_with(self.members, unit, to), stamps=stamps, version=version)
        apart = {company: member for company, member in self.apart.items() if company != unit}
        if to != self.members[partition]:
            apart[unit] = to
        return replace(self, apart=apart, stamps=stamps, version=version)

    def changed_since(self, before: PartitionMap) -> frozenset[int]:
        """The partitions of which something moved since."""
        pairs = enumerate(zip(self.stamps, before.stamps, strict=True))
        return frozenset(partition for partition, (now, then) in pairs if now != then)


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


@dataclass(frozen=True, slots=True)
class Move:
    """What goes from where to where."""

    unit: Unit
    old: int
    new: int


def pending_moves(current: PartitionMap, members: int) -> list[Move]:
    """What is still to move so that ``members`` share the partitions evenly and who is to live apart does.

    However far a plan was carried out, what this says next finishes it.
    """
    target = assign(members, current.members)
    found = [Move(part, current.members[part], target[part]) for part in moves(current.members, target)]
    taken = set(current.apart.values())
    free = (number for number in count(FIRST_APART) if number not in taken)
    for company in sorted(current.to_be_apart - current.apart.keys()):
        found.append(Move(company, current.of_company(company), next(free)))
    for company in sorted(current.apart.keys() - current.to_be_apart):
        found.append(Move(company, current.apart[company], target[partition_of(company)]))
    return found
