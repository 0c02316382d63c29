"""The ledger against a plain model: several runs, a moving clock, crashes, restarts; rules 7 to 11 after each step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from sqlalchemy import event

from muniment.actors.clock import ForwardClock
from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_batch import RETENTION
from muniment.actors.ledger_ops import Confirm, Op, Propose, Proposed, Release, Renew, Settled, Token
from muniment.actors.store import effect_store
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.policies.errors import MissingKeyPath, StaleReservation
from muniment.policies.fingerprint import effect_key, parse_key_paths
from muniment.policies.reservation import State, counts_as_done, settled

SECOND = 1_000_000
LEASE = 60 * SECOND
MAX_DUPLICATES = 3
PATHS = parse_key_paths(["/what"])
companies = st.sampled_from(["acme", "other"])
areas = st.sampled_from(["ops", "sales"])
whats = st.sampled_from(["x", 1, "1"])
runs = st.sampled_from(["r1", "r2", "r3"])
steps = st.sampled_from(["s1", "s2"])
windows = st.sampled_from([300 * SECOND, None])


class Crash(Exception):
    """The process dies."""


class CrashingLedger(DedupeLedger):
    """Dies once at a named point of its next transaction."""

    dies: str | None = None

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        point, self.dies = self.dies, None
        with super()._transaction() as connection:
            yield connection
            if point == "before the commit":
                raise Crash
        if point == "after the commit":
            raise Crash


@dataclass
class Held:
    """What the model knows of one key."""

    run: str
    step: str
    token: Token
    lease_ends: int
    window: int | None
    state: str = "reserved"
    late: bool = False
    window_ends: int | None = None
    tokens: list[int] = field(default_factory=list)

    def done(self, now: int) -> bool:
        return self.state == "confirmed" and (self.window_ends is None or now < self.window_ends)

    def held(self, now: int) -> bool:
        return self.state == "reserved" and now < self.lease_ends

    def forgotten(self, now: int) -> bool:
        """Over for so long that the ledger may have deleted it."""
        ends = {"reserved": self.lease_ends, "confirmed": self.window_ends, "released": self.lease_ends}[self.state]
        return ends is not None and now >= ends + RETENTION


class LedgerMachine(RuleBasedStateMachine):
    tokens: Bundle[Any] = Bundle("tokens")
    lost: Bundle[Any] = Bundle("lost")

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.engine = open_engine(sqlite_url(Path(self.directory) / "effects.db"))
        event.listen(self.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF"))
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.decisions = 0
        self.recorded = 0
        self.written_at = 0
        self.keys: dict[tuple[Any, ...], Held] = {}
        self.fences: dict[tuple[Any, ...], int] = {}
        self.repeats: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.ledger: CrashingLedger
        self.restart()

    @rule()
    def restart(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
        self.ledger = CrashingLedger(
            self.engine, "ledger-0", lambda floor: ForwardClock(floor, wall=lambda: self.wall, monotonic=lambda: 0.0)
        )
        assert self.ledger.now() >= self.written_at

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.engine.dispose()
            shutil.rmtree(self.directory)

    # What happens

    @rule(seconds=st.sampled_from([0.000001, 1, 59, 60, 299, 300, 86_400]))
    def time_passes(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)

    @rule(seconds=st.sampled_from([1, 60, 100_000]))
    def the_wall_clock_is_set_back(self, seconds: float) -> None:
        before = self.ledger.now()
        self.wall -= timedelta(seconds=seconds)
        assert self.ledger.now() >= before

    @rule(limit=st.sampled_from([1, 100]))
    def housekeeping(self, limit: int) -> None:
        self.ledger.keep_house(limit)

    @rule(
        target=tokens,
        company=companies,
        area=areas,
        what=whats,
        run=runs,
        step=steps,
        window=windows,
        blocked=st.sampled_from([None, None, "tool_blocked"]),
        waits=st.booleans(),
    )
    def propose(self, company: str, area: str, what: Any, run: str, step: str, window: int | None, **more: Any) -> Any:
        op = self._proposal(company, area, what, run, step, window, **more)
        scope = (company, area, what)
        answer = self._execute(op)
        self._check_proposed(scope, op, answer)
        return (scope, Token.parse(answer.token)) if answer is not None and answer.token else multiple()

    @rule(
        target=lost,
        point=st.sampled_from(["before the commit", "after the commit"]),
        company=companies,
        area=areas,
        what=whats,
        run=runs,
        step=steps,
        window=windows,
    )
    def propose_into_a_crash(
        self, point: str, company: str, area: str, what: Any, run: str, step: str, window: int | None
    ) -> Any:
        """The caller gets no answer; what it asked for may have happened."""
        op = self._proposal(company, area, what, run, step, window)
        scope = (company, area, what)
        self.ledger.dies = point
        now = self.ledger.now()
        with pytest.raises(Crash):
            self.ledger.execute([("c", op)])
        if point == "after the commit":
            # What was committed counts, although nobody was told: the token is read from the store.
            self.written_at = now
            row = self._row(scope)
            found = Token(row.key, row.fence, row.nonce) if row else None
            self._check_proposed(scope, op, None, unseen=found)
        self.restart()
        return scope, op, now if point == "after the commit" else None

    @rule(target=tokens, sent=consumes(lost))
    def send_again(self, sent: Any) -> Any:
        """The proposal whose outcome is unknown: within a day it is neither recorded nor counted twice."""
        scope, op, arrived_at = sent
        arrived = arrived_at is not None and self.ledger.now() <= arrived_at + RETENTION
        again = op._replace(again=True)
        answer = self._execute(again)
        self._check_proposed(scope, again, answer, arrived=arrived)
        return (scope, Token.parse(answer.token)) if answer.token else multiple()

    @rule(held=tokens, point=st.sampled_from([None, None, "before the commit", "after the commit"]))
    def confirm(self, held: Any, point: str | None) -> None:
        scope, token = held
        op = Confirm(scope[0], *token, "key:1")
        if point is not None:
            self.ledger.dies = point
            now = self.ledger.now()
            with pytest.raises(Crash):
                self.ledger.execute([("c", op)])
            if point == "after the commit":
                self._confirmed(scope, token, now)
            self.restart()
            return
        now = self.ledger.now()
        expected = self._confirmed(scope, token, now)
        answer = self._execute(op)
        if isinstance(expected, str):
            assert isinstance(answer, StaleReservation)
            assert answer.fields["state"] == expected
        else:
            assert answer == Settled("confirmed", expected.late, answer.confirmed_at)

    @rule(held=tokens)
    def renew(self, held: Any) -> None:
        scope, token = held
        now = self.ledger.now()
        key = self._current(scope, token, now)
        answer = self._execute(Renew(scope[0], *token, "key:1"))
        if key is not None and key.held(now):
            key.lease_ends = max(key.lease_ends, now + LEASE)
            assert answer == Settled("reserved", expires_at=key.lease_ends)
        else:
            assert isinstance(answer, StaleReservation)

    @rule(held=tokens)
    def release(self, held: Any) -> None:
        scope, token = held
        now = self.ledger.now()
        key = self._current(scope, token, now)
        answer = self._execute(Release(scope[0], *token, "key:1"))
        if key is None or key.state == "confirmed":
            assert isinstance(answer, StaleReservation)
            return
        assert answer == Settled("released")
        if key.state == "reserved":
            key.state, key.lease_ends = "released", now

    @rule(held=tokens, other=companies)
    def a_token_is_worth_nothing_to_another_company(self, held: Any, other: str) -> None:
        scope, token = held
        if other != scope[0]:
            assert isinstance(self._execute(Confirm(other, *token, "key:1")), StaleReservation)

    @rule(company=companies, arguments=st.sampled_from([{}, {"what": None}]))
    def an_absent_path_has_no_key(self, company: str, arguments: dict[str, Any]) -> None:
        with pytest.raises(MissingKeyPath):
            effect_key(company=company, area="ops", agent="a", tool="t", paths=PATHS, arguments=arguments)

    # The model

    def _proposal(
        self, company: str, area: str, what: Any, run: str, step: str, window: int | None, **more: Any
    ) -> Propose:
        self.decisions += 1
        key = effect_key(company=company, area=area, agent="a", tool="t", paths=PATHS, arguments={"what": what})
        decision = f"d_{self.decisions}"
        return Propose(key, company, area, "a", "t", run, step, "key:1", decision, window=window, lease=LEASE, **more)

    def _execute(self, op: Op) -> Any:
        now = self.ledger.now()
        (answer,) = self.ledger.execute([("c", op)])
        if answer is not None:
            self.written_at = max(self.written_at, now if isinstance(op, Propose) else 0)
        return answer

    def _current(self, scope: tuple[Any, ...], token: Token, now: int) -> Held | None:
        key = self.keys.get(scope)
        return key if key is not None and key.token == token and not key.forgotten(now) else None

    def _confirmed(self, scope: tuple[Any, ...], token: Token, now: int) -> Held | str:
        """The model's confirmation: the key, or the state that a stale token is told."""
        known = self.keys.get(scope)
        if known is None or known.forgotten(now):
            return "unknown"
        key = self._current(scope, token, now)
        if key is None:
            if self._handed_over(scope, token, now):
                self.recorded += 1
            return known.state if known.state != "reserved" or known.held(now) else "lapsed"
        if key.state == "released":
            return "released"
        if key.state == "reserved":
            key.late = not key.held(now)
            key.state = "confirmed"
            key.window_ends = None if key.window is None else now + key.window
        return key

    def _handed_over(self, scope: tuple[Any, ...], token: Token, now: int) -> bool:
        """Whether this late confirmation is the first told of a token that lost its key unconfirmed."""
        over = self.handed_over.pop((scope, token.fence), None)
        return over is not None and now < over + RETENTION

    @property
    def handed_over(self) -> dict[Any, int]:
        """When each token lost its key unconfirmed to a later one."""
        return self.__dict__.setdefault("_handed_over_at", {})

    def _check_proposed(
        self,
        scope: tuple[Any, ...],
        op: Propose,
        answer: Proposed | None,
        unseen: Token | None = None,
        arrived: bool = False,
    ) -> None:
        """Checks the answer against the model and moves the model. ``unseen``: nobody saw more than this token."""
        now = self.ledger.now()
        key = self.keys.get(scope)
        if key is not None and key.forgotten(now):
            key = None
        seen = answer is not None
        verdict, reason = self._verdict(key, op, now)
        if verdict == "pending" and reason == "another run" and op.waits:
            assert answer is None
            return
        if not arrived:
            self.recorded += 1
        if seen:
            assert answer is not None
            assert answer.verdict == verdict, (answer, reason)
            assert (answer.token is not None) == (verdict == "allow")
        if verdict == "duplicate":
            assert key is not None
            counter = (scope, op.run_id)
            count, until = self.repeats.get(counter, (0, 0))
            count = count if now < until else 0
            if (key.run, key.step) != (op.run_id, op.step_id) and not arrived:
                count += 1
                self.repeats[counter] = (count, now + RETENTION)
            if answer is not None:
                assert (answer.duplicates, answer.stop) == (count, count >= MAX_DUPLICATES)
                assert (answer.origin_run, answer.origin_step) == (key.run, key.step)
                assert answer.policy == ("block" if op.blocked else "allow")
        if verdict == "allow":
            token = Token.parse(answer.token) if answer is not None and answer.token else unseen
            assert token is not None
            self._allowed(scope, key, op, token, now)

    @staticmethod
    def _verdict(key: Held | None, op: Propose, now: int) -> tuple[str, str]:
        if key is not None and key.done(now):
            return "duplicate", ""
        if op.blocked:
            return "block", ""
        if key is None or not key.held(now):
            return "allow", "free"
        if key.run != op.run_id:
            return "pending", "another run"
        return ("allow", "own") if key.step == op.step_id else ("pending", "another step")

    def _allowed(self, scope: tuple[Any, ...], key: Held | None, op: Propose, token: Token, now: int) -> None:
        if key is not None and key.held(now):
            assert token == key.token, "the same step gets its own reservation back"
            key.lease_ends = max(key.lease_ends, now + LEASE)
            return
        assert token.fence > self.fences.get(scope, 0), "tokens of a key grow"
        if key is not None and key.state != "confirmed":
            self.handed_over[scope, key.token.fence] = now
        self.fences[scope] = token.fence
        self.keys[scope] = Held(op.run_id, op.step_id, token, now + LEASE, op.window)

    # What must hold

    def _row(self, scope: tuple[Any, ...]) -> effect_store.KeyRow | None:
        company, area, what = scope
        key = effect_key(company=company, area=area, agent="a", tool="t", paths=PATHS, arguments={"what": what})
        with self.engine.connect() as connection:
            return self.ledger.store.load(connection, [key], self.ledger.now()).get(key)

    @invariant()
    def the_store_is_what_the_model_is(self) -> None:
        if not hasattr(self, "ledger"):
            return
        now = self.ledger.now()
        for scope, key in self.keys.items():
            row = self._row(scope)
            if key.forgotten(now):
                assert row is None
                continue
            assert row is not None
            assert (row.company, row.area) == scope[:2]
            assert (row.run_id, row.step_id, row.fence, row.nonce) == (key.run, key.step, *key.token[1:])
            state = settled(row.state, row.ends_at, now)
            assert (state is State.RESERVED) == key.held(now)
            assert (row.state is State.CONFIRMED) == (key.state == "confirmed")
            assert counts_as_done(row.state, row.ends_at, now) == key.done(now)

    @invariant()
    def each_decision_is_recorded_once_and_nothing_is_stored_that_the_model_does_not_know(self) -> None:
        if hasattr(self, "ledger"):
            with self.engine.connect() as connection:
                assert effect_store.decision_log.verify(connection) == (self.recorded, None)
                rows = connection.execute(sa.select(sa.func.count()).select_from(effect_store.keys)).scalar_one()
            assert rows <= len(self.keys)


LedgerMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerMachine = LedgerMachine.TestCase
