"""Where a tenant or a key lives: 256 fixed partitions by hash, and a stored map from partition to shard.

Changing the number of shards moves whole partitions, never single tenants, and no more of them than balance needs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from muniment.policies.errors import InvalidInput
from muniment.policies.model import nfc

PARTITIONS = 256


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
