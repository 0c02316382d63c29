from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.errors import InvalidInput
from muniment.policies.partitioning import (
    FIRST_APART,
    PARTITIONS,
    PartitionMap,
    assign,
    moves,
    partition_of,
    partition_of_key,
    pending_moves,
)


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


def carried_out(current, members):
    """Carries plans out, each from its beginning, as a mover does that is interrupted after every move."""
    count = 0
    while pending := pending_moves(current, members):
        move = pending[0]
        assert current.of_unit(move.unit) == move.old != move.new
        after = current.moved(move.unit, move.new)
        assert after.of_unit(move.unit) == move.new
        assert len(pending_moves(after, members)) == len(pending) - 1
        assert len(after.changed_since(current)) == 1
        current, count = after, count + 1
    return current, count


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_a_plan_can_be_taken_up_anywhere_and_moves_no_more_for_it(sizes):
    current = PartitionMap()
    for members in sizes:
        least = len(moves(current.members, assign(members, current.members)))
        current, count = carried_out(current, members)
        assert count == least
        loads = Counter(current.members)
        assert set(loads) == set(range(members))
        assert max(loads.values()) - min(loads.values()) <= 1


@given(st.integers(1, 8), st.integers(1, 8), st.sets(st.sampled_from(["acme", "globex", "initech"])))
def test_a_company_that_lives_apart_stays_there_whatever_its_partition_does(first, second, companies):
    current, _ = carried_out(PartitionMap(to_be_apart=frozenset(companies)), first)
    homes = {company: current.of_company(company) for company in companies}
    assert len(set(homes.values())) == len(companies)
    assert all(home >= FIRST_APART for home in homes.values())
    current, _ = carried_out(current, second)
    assert {company: current.of_company(company) for company in companies} == homes
    assert set(current.owners()) == {*range(second), *homes.values()}
    for company in companies:
        assert current.has(company, company)
        assert not current.has(partition_of(company), company)
    together, _ = carried_out(replace(current, to_be_apart=frozenset()), second)
    assert together.apart == {}
    for company in companies:
        assert together.of_company(company) == together.members[partition_of(company)]
