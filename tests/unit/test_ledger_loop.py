"""The ledger's loop: group commit, parked polls, a store that is down, a bound, a replaced instance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.clock import ForwardClock
from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.key_watch import KeyWatch
from muniment.actors.ledger_loop import LedgerLoop
from muniment.actors.ledger_ops import Confirm, Propose, Release, Renew, Token
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.policies.errors import (
    ConfigurationError,
    Fenced,
    MunimentError,
    Overloaded,
    StoreUnavailable,
    Unavailable,
)
from tests.ledger_thread import LedgerThread

SECOND = 1_000_000
SECONDS_TO_WAIT = 30


class GatedLedger(DedupeLedger):
    """Commits only while its gate is open, and fails where it is told to."""

    gate = threading.Event()
    batches: list[int]
    error: BaseException | None = None

    def execute(self, operations: Any) -> Any:
        self.batches.append(len(operations))
        return super().execute(operations)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with super()._transaction() as connection:
            yield connection
            assert self.gate.wait(SECONDS_TO_WAIT)
            error, self.error = self.error, None
            if error is not None:
                raise error


class World:
    """A loop over a gated ledger with a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.engine = open_engine(sqlite_url(path / "effects.db"))
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.opened: list[GatedLedger] = []
        self.failures: list[Exception] = []
        self.watch = KeyWatch()
        self.thread: LedgerThread

    def start(self, **options: Any) -> None:
        self.thread = LedgerThread(self._open, **options)

    def _open(self) -> DedupeLedger:
        if self.failures:
            raise self.failures.pop(0)
        ledger = GatedLedger(
            self.engine,
            "ledger-0",
            lambda floor: ForwardClock(floor, wall=lambda: self.wall, monotonic=lambda: 0.0),
            self.watch,
        )
        ledger.gate, ledger.batches = threading.Event(), []
        ledger.gate.set()
        self.opened.append(ledger)
        return ledger

    @property
    def ledger(self) -> GatedLedger:
        return self.opened[-1]

    @property
    def loop(self) -> LedgerLoop:
        return self.thread.loop


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.opened:
        made.ledger.gate.set()
    made.thread.close()
    made.engine.dispose()


def proposal(run: str, key: bytes = b"k" * 41, **changes: Any) -> Propose:
    op = Propose(key, "acme", "ops", "a", "mail", run, "s", "key:1", f"d_{run}", lease=60 * SECOND)
    return op._replace(**changes)


def test_what_comes_during_a_commit_is_one_group_and_answered_after_it(world: World) -> None:
    world.start()
    world.thread.answers(proposal("warm up", b"w" * 41))
    world.ledger.gate.clear()
    first = world.thread.operate(proposal("r0"))
    world.thread.until(lambda: len(world.ledger.batches) == 2)
    later = [world.thread.operate(proposal(f"r{i}"), client=f"c{i}") for i in range(1, 6)]
    assert not any(future.done() for future in [first, *later])
    world.ledger.gate.set()
    answers = [future.result(SECONDS_TO_WAIT)[0].verdict for future in [first, *later]]
    assert answers == ["allow"] + ["pending"] * 5
    assert world.ledger.batches == [1, 1, 5]
    assert (world.loop.groups, world.loop.operations) == (3, 7)


def test_a_poll_is_answered_after_the_commit_that_frees_the_key(world: World) -> None:
    world.start()
    (held,) = world.thread.answers(proposal("r0"))
    assert world.thread.answers(proposal("r1", waits=True), client="waits") == [None]
    poll = world.thread.poll("waits")
    assert world.thread.answers(Renew("acme", *Token.parse(held.token), "a"))[0].state == "reserved"
    world.ledger.gate.clear()
    confirmed = world.thread.operate(Confirm("acme", *Token.parse(held.token), "a"))
    world.thread.until(lambda: world.ledger.batches[-1:] == [1] and len(world.ledger.batches) == 4)
    assert not poll.done()
    world.ledger.gate.set()
    assert confirmed.result(SECONDS_TO_WAIT)[0].state == "confirmed"
    assert poll.result(SECONDS_TO_WAIT) == [b"k" * 41]


def test_what_happens_while_no_poll_is_parked_is_kept_for_the_next(world: World) -> None:
    world.start()
    (held,) = world.thread.answers(proposal("r0"))
    world.thread.answers(proposal("r1", waits=True), client="waits")
    world.thread.answers(Release("acme", *Token.parse(held.token), "a"))
    assert world.thread.poll("waits").result(SECONDS_TO_WAIT) == [b"k" * 41]
    second = world.thread.poll("waits")
    third = world.thread.poll("waits")
    assert second.result(SECONDS_TO_WAIT) == []
    assert world.thread.poll("waits", seconds=0).result(SECONDS_TO_WAIT) == []
    assert third.result(SECONDS_TO_WAIT) == []


def test_a_lapse_is_told_when_it_comes_and_a_renewal_moves_it(world: World) -> None:
    world.start()
    (held,) = world.thread.answers(proposal("r0"))
    world.thread.answers(proposal("r1", waits=True), client="waits")
    poll = world.thread.poll("waits")
    world.wall += timedelta(seconds=59)
    world.thread.answers(Renew("acme", *Token.parse(held.token), "a"))
    world.wall += timedelta(seconds=59)
    world.thread.answers(proposal("other", b"o" * 41))
    assert not poll.done()
    world.wall += timedelta(seconds=1)
    world.thread.answers(proposal("another", b"p" * 41))
    assert poll.result(SECONDS_TO_WAIT) == [b"k" * 41]


def test_a_store_that_is_down_at_the_start_is_tried_until_it_is_there(world: World) -> None:
    world.failures = [sa.exc.OperationalError("x", None, Exception("down")) for _ in range(3)]
    world.start()
    world.thread.until(lambda: not world.failures)
    assert world.thread.answers(proposal("r0"))[0].verdict == "allow"


def test_a_store_of_another_version_is_not_opened_again_and_again(world: World) -> None:
    world.failures = [ConfigurationError("schema version 9")]
    world.start()
    world.thread.until(lambda: isinstance(world.loop.failure, ConfigurationError))
    with pytest.raises(ConfigurationError):
        world.thread.operate(proposal("r0")).result(SECONDS_TO_WAIT)
    assert world.opened == []


def test_what_nobody_foresaw_at_the_start_is_logged_and_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.failures = [ValueError("a bug")]
    world.start()
    world.thread.until(lambda: "a bug" in caplog.text)
    with pytest.raises(Unavailable):
        world.thread.operate(proposal("r0")).result(SECONDS_TO_WAIT)


def test_a_commit_that_fails_is_told_to_its_callers_and_the_next_one_works(world: World) -> None:
    world.start()
    world.thread.answers(proposal("warm up", b"w" * 41))
    world.ledger.error = sa.exc.OperationalError("x", None, Exception("disk full"))
    with pytest.raises(StoreUnavailable):
        world.thread.answers(proposal("r0"))
    assert world.thread.answers(proposal("r1"))[0].verdict == "allow"
    world.ledger.error = ValueError("a bug")
    with pytest.raises(MunimentError, match="ValueError"):
        world.thread.answers(proposal("r2", b"z" * 41))
    assert world.thread.answers(proposal("r3", b"z" * 41))[0].verdict == "allow"


def test_a_replaced_ledger_refuses_for_good(world: World) -> None:
    world.start()
    world.thread.answers(proposal("r0"))
    DedupeLedger(world.engine, "ledger-0").close()
    for call in (
        lambda: world.thread.operate(proposal("r1")),
        lambda: world.thread.operate(proposal("r1")),
        world.thread.poll,
    ):
        with pytest.raises(Fenced):
            call().result(SECONDS_TO_WAIT)


def test_who_waits_at_a_replaced_ledger_is_told_to_ask_again(world: World) -> None:
    world.start()
    world.thread.answers(proposal("r0"))
    assert world.thread.answers(proposal("r1", waits=True), client="waits") == [None]
    poll = world.thread.poll("waits", seconds=3_600)
    world.thread.until(lambda: world.loop.parked == 1)
    DedupeLedger(world.engine, "ledger-0").close()
    with pytest.raises(Fenced):
        world.thread.answers(proposal("r2"))
    assert poll.result(SECONDS_TO_WAIT) == [b"k" * 41]


def test_a_full_queue_refuses(world: World) -> None:
    world.start(max_queued=3)
    world.thread.answers(proposal("warm up", b"w" * 41))
    world.ledger.gate.clear()
    first = world.thread.operate(proposal("r0"))
    world.thread.until(lambda: len(world.ledger.batches) == 2)
    second = world.thread.operate(proposal("r1"), proposal("r2"), proposal("r3"))
    third = world.thread.operate(proposal("r4"))
    world.ledger.gate.set()
    with pytest.raises(Overloaded):
        third.result(SECONDS_TO_WAIT)
    first.result(SECONDS_TO_WAIT)
    assert len(second.result(SECONDS_TO_WAIT)) == 3


def test_closing_commits_what_is_queued(world: World) -> None:
    world.start()
    world.thread.answers(proposal("warm up", b"w" * 41))
    futures = [world.thread.operate(proposal(f"r{i}", bytes([i]) * 41)) for i in range(10)]
    world.thread.close_loop()
    assert [future.result(SECONDS_TO_WAIT)[0].verdict for future in futures] == ["allow"] * 10
    with pytest.raises(Unavailable):
        world.thread.operate(proposal("late")).result(SECONDS_TO_WAIT)


def test_watches_are_bounded_and_those_of_silent_clients_go() -> None:
    watch = KeyWatch(max_watches=3)
    for i in range(3):
        watch.register(f"c{i}", b"k", 10, now=i)
    with pytest.raises(Overloaded):
        watch.register("c3", b"k", 10, now=3)
    watch.register("c0", b"k", 10, now=3)
    answers: list[list[bytes]] = []
    watch.park("c2", answers.append, now=2)
    watch.drop_silent(before=2)
    assert len(watch) == 1
    watch.register("c3", b"other", 20, now=3)
    watch.lapse(9)
    assert answers == []
    watch.lapse(10)
    assert answers == [[b"k"]]
    assert watch.next_lapse() == 20
    watch.drop_silent(before=100)
    assert len(watch) == 0
    assert b"other" not in watch
