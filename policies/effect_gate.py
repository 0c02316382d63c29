"""The effect gate: the verdict of one proposed effect, from the duplicate state that was resolved first (seed 001).

No effect passes the gate by. A duplicate is its own verdict, neither a block nor an allow, and carries what policy
alone would have said, so that a trail can show it without pretending that policy allowed anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from muniment.policies.fingerprint import KeyPath

MICROSECONDS = 1_000_000


class Verdict(StrEnum):
    """What the gate says. ``error`` stands in trails only: the caller got a precise error."""

    ALLOW = "allow"
    BLOCK = "block"
    DUPLICATE = "duplicate"
    PENDING = "pending"
    ERROR = "error"


class Reason(StrEnum):
    """Why, as a stable word."""

    UNCLASSIFIED = "unclassified"
    WINDOW_OFF = "window_off"
    RESERVED = "reserved"
    ALREADY_RESERVED = "already_reserved"
    CONFIRMED = "confirmed"
    OWN_STEP_CONFIRMED = "own_step_confirmed"
    HELD_BY_ANOTHER_RUN = "held_by_another_run"
    HELD_BY_ANOTHER_STEP = "held_by_another_step"
    TOOL_BLOCKED = "tool_blocked"
    RUN_TAINTED = "run_tainted"
    MISSING_KEY_PATH = "missing_key_path"
    INVALID_KEY_VALUE = "invalid_key_value"
    MAY_HAVE_HAPPENED_TWICE = "may_have_happened_twice"


class KeyState(StrEnum):
    """The duplicate state of a proposal, as the ledger resolved it before the gate."""

    NO_KEY = "no_key"
    INVALID = "invalid"
    FREE = "free"
    HELD_BY_THIS_STEP = "held_by_this_step"
    HELD_BY_ANOTHER_STEP = "held_by_another_step"
    HELD_BY_ANOTHER_RUN = "held_by_another_run"
    DONE = "done"
    DONE_BY_THIS_STEP = "done_by_this_step"


@dataclass(frozen=True, slots=True)
class Window:
    """How long a confirmed effect counts as done. ``seconds`` > 0, or ``permanent``, or neither: off."""

    seconds: float | None = None
    permanent: bool = False

    @property
    def off(self) -> bool:
        """Whether duplicates of the tool are not recognised at all."""
        return self.seconds is None and not self.permanent

    @property
    def microseconds(self) -> int | None:
        """Its length, None for permanent. Meaningless when off."""
        return None if self.seconds is None else max(1, round(self.seconds * MICROSECONDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolClassification:
    """What a curator wrote about a tool of a company. ``lease_seconds`` ≥ 1; ``version`` counts the changes from 1.

    A change holds for proposals from then on. What is confirmed keeps the window it was reserved with. Keys made under
    other paths stay in the store as they are: new proposals do not meet them, and meet them again, while their window
    lasts, if the old paths are put back. A key depends on the set of paths, not on their order.
    """

    company: str
    tool: str
    key_paths: tuple[KeyPath, ...]
    window: Window
    version: int
    lease_seconds: float = 60
    max_duplicates_per_run: int = 3
    blocked: bool = False
    block_when_tainted: bool = False

    @property
    def has_key(self) -> bool:
        """Whether calls of the tool have a semantic key."""
        return not self.window.off


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The verdict and why. ``policy`` is what policy alone would have said, given with a duplicate only."""

    verdict: Verdict
    reason: Reason
    policy: Verdict | None = None


def block_reason(classification: ToolClassification | None, tainted: bool) -> Reason | None:
    """Why policy alone blocks the call, or None where it allows it."""
    if classification is None:
        return None
    if classification.blocked:
        return Reason.TOOL_BLOCKED
    if tainted and classification.block_when_tainted:
        return Reason.RUN_TAINTED
    return None


_BY_STATE: dict[KeyState, GateDecision] = {
    KeyState.FREE: GateDecision(Verdict.ALLOW, Reason.RESERVED),
    KeyState.HELD_BY_THIS_STEP: GateDecision(Verdict.ALLOW, Reason.ALREADY_RESERVED),
    KeyState.HELD_BY_ANOTHER_STEP: GateDecision(Verdict.PENDING, Reason.HELD_BY_ANOTHER_STEP),
    KeyState.HELD_BY_ANOTHER_RUN: GateDecision(Verdict.PENDING, Reason.HELD_BY_ANOTHER_RUN),
}
_DUPLICATES: dict[KeyState, Reason] = {
    KeyState.DONE: Reason.CONFIRMED,
    KeyState.DONE_BY_THIS_STEP: Reason.OWN_STEP_CONFIRMED,
}


def decide(key_state: KeyState, blocked: Reason | None, no_key: Reason = Reason.UNCLASSIFIED) -> GateDecision:
    """The verdict for ``key_state``, where policy alone blocks for the reason ``blocked`` (None: it allows).

    In this order: an invalid key is an error, a finished effect is a duplicate (also of a blocked call), policy blocks,
    and the rest follows from the reservation. ``no_key``: why the call has no key, or what is wrong with it.
    """
    if key_state is KeyState.INVALID:
        return GateDecision(Verdict.ERROR, no_key)
    if key_state in _DUPLICATES:
        policy = Verdict.ALLOW if blocked is None else Verdict.BLOCK
        return GateDecision(Verdict.DUPLICATE, _DUPLICATES[key_state], policy)
    if blocked is not None:
        return GateDecision(Verdict.BLOCK, blocked)
    if key_state is KeyState.NO_KEY:
        return GateDecision(Verdict.ALLOW, no_key)
    return _BY_STATE[key_state]
