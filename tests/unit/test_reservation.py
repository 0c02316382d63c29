"""The reservation table: every pair of state and event, so that a change of the table is a change of this test."""

from __future__ import annotations

import itertools

import pytest

from muniment.policies.errors import IllegalTransition
from muniment.policies.reservation import TRANSITIONS, Event, State, counts_as_done, move, settled

LEGAL = {
    "free": {"reserve": "reserved", "import": "confirmed"},
    "reserved": {"renew": "reserved", "confirm": "confirmed", "release": "released", "lapse": "lapsed"},
    "confirmed": {"confirm": "confirmed", "reopen": "reserved", "forget": "released"},
    "released": {"reserve": "reserved", "release": "released", "import": "confirmed"},
    "lapsed": {"reserve": "reserved", "confirm": "confirmed", "release": "released", "import": "confirmed"},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product([None, *State], Event)))
def test_the_table(state: State | None, event: Event) -> None:
    before = dict(TRANSITIONS)
    expected = LEGAL[state or "free"].get(event)
    if expected is None:
        with pytest.raises(IllegalTransition) as caught:
            move(state, event)
        assert caught.value.fields == {"state": state or "free"}
    else:
        assert move(state, event) is State(expected)
    assert before == TRANSITIONS


def test_a_lease_ends_at_its_instant() -> None:
    assert settled(State.RESERVED, 100, 99) is State.RESERVED
    assert settled(State.RESERVED, 100, 100) is State.LAPSED
    assert settled(State.CONFIRMED, 100, 200) is State.CONFIRMED
    assert settled(None, None, 200) is None


def test_a_window_ends_at_its_instant_and_a_permanent_one_never() -> None:
    assert counts_as_done(State.CONFIRMED, 100, 99)
    assert not counts_as_done(State.CONFIRMED, 100, 100)
    assert counts_as_done(State.CONFIRMED, None, 2**62)
    assert not counts_as_done(State.RESERVED, None, 0)
