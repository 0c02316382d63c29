"""One batch of a ledger's operations inside one transaction: rows in, decisions and changed rows out.

Operations apply in order, each seeing what those before it did. One that is refused has changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from muniment.actors.ids import new_id
from muniment.actors.ledger_ops import (
    NONCE_BYTES,
    Confirm,
    Erase,
    Erased,
    Forget,
    Forgotten,
    Import,
    Imported,
    Op,
    Propose,
    Proposed,
    Release,
    Renew,
    Result,
    Settled,
    Token,
)
from muniment.actors.store.decision_log import Decision
from muniment.actors.store.effect_store import EffectStore, KeyRow, repeat_id
from muniment.actors.wire import to_rfc3339
from muniment.policies.access import covers
from muniment.policies.effect_gate import GateDecision, KeyState, Reason, Verdict, decide
from muniment.policies.errors import IllegalTransition, NotFound, StaleReservation, StateConflict
from muniment.policies.reservation import Event, State, counts_as_done, move, settled

#: How long a row that is over stays, so that late confirmations and repeated calls find it.
RETENTION = 24 * 3600 * 1_000_000
#: How long ago the first try of what is sent again can have been: longer than any caller waits.
RESENT = 15 * 60 * 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INVALID = {Reason.MISSING_KEY_PATH.value, Reason.INVALID_KEY_VALUE.value}


def moment(microseconds: int) -> datetime:
    """The instant that many microseconds after the epoch, aware and in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def origin(run_id: str | None, step_id: str | None, confirmed_at: int | None) -> dict[str, str]:
    """Where a finished effect came from, as far as known; nothing is invented."""
    known = {
        "run_id": run_id,
        "step_id": step_id,
        "confirmed_at": to_rfc3339(moment(confirmed_at)) if confirmed_at is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _scope(row: KeyRow) -> dict[str, str]:
    return {"area": row.area, "agent": row.agent, "tool": row.tool, "key": row.key.hex()}


def _confirmed_at(row: KeyRow) -> int | None:
    """When the effect was confirmed; not known (stored as 0) of some imported keys."""
    return row.changed_at or None


class Batch:
    """``now`` is the time of all its operations; ``last_fence`` the highest number given out so far."""

    def __init__(self, store: EffectStore, connection: sa.Connection, now: int, last_fence: int) -> None:
        self.now = now
        self.last_fence = last_fence
        #: The rows to be written, by key.
        self.changed: dict[bytes, KeyRow] = {}
        self._store = store
        self._connection = connection
        self._at = moment(now)
        self._rows: dict[bytes, KeyRow | None] = {}
        self._trail: list[Decision] = []
        self._repeats: dict[bytes, int] = {}
        self._counted: dict[bytes, tuple[bytes, str, int, int]] = {}
        self._wrote = False

    def load(self, operations: Iterable[Op]) -> None:
        """Reads what the operations need, in one statement per table."""
        wanted = {op.key for op in operations if not isinstance(op, Erase) and op.key}
        self._rows = dict.fromkeys(wanted)
        self._rows.update(self._store.load(self._connection, wanted, self.now))
        met = {
            repeat_id(op.key, op.run_id): 0
            for op in operations
            if isinstance(op, Propose) and op.key and self._rows[op.key] is not None
        }
        self._repeats = {**met, **self._store.load_repeats(self._connection, met, self.now)}

    def flush(self) -> bool:
        """Writes what changed; whether there was anything."""
        self._store.save(self._connection, self.changed.values())
        self._store.save_repeats(self._connection, list(self._counted.values()))
        self._store.append(self._connection, self._trail)
        wrote = self._wrote or bool(self.changed or self._counted or self._trail)
        self._counted, self._trail = {}, []
        return wrote

    def held_until(self, key: bytes) -> int:
        """The end of the lease on a key that is held."""
        row = self._rows[key]
        assert row is not None
        assert row.ends_at is not None
        return row.ends_at

    def apply(self, op: Op) -> Result:
        """Applies one operation. Raises a ``MunimentError`` where it is refused; None: wait for the key."""
        return _APPLY[type(op)](self, op)

    def _propose(self, op: Propose) -> Proposed | None:
        row = self._rows[op.key] if op.key else None
        verdict = decide(self._key_state(op, row), Reason(op.blocked) if op.blocked else None, Reason(op.no_key))
        if verdict.reason is Reason.HELD_BY_ANOTHER_RUN and op.waits:
            return None
        recorded = op.again and self._is_recorded(op)
        duplicates = self._duplicates(op, row, count=verdict.reason is Reason.CONFIRMED and not recorded)
        stop = duplicates >= op.max_duplicates
        more: dict[str, Any] = {}
        if verdict.verdict is Verdict.ALLOW and op.key:
            held = self._reserve(op, row)
            more = {"token": Token(held.key, held.fence, held.nonce).encode(), "expires_at": held.ends_at}
        elif verdict.verdict is Verdict.DUPLICATE and row is not None:
            assert verdict.policy is not None
            more = {
                "origin_run": row.run_id,
                "origin_step": row.step_id,
                "confirmed_at": _confirmed_at(row),
                "policy": verdict.policy.value,
            }
        answer = Proposed(verdict.verdict.value, verdict.reason.value, op.decision_id, duplicates, stop, **more)
        if not recorded:
            self._trail.append(self._decision(op, verdict, answer))
        return answer

    def _is_recorded(self, op: Propose) -> bool:
        """Whether a call whose answer was lost, not longer ago than rows stay, had got so far."""
        since = self.now - RETENTION
        return self._store.is_recorded(self._connection, op.company, op.decision_id, since, op.run_id)

    def _key_state(self, op: Propose, row: KeyRow | None) -> KeyState:
        if not op.key:
            return KeyState.INVALID if op.no_key in _INVALID else KeyState.NO_KEY
        if row is None:
            return KeyState.FREE
        same_run = row.run_id == op.run_id
        same_step = same_run and row.step_id == op.step_id
        state = settled(row.state, row.ends_at, self.now)
        if counts_as_done(state, row.ends_at, self.now):
            return KeyState.DONE_BY_THIS_STEP if same_step else KeyState.DONE
        if state is not State.RESERVED:
            return KeyState.FREE
        if same_step:
            return KeyState.HELD_BY_THIS_STEP
        return KeyState.HELD_BY_ANOTHER_STEP if same_run else KeyState.HELD_BY_ANOTHER_RUN

    def _reserve(self, op: Propose, row: KeyRow | None) -> KeyRow:
        """Gives the key to the proposer: anew, or back where it holds it already."""
        state = settled(row.state, row.ends_at, self.now) if row else None
        ends_at = self.now + op.lease
        if row is not None and state is State.RESERVED:
            move(state, Event.RENEW)
            row.claim, row.lease = op.decision_id, op.lease
            return self._extend(row, ends_at)
        state = move(state, Event.REOPEN if state is State.CONFIRMED else Event.RESERVE)
        if row is not None and row.state is not State.CONFIRMED and row.run_id is not None and row.nonce:
            self._store.hand_over(self._connection, row, self.now + RETENTION)
            self._wrote = True
        self.last_fence = max(self.now, self.last_fence + 1)
        return self._put(
            KeyRow(
                key=op.key,
                company=op.company,
                area=op.area,
                agent=op.agent,
                tool=op.tool,
                state=state,
                run_id=op.run_id,
                step_id=op.step_id,
                fence=self.last_fence,
                nonce=os.urandom(NONCE_BYTES),
                claim=op.decision_id,
                ends_at=ends_at,
                changed_at=self.now,
                lease=op.lease,
                window=op.window,
                late=0,
                note=None,
                result_ref=None,
                retire_at=ends_at + RETENTION,
            )
        )

    def _extend(self, row: KeyRow, ends_at: int) -> KeyRow:
        """The lease ends at ``ends_at``, or when it did before if that is later."""
        row.ends_at = max(ends_at, row.ends_at or 0)
        row.retire_at = row.ends_at + RETENTION
        return self._put(row)

    def _end(self, row: KeyRow, state: State, note: str | None, ends_at: int | None) -> KeyRow:
        """The reservation is over: ``state`` since now, until ``ends_at`` (None: for ever)."""
        row.state, row.claim, row.note = state, None, note
        row.changed_at, row.ends_at = self.now, ends_at
        row.retire_at = None if ends_at is None else ends_at + RETENTION
        return self._put(row)

    def _put(self, row: KeyRow) -> KeyRow:
        self._rows[row.key] = self.changed[row.key] = row
        return row

    def _duplicates(self, op: Propose, row: KeyRow | None, *, count: bool) -> int:
        """How often the run met this finished effect; one more if it is to be counted."""
        if row is None:
            return 0
        counter = repeat_id(op.key, op.run_id)
        if counter not in self._repeats:  # the row came to be in this very batch
            found = self._store.load_repeats(self._connection, [counter], self.now)
            self._repeats[counter] = found.get(counter, 0)
        if count:
            self._repeats[counter] += 1
            self._counted[counter] = (counter, op.company, self._repeats[counter], self.now + RETENTION)
        return self._repeats[counter]

    def _decision(self, op: Propose, verdict: GateDecision, answer: Proposed) -> Decision:
        inputs: dict[str, Any] = {"area": op.area, "agent": op.agent, "tool": op.tool, "step_id": op.step_id}
        if op.key:
            inputs["key"] = op.key.hex()
        if op.agent_version is not None:
            inputs["agent_version"] = op.agent_version
        if op.tainted:
            inputs["tainted"] = True
        if answer.duplicates:
            inputs["duplicates"] = answer.duplicates
        if answer.stop:
            inputs["stop"] = True
        if answer.policy is not None:
            inputs["policy"] = answer.policy
        if verdict.verdict is Verdict.DUPLICATE:
            inputs["origin"] = origin(answer.origin_run, answer.origin_step, answer.confirmed_at)
        return Decision(
            id=op.decision_id,
            company=op.company,
            at=self._at,
            kind="effect",
            rule="effect_gate",
            reason=verdict.reason.value,
            actor=op.actor,
            outcome=verdict.verdict.value,
            policy_version=op.policy_version,
            inputs=inputs,
            run_id=op.run_id,
        )

    def _record(self, row: KeyRow, **fields: Any) -> None:
        """A decision about a key that is no verdict of the gate."""
        fields["inputs"] = {**_scope(row), **fields["inputs"]}
        self._trail.append(Decision(company=row.company, at=self._at, kind="effect", **fields))

    def _held(self, op: Confirm | Renew | Release) -> tuple[KeyRow, State]:
        """The row that the token is the current proof for, and its state now. Raises ``StaleReservation``.

        A key that is bound to another area or agent is told what it would be told of a reservation that never was.
        """
        row = self._rows[op.key]
        known = row is not None and row.company == op.company
        if row is None or not (known and covers(op.area, row.area) and covers(op.agent, row.agent)):
            raise StaleReservation("the reservation is not known, or not any more", state="unknown")
        state = settled(row.state, row.ends_at, self.now)
        assert state is not None
        if (row.fence, row.nonce) == (op.fence, op.nonce):
            return row, state
        raise self._stale(op, row, state)

    def _stale(self, op: Confirm | Renew | Release, row: KeyRow, state: State) -> StaleReservation:
        """What became of the key of a token that was overtaken. A confirmation means that the effect happened again."""
        before = self._store.handover(self._connection, op.key, op.fence, self.now)
        if before is None or before.nonce != op.nonce:
            return StaleReservation("the token does not hold the key", state=state.value)
        holder = {"run_id": row.run_id, "step_id": row.step_id}
        if isinstance(op, Confirm) and not before.reported:
            self._store.mark_reported(self._connection, op.key, op.fence)
            self._wrote = True
            inputs = {"step_id": before.step_id, "holder": holder, "holder_state": state.value}
            self._record(
                row,
                id=new_id("d", self._at),
                rule="late_confirm",
                reason=Reason.MAY_HAVE_HAPPENED_TWICE.value,
                actor=op.actor,
                outcome=Verdict.ERROR.value,
                inputs=inputs,
                run_id=before.run_id,
            )
        return StaleReservation("another reservation took the key since", state=state.value, holder=holder)

    def _confirm(self, op: Confirm) -> Settled:
        row, state = self._held(op)
        self._move(state, Event.CONFIRM)
        if state is not State.CONFIRMED:
            row.late, row.result_ref = int(state is State.LAPSED), op.result_ref
            self._end(row, State.CONFIRMED, op.reason, None if row.window is None else self.now + row.window)
        return Settled(State.CONFIRMED.value, bool(row.late), confirmed_at=_confirmed_at(row))

    def _renew(self, op: Renew) -> Settled:
        row, state = self._held(op)
        self._move(state, Event.RENEW)
        self._extend(row, self.now + row.lease)
        return Settled(State.RESERVED.value, expires_at=row.ends_at)

    def _release(self, op: Release) -> Settled:
        row, state = self._held(op)
        if op.claim is not None and op.claim != row.claim:
            return Settled(state.value)
        self._move(state, Event.RELEASE)
        if state is not State.RELEASED:
            self._end(row, State.RELEASED, op.reason, self.now)
        return Settled(State.RELEASED.value)

    @staticmethod
    def _move(state: State, event: Event) -> None:
        try:
            move(state, event)
        except IllegalTransition as error:
            raise StaleReservation(f"the reservation is {state.value}", state=state.value) from error

    def _forget(self, op: Forget) -> Forgotten:
        row = self._rows[op.key]
        state = settled(row.state, row.ends_at, self.now) if row else None
        # Whoever has the key by now, and has perhaps confirmed it again, is not meant a second time.
        since = self.now - RESENT
        if op.again and self._store.is_recorded(self._connection, op.company, op.decision_id, since):
            return Forgotten(op.decision_id)
        if row is None or state is State.RELEASED or state is State.LAPSED:
            raise NotFound("no effect with these arguments is confirmed")
        try:
            move(state, Event.FORGET)
        except IllegalTransition as error:
            raise StateConflict("the effect is not confirmed but reserved", state=State.RESERVED.value) from error
        self._record(
            row,
            id=op.decision_id,
            rule="forget",
            reason=op.reason,
            actor=op.actor,
            outcome="forgotten",
            inputs={"step_id": row.step_id, "origin": origin(row.run_id, row.step_id, _confirmed_at(row))},
            run_id=row.run_id,
        )
        # Without its nonce the old token proves nothing: its run cannot confirm again what a curator took back.
        row.nonce = b""
        self._end(row, State.RELEASED, op.reason, self.now)
        return Forgotten(op.decision_id)

    def _import(self, op: Import) -> Imported:
        row = self._rows[op.key]
        confirmed_at = self.now if op.confirmed_at is None else op.confirmed_at
        ends_at = None if op.window is None else confirmed_at + op.window
        if ends_at is not None and ends_at <= self.now:
            return Imported("window_ended")
        state = settled(row.state, row.ends_at, self.now) if row else None
        if row is not None and counts_as_done(state, row.ends_at, self.now):
            return Imported("already_confirmed")
        if state is State.RESERVED:
            return Imported("reserved")
        if row is not None and state is State.CONFIRMED:
            state = None  # its window has ended: as free as a key that never was
        self.last_fence = max(self.now, self.last_fence + 1)
        row = self._put(
            KeyRow(
                key=op.key,
                company=op.company,
                area=op.area,
                agent=op.agent,
                tool=op.tool,
                state=move(state, Event.IMPORT),
                run_id=op.run_id,
                step_id=op.step_id,
                fence=self.last_fence,
                nonce=b"",
                claim=None,
                ends_at=ends_at,
                changed_at=op.confirmed_at or 0,
                lease=0,
                window=op.window,
                late=0,
                note=None,
                result_ref=None,
                retire_at=None if ends_at is None else ends_at + RETENTION,
            )
        )
        self._record(
            row,
            id=op.decision_id,
            rule="import",
            reason="imported",
            actor=op.actor,
            outcome=State.CONFIRMED.value,
            inputs={"step_id": op.step_id, "origin": origin(op.run_id, op.step_id, op.confirmed_at)},
            run_id=op.run_id,
        )
        return Imported("imported")

    def _erase(self, op: Erase) -> Erased:
        self.flush()
        self._wrote = True
        erased = Erased(*self._store.erase(self._connection, op.company, op.limit))
        for key, row in self._rows.items():
            if row is not None and row.company == op.company:
                self._rows[key] = None
                self.changed.pop(key, None)
        return erased


_APPLY: dict[type[Op], Callable[[Batch, Any], Result]] = {
    Propose: Batch._propose,
    Confirm: Batch._confirm,
    Renew: Batch._renew,
    Release: Batch._release,
    Forget: Batch._forget,
    Import: Batch._import,
    Erase: Batch._erase,
}
