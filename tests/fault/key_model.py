"""One key of the dedupe ledger as a sequential object: what each operation may be answered (rule 7), leases aside.

It is written from the rules, not from the ledger: a key is free, reserved by one run and step, or confirmed by them;
each reservation has a number above all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

FREE, RESERVED, CONFIRMED, RELEASED = "free", "reserved", "confirmed", "released"
STALE = ("stale",)
REFUSED = ("refused",)


class Propose(NamedTuple):
    """Answers: ``("allow", number)``, ``("pending",)``, ``("duplicate", run, step)``."""

    run: str
    step: str


class Settle(NamedTuple):
    """``verb``: confirm, release, renew. Answers: ``(state,)`` or ``STALE``."""

    verb: str
    number: int


class Forget(NamedTuple):
    """``id``: of the decision, the same when it is sent again. Answers: ``("forgotten",)`` or ``REFUSED``."""

    id: str


class Key(NamedTuple):
    """``number``: of the reservation, None where nobody was told it, 0 where it proves nothing any more.

    ``highest``: the last number that anybody was told. ``forgotten``: the decisions that took a confirmation back.
    """

    state: str = FREE
    run: str = ""
    step: str = ""
    number: int | None = 0
    highest: int = 0
    forgotten: frozenset[str] = frozenset()


def step(key: Key, asked: Any, answer: Any) -> Iterable[Key]:
    """See ``linearizability.Step``."""
    if isinstance(asked, Propose):
        return _propose(key, asked, answer)
    if isinstance(asked, Settle):
        return _settle(key, asked, answer)
    return _forget(key, asked, answer)


def _propose(key: Key, asked: Propose, answer: Any) -> Iterable[Key]:
    if key.state == CONFIRMED:
        return [key] if answer in (None, ("duplicate", key.run, key.step)) else []
    if key.state == RESERVED and (key.run, key.step) != asked:
        return [key] if answer in (None, ("pending",)) else []
    if answer is None:
        return (
            [key]
            if key.state == RESERVED
            else [key._replace(state=RESERVED, run=asked.run, step=asked.step, number=None)]
        )
    if answer[0] != "allow":
        return []
    number = answer[1]
    if key.state == RESERVED and key.number is not None:
        return [key] if number == key.number else []
    if number <= key.highest:
        return []
    return [key._replace(state=RESERVED, run=asked.run, step=asked.step, number=number, highest=number)]


def _settle(key: Key, asked: Settle, answer: Any) -> Iterable[Key]:
    allowed = {
        "confirm": {RESERVED: CONFIRMED, CONFIRMED: CONFIRMED},
        "release": {RESERVED: RELEASED, RELEASED: RELEASED},
        "renew": {RESERVED: RESERVED},
    }
    state = allowed[asked.verb].get(key.state) if key.number == asked.number else None
    if state is None:
        return [key] if answer in (None, STALE) else []
    return [key._replace(state=state)] if answer in (None, (state,)) else []


def _forget(key: Key, asked: Forget, answer: Any) -> Iterable[Key]:
    if asked.id in key.forgotten:
        return [key] if answer in (None, ("forgotten",)) else []
    if key.state != CONFIRMED:
        return [key] if answer in (None, REFUSED) else []
    # What was taken back cannot be confirmed again with the old number.
    free = key._replace(state=RELEASED, number=0, forgotten=key.forgotten | {asked.id})
    return [free] if answer in (None, ("forgotten",)) else []
