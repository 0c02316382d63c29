from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.calibration import Observations, choose, perturb, trade
from muniment.policies.errors import InvalidInput

QUERIES = st.lists(
    st.tuples(st.floats(-1, 1), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=40,
)


def observations(rows: list[tuple[float, bool, float, float]]) -> Observations:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Observations(columns[0].astype(float), columns[1].astype(bool), columns[2], columns[3])


@given(QUERIES)
def test_a_higher_threshold_searches_more(rows: list[tuple[float, bool, float, float]]) -> None:
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
    rows: list[tuple[float, bool, float, float]], tolerance: float
) -> None:
    points = trade(observations(rows))
    chosen = choose(points, tolerance)
    above = [point for point in points if point.threshold >= chosen.threshold]
    assert all(point.recall_lost <= tolerance for point in above) or chosen == points[-1]
    lower = [point for point in points if point.threshold < chosen.threshold]
    assert not lower or lower[-1].recall_lost > tolerance


def test_the_threshold_parts_what_l1_knows_from_what_it_does_not() -> None:
    rows = [(0.9, True, 1.0, 1.0)] * 50 + [(0.6, True, 0.0, 1.0)] * 50 + [(0.95, False, 0.0, 1.0)] * 5
    chosen = choose(trade(observations(rows)))
    assert 0.6 < chosen.threshold <= 0.61
    assert chosen.searches_l2 == pytest.approx(55 / 105)
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


def test_nothing_to_calibrate_with_is_an_error() -> None:
    empty = np.array([], float)
    with pytest.raises(InvalidInput):
        trade(Observations(empty, empty.astype(bool), empty, empty))
