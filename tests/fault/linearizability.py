"""Is a recorded history linearizable? An exhaustive search for an order that explains it, for short histories.

Each call must seem to happen at one moment between its beginning and its end (Herlihy and Wing, Linearizability: A
Correctness Condition for Concurrent Objects, TOPLAS 1990). The search is the one of Wing and Gong (Testing and
Verifying Concurrent Objects, JPDC 1993): of the calls that no unplaced call preceded, place one that the object would
have answered like that, and go on. What was placed and the object's state together are visited once (Lowe, Testing for
linearizability, CCPE 2017). A call whose answer was lost may have happened at any moment after its beginning, or not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

State = TypeVar("State", bound=Hashable)
#: The states that an object may be in after a call that was answered like that: none where it would not have answered
#: so. Arguments: the state before, what was asked, the answer; None: the answer is not known.
Step = Callable[[State, Any, Any], Iterable[State]]


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked and answered. ``began`` and ``ended`` count events; without an end the answer was lost."""

    asked: Any
    answer: Any
    began: int
    ended: float = inf

    def __post_init__(self) -> None:
        if not self.began < self.ended or (self.ended == inf) != (self.answer is None):
            raise ValueError(f"a call ends after it began, and exactly then has an answer: {self}")


def unexplained(history: Sequence[Call], start: State, step: Step[State]) -> list[Call] | None:
    """None where the calls of one object are linearizable; else those that no order reached beyond the others.

    ``start``: the object's state before all of them.
    """
    calls = sorted(history, key=lambda call: call.began)
    answered = sum(1 << i for i, call in enumerate(calls) if call.ended < inf)
    visited = {(0, start)}
    waiting = [(0, start)]
    furthest = 0
    while waiting:
        placed, state = waiting.pop()
        if placed & answered == answered:
            return None
        if (placed & answered).bit_count() > furthest.bit_count():
            furthest = placed & answered
        left = [(i, call) for i, call in enumerate(calls) if not placed >> i & 1]
        first_end = min(call.ended for _, call in left)
        for i, call in left:
            if call.began > first_end:
                break
            for following in step(state, call.asked, call.answer):
                reached = (placed | 1 << i, following)
                # A lost call that changes nothing might as well have been lost before it happened.
                if reached not in visited and (call.ended < inf or following != state):
                    visited.add(reached)
                    waiting.append(reached)
    return [call for i, call in enumerate(calls) if answered >> i & 1 and not furthest >> i & 1]
