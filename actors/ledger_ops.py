"""What a ledger is asked and what it answers, as flat tuples, because they are packed and read so often.

Times and durations are whole microseconds (since the epoch, UTC). An operation travels as ``[its number, *fields]``; an
answer as its fields, as None (the key is held by another run: wait for it), or as an error's map.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgpack

from muniment.actors.wire import Packers
from muniment.policies.errors import InvalidInput, MunimentError
from muniment.policies.fingerprint import KEY_BYTES, key_partition, route_partition

NONCE_BYTES = 8
_FENCE_BYTES = 8
_TOKEN_BYTES = KEY_BYTES + _FENCE_BYTES + NONCE_BYTES


class Token(NamedTuple):
    """The proof of one reservation: its key, its fencing number (it grows with each reservation), and a secret."""

    key: bytes
    fence: int
    nonce: bytes

    def encode(self) -> str:
        """The token as text."""
        return base64.urlsafe_b64encode(self.key + self.fence.to_bytes(_FENCE_BYTES, "big") + self.nonce).decode()

    @classmethod
    def parse(cls, text: str) -> Token:
        """The token that ``encode`` wrote. Raises ``InvalidInput`` at ``/token``."""
        try:
            data = base64.urlsafe_b64decode(text)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput.at("/token", "this is no token") from error
        if len(data) != _TOKEN_BYTES or base64.urlsafe_b64encode(data).decode() != text:
            raise InvalidInput.at("/token", "this is no token")
        fence = int.from_bytes(data[KEY_BYTES : KEY_BYTES + _FENCE_BYTES], "big")
        return cls(data[:KEY_BYTES], fence, data[KEY_BYTES + _FENCE_BYTES :])


class Propose(NamedTuple):
    """Try to get a key, and record the verdict. It never waits.

    ``key`` is empty where the call has none; ``no_key`` then says why. ``blocked``: why policy alone blocks, or None.
    ``waits``: the caller would wait for another run, so that meeting one is not yet a verdict and is not recorded.
    ``again``: sent before, with an unknown outcome; a verdict that was recorded then is not recorded or counted twice.
    """

    key: bytes
    company: str
    area: str
    agent: str
    tool: str
    run_id: str
    step_id: str
    actor: str
    decision_id: str
    agent_version: str | None = None
    tainted: bool = False
    blocked: str | None = None
    no_key: str = "unclassified"
    window: int | None = None
    lease: int = 60_000_000
    max_duplicates: int = 3
    policy_version: int = 0
    waits: bool = False
    again: bool = False


class Confirm(NamedTuple):
    """The tool returned success. ``area``, ``agent``: those that the caller's key is bound to; None: any."""

    company: str
    key: bytes
    fence: int
    nonce: bytes
    actor: str
    reason: str | None = None
    result_ref: str | None = None
    area: str | None = None
    agent: str | None = None


class Renew(NamedTuple):
    """The tool is still running: the lease begins anew. ``area``, ``agent``: as in ``Confirm``."""

    company: str
    key: bytes
    fence: int
    nonce: bytes
    actor: str
    reason: str | None = None
    result_ref: str | None = None
    area: str | None = None
    agent: str | None = None


class Release(NamedTuple):
    """The tool failed. With ``claim``, only if the reservation was last handed out by that decision.

    ``area``, ``agent``: as in ``Confirm``.
    """

    company: str
    key: bytes
    fence: int
    nonce: bytes
    actor: str
    reason: str | None = None
    result_ref: str | None = None
    area: str | None = None
    agent: str | None = None
    claim: str | None = None


class Forget(NamedTuple):
    """A curator takes back a confirmation."""

    key: bytes
    company: str
    area: str
    agent: str
    tool: str
    actor: str
    reason: str
    decision_id: str
    again: bool = False


class Import(NamedTuple):
    """A confirmed key of an older system; what is unknown of its origin is None.

    The window runs from ``confirmed_at``, where that is unknown from now.
    """

    key: bytes
    company: str
    area: str
    agent: str
    tool: str
    actor: str
    decision_id: str
    window: int | None
    run_id: str | None = None
    step_id: str | None = None
    confirmed_at: int | None = None
    policy_version: int = 0


class Erase(NamedTuple):
    """Delete a slice of all that is stored of a company."""

    company: str
    limit: int


Op = Propose | Confirm | Renew | Release | Forget | Import | Erase
_KINDS: tuple[type[Op], ...] = (Propose, Confirm, Renew, Release, Forget, Import, Erase)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


class Proposed(NamedTuple):
    """The verdict. ``token`` and ``expires_at`` with allow of a keyed call; the origin's fields as far as known."""

    verdict: str
    reason: str
    decision_id: str
    duplicates: int
    stop: bool
    token: str | None = None
    expires_at: int | None = None
    origin_run: str | None = None
    origin_step: str | None = None
    confirmed_at: int | None = None
    policy: str | None = None


class Settled(NamedTuple):
    """What a reservation is now."""

    state: str
    late: bool = False
    confirmed_at: int | None = None
    expires_at: int | None = None


class Forgotten(NamedTuple):
    """The decision that forgot the key."""

    decision_id: str


class Imported(NamedTuple):
    """``imported``, ``already_confirmed``, ``reserved`` (a run holds it: not imported) or ``window_ended``."""

    outcome: str


class Erased(NamedTuple):
    """How many rows went. All 0: nothing is left."""

    effects: int
    decisions: int
    repeats: int


Answer = Proposed | Settled | Forgotten | Imported | Erased
#: None: the key is held by another run, and the caller said it would wait.
Result = Answer | MunimentError | None
A = TypeVar("A", bound=Answer)
_packers = Packers()


def partition_of(op: Op) -> int | None:
    """The partition whose ledger decides about an operation; None: any."""
    if isinstance(op, Erase):
        return None
    if op.key:
        return key_partition(op.key)
    return route_partition(op.company, op.run_id) if isinstance(op, Propose) else None


def pack_op(op: Op, carrier: Mapping[str, str] | None = None) -> bytes:
    """One operation and the caller's span, packed alone, so that their size is known before they join a batch."""
    packer = _packers.get()
    packed: bytes = packer.pack((_NUMBERS[type(op)], *op)) + packer.pack(carrier or None)
    return packed


def join_ops(packed: Sequence[bytes]) -> bytes:
    """A batch of packed operations."""
    header: bytes = msgpack.Packer().pack_array_header(2 * len(packed))
    return header + b"".join(packed)


def unpack_ops(data: bytes) -> tuple[list[Op], list[dict[str, str] | None]]:
    """The operations of a batch, and the span that each was sent in, where there was one."""
    values = msgpack.unpackb(data)
    return [_KINDS[number](*fields) for number, *fields in values[0::2]], values[1::2]


def pack_results(results: Sequence[Result] | MunimentError, epoch: int) -> bytes:
    """The answers of a batch (or the one error of all of it), with the epoch of the ledger instance that gave them."""
    plain: Any
    if isinstance(results, MunimentError):
        plain = results.to_wire()
    else:
        plain = [result.to_wire() if isinstance(result, MunimentError) else result for result in results]
    packed: bytes = _packers.get().pack((epoch, plain))
    return packed


def unpack_results(data: bytes) -> tuple[int, list[Any]]:
    """The epoch, and for each operation its fields (a list), None, or the error. Raises the error of all of it."""
    epoch, plain = msgpack.unpackb(data)
    if isinstance(plain, dict):
        raise MunimentError.from_wire(plain)
    return epoch, [MunimentError.from_wire(item) if isinstance(item, dict) else item for item in plain]
