from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.calibration import FEWEST_TELLING, Observation, choose, perturb, trade
from muniment.policies.errors import InvalidInput

QUERIES = st.lists(st.tuples(st.floats(-1, 1), st.booleans(), st.booleans(), st.booleans()), max_size=40)
#: So many queries that only L2 answers, at the similarity of which nothing depends on the threshold.
TELLING = [(-1.0, True, False, True)] * FEWEST_TELLING


def observations(rows: list[tuple[float, bool, bool, bool]]) -> list[Observation]:
    return [Observation(top_similarity=t, covered=c, in_l1=one, in_both=both) for t, c, one, both in [*rows, *TELLING]]


@given(QUERIES)
def test_a_higher_threshold_searches_more(rows: list[tuple[float, bool, bool, bool]]) -> None:
    points = trade(observations(rows))
    shares = [point.searches_l2 for point in points]
    assert shares == sorted(shares)
    assert points[0].threshold == 0
    assert points[-1].threshold == 1
    assert all(
        point.recall + point.recall_lost == pytest.approx(points[0].recall + points[0].recall_lost) for point in points
    )


@given(QUERIES, st.floats(0, 1))
def test_the_choice_is_the_lowest_that_is_good_enough(
    rows: list[tuple[float, bool, bool, bool]], tolerance: float
) -> None:
    points = trade(observations(rows))
    chosen = choose(points, tolerance)
    above = [point for point in points if point.threshold >= chosen.threshold]
    assert all(point.recall_lost <= tolerance for point in above) or chosen == points[-1]
    lower = [point for point in points if point.threshold < chosen.threshold]
    assert not lower or lower[-1].recall_lost > tolerance


def test_the_threshold_parts_what_l1_knows_from_what_it_does_not() -> None:
    rows = [(0.9, True, True, True)] * 50 + [(0.6, True, False, True)] * 50 + [(0.95, False, False, True)] * 5
    chosen = choose(trade(observations(rows)))
    assert 0.6 < chosen.threshold <= 0.61
    assert chosen.searches_l2 == pytest.approx((55 + FEWEST_TELLING) / (105 + FEWEST_TELLING))
    assert chosen.recall == 1


def test_a_query_is_made_of_a_facts_words_in_order() -> None:
    text = "the pump in hall seven leaks since monday morning"
    query = perturb(text, random.Random(7))
    assert query is not None
    words = iter(text.split())
    assert all(word in words for word in query.split())
    assert 0 < len(query.split()) < len(text.split())
    assert query == perturb(text, random.Random(7))
    assert perturb("two words", random.Random(7)) is None


def test_too_little_to_tell_is_an_error() -> None:
    found = observations([(0.9, True, True, True)] * 100)
    assert trade(found)
    with pytest.raises(InvalidInput, match="for 19 of 119 queries"):
        trade(found[:-1])
    with pytest.raises(InvalidInput, match="for 0 of 0 queries"):
        trade([])
    with pytest.raises(
        InvalidInput, match="for 0 of 100 queries"
    ):  # what they name is not in L1: L2 is searched anyhow
        trade(observations([(0.5, False, False, True)] * 100)[: -len(TELLING)])
