"""The gate's verdict for every duplicate state and every policy answer."""

from __future__ import annotations

import pytest

from muniment.policies.effect_gate import (
    GateDecision,
    KeyState,
    Reason,
    ToolClassification,
    Verdict,
    Window,
    block_reason,
    decide,
)
from muniment.policies.fingerprint import parse_key_paths

EXPECTED = {
    KeyState.NO_KEY: ("allow", "unclassified"),
    KeyState.FREE: ("allow", "reserved"),
    KeyState.HELD_BY_THIS_STEP: ("allow", "already_reserved"),
    KeyState.HELD_BY_ANOTHER_STEP: ("pending", "held_by_another_step"),
    KeyState.HELD_BY_ANOTHER_RUN: ("pending", "held_by_another_run"),
    KeyState.DONE: ("duplicate", "confirmed"),
    KeyState.DONE_BY_THIS_STEP: ("duplicate", "own_step_confirmed"),
    KeyState.INVALID: ("error", "unclassified"),
}


@pytest.mark.parametrize("state", KeyState)
def test_verdicts_where_policy_allows(state: KeyState) -> None:
    verdict, reason = EXPECTED[state]
    policy = Verdict.ALLOW if verdict == "duplicate" else None
    assert decide(state, None) == GateDecision(Verdict(verdict), Reason(reason), policy)


@pytest.mark.parametrize("state", KeyState)
@pytest.mark.parametrize("why", [Reason.TOOL_BLOCKED, Reason.RUN_TAINTED])
def test_verdicts_where_policy_blocks(state: KeyState, why: Reason) -> None:
    decision = decide(state, why)
    if state in (KeyState.DONE, KeyState.DONE_BY_THIS_STEP):
        assert (decision.verdict, decision.policy) == (Verdict.DUPLICATE, Verdict.BLOCK)
    elif state is KeyState.INVALID:
        assert decision.verdict is Verdict.ERROR
    else:
        assert decision == GateDecision(Verdict.BLOCK, why)


def test_why_a_call_has_no_key() -> None:
    assert decide(KeyState.NO_KEY, None, Reason.WINDOW_OFF).reason is Reason.WINDOW_OFF
    assert decide(KeyState.INVALID, None, Reason.MISSING_KEY_PATH).reason is Reason.MISSING_KEY_PATH


def classification(**changes: bool) -> ToolClassification:
    return ToolClassification(
        company="acme", tool="mail", key_paths=parse_key_paths(["/to"]), window=Window(60), version=1, **changes
    )


def test_policy_alone() -> None:
    assert block_reason(None, tainted=True) is None
    assert block_reason(classification(), tainted=True) is None
    assert block_reason(classification(block_when_tainted=True), tainted=False) is None
    assert block_reason(classification(block_when_tainted=True), tainted=True) is Reason.RUN_TAINTED
    assert block_reason(classification(blocked=True, block_when_tainted=True), tainted=True) is Reason.TOOL_BLOCKED


def test_windows() -> None:
    assert Window().off
    assert not Window(1.5).off
    assert Window(1.5).microseconds == 1_500_000
    assert not Window(permanent=True).off
    assert Window(permanent=True).microseconds is None
