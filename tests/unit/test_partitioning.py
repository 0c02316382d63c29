from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.errors import InvalidInput
from muniment.policies.partitioning import PARTITIONS, assign, moves, partition_of, partition_of_key


def test_partitions_never_move():
    """Stored data lies where the hash said: these numbers may not change."""
    assert [partition_of(name) for name in ("acme", "globex", "caf\u00e9")] == [53, 155, 6]
    assert partition_of("cafe\u0301") == partition_of("caf\u00e9")
    assert partition_of_key(bytes([7]) + bytes(31)) == 7


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_company_has_a_partition(company):
    assert 0 <= partition_of(company) < PARTITIONS


def test_partitions_are_used_evenly():
    loads = Counter(partition_of(f"company-{n}") for n in range(PARTITIONS * 40))
    assert len(loads) == PARTITIONS
    assert max(loads.values()) < 80


@given(st.integers(1, 24), st.lists(st.integers(1, 24), max_size=6))
def test_balance_and_the_fewest_moves(first, later):
    current = assign(first, partitions=24)
    for shards in later:
        following = assign(shards, current, partitions=24)
        loads = Counter(following)
        assert set(loads) <= set(range(shards))
        assert max(loads[shard] for shard in range(shards)) - min(loads[shard] for shard in range(shards)) <= 1
        held = sorted((Counter(current)[shard] for shard in range(shards)), reverse=True)
        least, extra = divmod(24, shards)
        kept = sum(min(have, least + (place < extra)) for place, have in enumerate(held))
        assert len(moves(current, following)) == 24 - kept
        assert assign(shards, following, partitions=24) == following
        current = following


def test_the_fewest_moves_by_trying_all():
    """The bound used above, checked against every balanced map of five partitions."""
    for shards in (2, 3, 4):
        maps = [
            found
            for found in product(range(shards), repeat=5)
            if max(map(found.count, range(shards))) - min(map(found.count, range(shards))) <= 1
        ]
        for current in product(range(4), repeat=5):
            best = min(len(moves(current, found)) for found in maps)
            assert len(moves(current, assign(shards, current, partitions=5))) == best


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_an_impossible_number_of_shards(shards):
    with pytest.raises(InvalidInput):
        assign(shards)
