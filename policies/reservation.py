"""The life of a reservation, as a literal table: what is not in it is illegal, raises, and changes nothing (seed 001).

``pendente`` of the seed is ``reserved`` here. A lease that ends lapses at that instant, whether or not anybody looks.
"""

from __future__ import annotations

from enum import StrEnum

from muniment.policies.errors import IllegalTransition


class State(StrEnum):
    """What a key is now; a key nobody ever proposed has none (``None`` in the table)."""

    RESERVED = "reserved"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    LAPSED = "lapsed"


class Event(StrEnum):
    """What can happen to a key. All but ``lapse`` and ``reopen`` are asked for; those two are the clock's."""

    RESERVE = "reserve"
    REOPEN = "reopen"  # reserve once the window of a confirmed effect has ended
    RENEW = "renew"
    CONFIRM = "confirm"
    RELEASE = "release"
    LAPSE = "lapse"
    FORGET = "forget"
    IMPORT = "import"


TRANSITIONS: dict[tuple[State | None, Event], State] = {
    (None, Event.RESERVE): State.RESERVED,
    (State.RELEASED, Event.RESERVE): State.RESERVED,
    (State.LAPSED, Event.RESERVE): State.RESERVED,
    (State.CONFIRMED, Event.REOPEN): State.RESERVED,
    (State.RESERVED, Event.RENEW): State.RESERVED,
    # Confirmed only after the tool returned success; a late confirmation is better than a second effect.
    (State.RESERVED, Event.CONFIRM): State.CONFIRMED,
    (State.LAPSED, Event.CONFIRM): State.CONFIRMED,
    (State.CONFIRMED, Event.CONFIRM): State.CONFIRMED,
    # The tool failed: the next proposer may go at once.
    (State.RESERVED, Event.RELEASE): State.RELEASED,
    (State.LAPSED, Event.RELEASE): State.RELEASED,
    (State.RELEASED, Event.RELEASE): State.RELEASED,
    # A lost confirmation: a retry is preferred to a false "done".
    (State.RESERVED, Event.LAPSE): State.LAPSED,
    # One wrong permanent confirmation must not block for ever.
    (State.CONFIRMED, Event.FORGET): State.RELEASED,
    (None, Event.IMPORT): State.CONFIRMED,
    (State.RELEASED, Event.IMPORT): State.CONFIRMED,
    (State.LAPSED, Event.IMPORT): State.CONFIRMED,
}


def move(state: State | None, event: Event) -> State:
    """The state after ``event``. Raises ``IllegalTransition`` where the table has no row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        name = state.value if state else "free"
        raise IllegalTransition(f"{event.value} is not possible: the key is {name}", state=name) from None


def settled(state: State | None, ends_at: int | None, now: int) -> State | None:
    """The state once the clock has been looked at: a reservation whose lease ends at or before ``now`` has lapsed.

    ``ends_at`` and ``now`` in microseconds since the epoch.
    """
    if state is State.RESERVED and ends_at is not None and ends_at <= now:
        return move(state, Event.LAPSE)
    return state


def counts_as_done(state: State | None, ends_at: int | None, now: int) -> bool:
    """Whether the effect counts as already done: confirmed, and its window (``ends_at``; None: never) is open."""
    return state is State.CONFIRMED and (ends_at is None or now < ends_at)
