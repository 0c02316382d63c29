"""The checker of histories against all orders, and against histories that it must refuse."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import permutations
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fault.key_model import REFUSED, STALE, Forget, Key, Propose, Settle, step
from tests.fault.linearizability import Call, unexplained

A, B = Propose("a", "s"), Propose("b", "s")
ALLOW_1, PENDING, DUPLICATE_A = ("allow", 1), ("pending",), ("duplicate", "a", "s")
CONFIRM_1, RELEASE_1 = Settle("confirm", 1), Settle("release", 1)


def one_after_the_other(*pairs: tuple[Any, Any]) -> list[Call]:
    return [Call(asked, answer, 2 * i, inf if answer is None else 2 * i + 1) for i, (asked, answer) in enumerate(pairs)]


EXPLAINED = {
    "a cycle": one_after_the_other((A, ALLOW_1), (B, PENDING), (CONFIRM_1, ("confirmed",)), (B, DUPLICATE_A)),
    "asked again": one_after_the_other((A, ALLOW_1), (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (A, DUPLICATE_A)),
    "released, and taken": one_after_the_other(
        (A, ALLOW_1), (RELEASE_1, ("released",)), (B, ("allow", 2)), (CONFIRM_1, STALE)
    ),
    "at once, either way": [Call(A, PENDING, 0, 3), Call(B, ALLOW_1, 1, 2)],
    "a lost proposal that happened": one_after_the_other((A, None), (B, PENDING), (A, ALLOW_1)),
    "a lost proposal that never happened": one_after_the_other((A, None), (B, ALLOW_1)),
    "a lost confirmation that happened late": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, None), (B, PENDING), (B, DUPLICATE_A)
    ),
    "taken back": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (Forget("f"), None), (Forget("f"), ("forgotten",)), (B, ("allow", 2))
    ),
}
REFUSED_HISTORIES = {
    "two holders": one_after_the_other((A, ALLOW_1), (B, ("allow", 2))),
    "two holders, at once": [Call(A, ALLOW_1, 0, 3), Call(B, ("allow", 2), 1, 2)],
    "given out after it was confirmed": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (B, ("allow", 2))
    ),
    "a confirmation that was lost": one_after_the_other((A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (A, ALLOW_1)),
    "an origin that was not": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (B, ("duplicate", "b", "s"))
    ),
    "a duplicate of nothing": one_after_the_other((A, ALLOW_1), (B, DUPLICATE_A)),
    "held by nobody": one_after_the_other((A, ALLOW_1), (RELEASE_1, ("released",)), (B, PENDING)),
    "a number that went back": one_after_the_other(
        (A, ("allow", 2)), (Settle("release", 2), ("released",)), (B, ALLOW_1)
    ),
    "a stale token that confirmed": one_after_the_other(
        (A, ALLOW_1), (RELEASE_1, ("released",)), (B, ("allow", 2)), (CONFIRM_1, ("confirmed",))
    ),
    "an answer from before its question": [Call(A, PENDING, 0, 1), Call(B, ALLOW_1, 2, 3)],
    "a lost call from before its beginning": one_after_the_other((B, PENDING), (A, None)),
    "a lost call that happened, and had not": one_after_the_other((A, None), (B, PENDING), (B, ALLOW_1)),
    "confirmed again after it was taken back": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (Forget("f"), ("forgotten",)), (CONFIRM_1, ("confirmed",))
    ),
    "taken back, and never confirmed": one_after_the_other((A, ALLOW_1), (Forget("f"), ("forgotten",))),
    "not taken back, though confirmed": one_after_the_other(
        (A, ALLOW_1), (CONFIRM_1, ("confirmed",)), (Forget("f"), REFUSED)
    ),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_a_ledger_may_do_is_explained(name: str) -> None:
    assert unexplained(EXPLAINED[name], Key(), step) is None


@pytest.mark.parametrize("name", REFUSED_HISTORIES)
def test_what_a_ledger_may_never_do_is_refused(name: str) -> None:
    assert unexplained(REFUSED_HISTORIES[name], Key(), step)


def register(value: int, asked: tuple[str, int], answer: Any) -> Iterable[int]:
    verb, written = asked
    if verb == "write":
        return [written]
    return [value] if answer in (None, value) else []


def explained_by_brute_force(history: list[Call]) -> bool:
    """Every order of every choice of lost calls."""
    lost = [call for call in history if call.ended == inf]
    answered = [call for call in history if call.ended < inf]
    for chosen in range(1 << len(lost)):
        calls = answered + [call for i, call in enumerate(lost) if chosen >> i & 1]
        for order in permutations(calls):
            if any(later.ended < earlier.began for i, earlier in enumerate(order) for later in order[i:]):
                continue
            value, fits = 0, True
            for call in order:
                following = list(register(value, call.asked, call.answer))
                if not following:
                    fits = False
                    break
                value = following[0]
            if fits:
                return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    count = draw(st.integers(1, 5))
    moments = draw(st.permutations(range(2 * count)))
    calls = []
    for i in range(count):
        began, ended = sorted(moments[2 * i : 2 * i + 2])
        asked = (draw(st.sampled_from(["read", "write"])), draw(st.integers(0, 2)))
        answer = draw(st.integers(0, 2)) if asked[0] == "read" else "written"
        calls.append(Call(asked, None, began) if draw(st.booleans()) else Call(asked, answer, began, ended))
    return calls


@given(histories())
def test_it_agrees_with_trying_every_order(history: list[Call]) -> None:
    assert (unexplained(history, 0, register) is None) == explained_by_brute_force(history)


class Forgetful:
    """A ledger of one key that keeps nothing: a restart forgets who holds it, and what was confirmed."""

    def __init__(self) -> None:
        self.key, self.number = Key(), 0

    def answer(self, asked: Any) -> Any:
        if isinstance(asked, Propose) and self.key.state != "reserved":
            self.number += 1
        for answer in (
            ALLOW_1,
            ("allow", self.number),
            PENDING,
            ("duplicate", self.key.run, self.key.step),
            STALE,
            ("confirmed",),
            ("released",),
            ("reserved",),
        ):
            for key in step(self.key, asked, answer):
                self.key = key
                return answer
        raise AssertionError(asked)

    def restart(self) -> None:
        self.key = Key()


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_ledger_that_forgets_is_found_out(restarts: int) -> None:
    """Many runs try for one key, confirm and try again; only the ledger that never restarts is explained."""
    ledger, clock, chance = Forgetful(), 0, random.Random(1)
    history, confirmed = [], 0
    for turn in range(40):
        asked: Any = Propose(chance.choice("abc"), "s")
        answer = ledger.answer(asked)
        history.append(Call(asked, answer, clock, clock + 1))
        clock += 2
        if answer[0] == "allow":
            asked = Settle(chance.choice(["confirm", "release", "renew"]), answer[1])
            history.append(Call(asked, ledger.answer(asked), clock, clock + 1))
            confirmed += asked.verb == "confirm"
            clock += 2
        if turn == 20 and restarts:
            ledger.restart()
    assert confirmed
    assert (unexplained(history, Key(), step) is None) == (restarts == 0)
