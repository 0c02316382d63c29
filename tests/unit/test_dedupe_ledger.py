"""The ledger on a real SQLite file with a clock that the test moves: API.md, Effects; rules 7 to 11."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.clock import ForwardClock
from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_batch import RETENTION
from muniment.actors.ledger_ops import (
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
    Settled,
    Token,
)
from muniment.actors.store import effect_store
from muniment.actors.store.engine import open_engine
from muniment.policies.errors import Fenced, InvalidInput, NotFound, StaleReservation, StateConflict
from muniment.policies.fingerprint import effect_key, parse_key_paths
from muniment.policies.reservation import State
from tests.stores import Stores

SECOND = 1_000_000
START = datetime(2026, 1, 1, tzinfo=UTC)


class Bench:
    """A ledger, its store and its clock, with short words for what runs do."""

    def __init__(self, stores: Stores) -> None:
        self.engine = stores.hasten(open_engine(stores.url("effects")))
        self.wall = START
        self.decisions = 0
        self.restart()

    def restart(self) -> None:
        self.ledger = DedupeLedger(self.engine, "ledger-0", self._clock)

    def _clock(self, floor: datetime | None) -> ForwardClock:
        return ForwardClock(floor, wall=lambda: self.wall, monotonic=lambda: 0.0)

    def wait(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)

    def run(self, *ops: Op, client: str = "c") -> list[Any]:
        return self.ledger.execute([(client, op) for op in ops])

    def proposal(self, run: str, step: str = "s", what: str = "x", **changes: Any) -> Propose:
        self.decisions += 1
        company = changes.pop("company", "acme")
        op = Propose(
            key=key(what, company),
            company=company,
            area="ops",
            agent="triage",
            tool="mail",
            run_id=run,
            step_id=step,
            actor="key:1",
            decision_id=f"d_{self.decisions}",
            window=3600 * SECOND,
            lease=60 * SECOND,
        )
        return op._replace(**changes)

    def propose(self, run: str, step: str = "s", what: str = "x", **changes: Any) -> Any:
        return self.run(self.proposal(run, step, what, **changes))[0]

    def confirm(self, token: str, company: str = "acme", **changes: Any) -> Any:
        return self.run(Confirm(company, *Token.parse(token), "key:1", **changes))[0]

    def renew(self, token: str) -> Any:
        return self.run(Renew("acme", *Token.parse(token), "key:1"))[0]

    def release(self, token: str, **changes: Any) -> Any:
        return self.run(Release("acme", *Token.parse(token), "key:1", **changes))[0]

    def forget(self, what: str = "x", again: bool = False) -> Any:
        scope = ("acme", "ops", "triage", "mail", "curator")
        return self.run(Forget(key(what), *scope, reason="wrong", decision_id=f"d_forget_{what}", again=again))[0]

    def trail(self, run: str | None = None, company: str = "acme") -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return list(effect_store.decision_log.entries(connection, company, run_id=run))

    def rows(self, table: sa.Table) -> int:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    def verify(self) -> tuple[int, Any]:
        with self.engine.connect() as connection:
            return effect_store.decision_log.verify(connection)


def key(what: str = "x", company: str = "acme") -> bytes:
    paths = parse_key_paths(["/what"])
    return effect_key(company=company, area="ops", agent="triage", tool="mail", paths=paths, arguments={"what": what})


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    made = Bench(stores)
    yield made
    made.ledger.close()
    made.engine.dispose()


def token_of(answer: Any) -> str:
    assert isinstance(answer, Proposed)
    assert answer.verdict == "allow"
    assert answer.token is not None
    return answer.token


def test_one_wins_and_after_confirm_the_rest_are_duplicates(bench: Bench) -> None:
    answers = bench.run(*[bench.proposal(f"r{i}") for i in range(100)])
    assert [a.verdict for a in answers] == ["allow"] + ["pending"] * 99
    assert bench.confirm(token_of(answers[0])) == Settled("confirmed", False, confirmed_at=micros(bench.wall))
    later = bench.run(*[bench.proposal(f"r{i}") for i in range(1, 100)])
    assert {(a.verdict, a.origin_run, a.origin_step, a.policy) for a in later} == {("duplicate", "r0", "s", "allow")}
    assert {a.confirmed_at for a in later} == {micros(bench.wall)}


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * SECOND)


def test_the_same_step_gets_its_reservation_back(bench: Bench) -> None:
    first = bench.propose("r")
    bench.wait(30)
    again = bench.propose("r")
    assert again.token == first.token
    assert again.reason == "already_reserved"
    assert again.expires_at == first.expires_at + 30 * SECOND
    assert bench.propose("r", "other").verdict == "pending"
    assert bench.propose("r", "other", waits=True).reason == "held_by_another_step"


def test_meeting_another_run_is_recorded_only_where_the_caller_does_not_wait(bench: Bench) -> None:
    bench.propose("r1")
    assert bench.propose("r2", waits=True) is None
    assert bench.trail("r2") == []
    assert bench.propose("r2").verdict == "pending"
    assert [e["outcome"] for e in bench.trail("r2")] == ["pending"]


def test_a_released_key_may_go_at_once(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    assert bench.release(token, reason="failed") == Settled("released")
    assert bench.release(token) == Settled("released")
    assert_stale(bench.confirm(token), "released")
    assert_stale(bench.renew(token), "released")
    taken = token_of(bench.propose("r2"))
    assert taken != token
    assert_stale(bench.confirm(token), "reserved", holder={"run_id": "r2", "step_id": "s"})
    assert bench.confirm(taken).state == "confirmed"


def assert_stale(answer: Any, state: str, **fields: Any) -> None:
    assert isinstance(answer, StaleReservation)
    assert answer.fields == {"state": state, **fields}


def test_a_lease_lapses_at_its_end_and_not_before(bench: Bench) -> None:
    bench.propose("r1")
    bench.wait(59.999999)
    assert bench.propose("r2").verdict == "pending"
    bench.wait(0.000001)
    assert bench.propose("r2").verdict == "allow"


def test_a_renewed_lease_begins_anew(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    bench.wait(50)
    assert bench.renew(token) == Settled("reserved", expires_at=micros(bench.wall) + 60 * SECOND)
    bench.wait(59)
    assert bench.propose("r2").verdict == "pending"
    bench.wait(1)
    assert_stale(bench.renew(token), "lapsed")
    assert bench.release(token) == Settled("released")


def test_a_late_confirm_is_accepted_while_nobody_else_came(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    bench.wait(61)
    assert bench.confirm(token) == Settled("confirmed", True, confirmed_at=micros(bench.wall))
    bench.wait(1)
    assert bench.confirm(token).late
    assert bench.propose("r2").verdict == "duplicate"


def test_a_late_confirm_within_a_day_only(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    bench.wait(60 + 24 * 3600)
    assert_stale(bench.confirm(token), "unknown")


@pytest.mark.parametrize("taker", ["r1", "r2"])
@pytest.mark.parametrize("then", ["reserved", "confirmed", "released", "lapsed"])
def test_a_late_confirm_after_another_reservation_is_refused_and_told(bench: Bench, taker: str, then: str) -> None:
    token = token_of(bench.propose("r1"))
    bench.wait(60)
    second = token_of(bench.propose(taker, "t"))
    if then == "confirmed":
        bench.confirm(second)
    elif then == "released":
        bench.release(second)
    elif then == "lapsed":
        bench.wait(60)
    for _ in range(2):
        assert_stale(bench.confirm(token), then, holder={"run_id": taker, "step_id": "t"})
    told = [e for e in bench.trail("r1") if e["rule"] == "late_confirm"]
    assert [(e["outcome"], e["reason"], e["inputs"]["step_id"]) for e in told] == [
        ("error", "may_have_happened_twice", "s")
    ]
    assert told[0]["inputs"]["holder"] == {"run_id": taker, "step_id": "t"}
    assert told[0]["inputs"]["holder_state"] == then


def test_windows_end_exactly_and_permanent_ones_never(bench: Bench) -> None:
    bench.confirm(token_of(bench.propose("r1")))
    bench.confirm(token_of(bench.propose("r1", what="for ever", window=None)))
    bench.wait(3599.999999)
    assert bench.propose("r2").verdict == "duplicate"
    bench.wait(0.000001)
    assert bench.propose("r2").verdict == "allow"
    bench.wait(100 * 365 * 86400)
    bench.ledger.keep_house(100)
    assert bench.propose("r2", what="for ever").verdict == "duplicate"


def test_the_window_starts_at_the_confirmation(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    bench.wait(50)
    bench.confirm(token)
    bench.wait(3599)
    assert bench.propose("r2").verdict == "duplicate"


def test_a_changed_classification_does_not_move_what_is_confirmed(bench: Bench) -> None:
    bench.confirm(token_of(bench.propose("r1")))
    bench.wait(1800)
    assert bench.propose("r2", window=1).verdict == "duplicate"
    bench.wait(1800)
    assert bench.propose("r2", window=None).verdict == "allow"


def test_confirming_again_after_the_window_is_the_same_answer(bench: Bench) -> None:
    token = token_of(bench.propose("r1"))
    first = bench.confirm(token)
    bench.wait(3600)
    assert bench.confirm(token) == first
    assert_stale(bench.release(token), "confirmed")
    bench.propose("r2")
    assert_stale(bench.confirm(token), "reserved")


def test_duplicates_are_counted_per_run_and_key(bench: Bench) -> None:
    for what in "abcd":
        bench.confirm(token_of(bench.propose("origin", what=what)))
    four_different = [bench.propose("r", what=what) for what in "abcd"]
    assert [(a.duplicates, a.stop) for a in four_different] == [(1, False)] * 4
    again = [bench.propose("r", what="a") for _ in range(3)]
    assert [(a.duplicates, a.stop) for a in again] == [(2, False), (3, True), (4, True)]
    assert bench.propose("other", what="a").duplicates == 1
    own = bench.propose("origin", what="a")
    assert (own.verdict, own.reason, own.duplicates) == ("duplicate", "own_step_confirmed", 0)
    assert bench.propose("origin", "another step", what="a").duplicates == 1


def test_repeats_in_one_batch_and_over_a_restart(bench: Bench) -> None:
    token = token_of(bench.propose("o"))
    answers = bench.run(Confirm("acme", *Token.parse(token), "a"), *[bench.proposal("r") for _ in range(3)])
    assert [a.duplicates for a in answers[1:]] == [1, 2, 3]
    bench.restart()
    assert bench.propose("r").duplicates == 4


def test_a_blocked_call_neither_waits_nor_reserves_but_a_finished_effect_is_a_duplicate(bench: Bench) -> None:
    blocked = bench.propose("r1", blocked="tool_blocked", waits=True)
    assert (blocked.verdict, blocked.reason, blocked.token) == ("block", "tool_blocked", None)
    token = token_of(bench.propose("r2"))
    assert bench.propose("r3", blocked="run_tainted", waits=True).verdict == "block"
    bench.confirm(token)
    tainted = bench.propose("r3", blocked="run_tainted")
    assert (tainted.verdict, tainted.policy, tainted.origin_run) == ("duplicate", "block", "r2")


def test_calls_without_a_key_are_trailed(bench: Bench) -> None:
    allowed = bench.propose("r", key=b"", no_key="window_off")
    refused = bench.propose("r", key=b"", no_key="missing_key_path", blocked="tool_blocked")
    assert (allowed.verdict, allowed.reason, allowed.token) == ("allow", "window_off", None)
    assert (refused.verdict, refused.reason) == ("error", "missing_key_path")
    assert [e["outcome"] for e in bench.trail("r")] == ["allow", "error"]
    assert bench.rows(effect_store.keys) == 0


def test_tokens_grow_also_over_restarts_and_a_clock_set_back(bench: Bench) -> None:
    fences = []
    for _ in range(3):
        token = token_of(bench.propose("r"))
        fences.append(Token.parse(token).fence)
        bench.release(token)
        bench.wall -= timedelta(days=400)
        bench.restart()
    assert fences == sorted(set(fences))


def test_the_clock_does_not_run_backwards_over_a_restart(bench: Bench) -> None:
    bench.propose("r1")
    bench.wait(60)
    bench.propose("r2")
    bench.wall -= timedelta(days=1)
    bench.restart()
    assert bench.propose("r3").verdict == "pending"
    assert bench.ledger.now() >= micros(START) + 60 * SECOND


def test_a_ledger_starts_after_the_time_of_any_other(bench: Bench) -> None:
    bench.propose("r1")
    bench.wall -= timedelta(days=1)
    other = DedupeLedger(bench.engine, "ledger-1", bench._clock)
    assert other.now() >= micros(START)


def test_a_token_proves_nothing_to_another_company_nor_with_a_guessed_secret(bench: Bench) -> None:
    token = Token.parse(token_of(bench.propose("r1")))
    assert_stale(bench.confirm(token.encode(), company="other"), "unknown")
    assert_stale(bench.confirm(token._replace(nonce=bytes(8)).encode()), "reserved")
    assert_stale(bench.confirm(token._replace(fence=token.fence - 1).encode()), "reserved")
    assert_stale(bench.confirm(token._replace(key=key("never")).encode()), "unknown")
    assert bench.confirm(token.encode()).state == "confirmed"


@pytest.mark.parametrize("text", ["", "x", "AAAA", "é" * 76, "A" * 75 + "="])
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(InvalidInput):
        Token.parse(text)


def test_companies_do_not_meet(bench: Bench) -> None:
    bench.confirm(token_of(bench.propose("r1", company="acme")))
    assert bench.propose("r1", company="other").verdict == "allow"


def test_what_is_forgotten_again_is_not_what_came_after(bench: Bench) -> None:
    """The answer to a forget was lost, and before it is sent again the effect happens anew, by right."""
    bench.confirm(token_of(bench.propose("r1", window=None)))
    assert bench.forget() == Forgotten("d_forget_x")
    token = token_of(bench.propose("r2", window=None))
    assert bench.forget(again=True) == Forgotten("d_forget_x")
    bench.confirm(token)
    assert bench.forget(again=True) == Forgotten("d_forget_x")
    assert bench.propose("r3").origin_run == "r2"


def test_a_confirmation_can_be_forgotten(bench: Bench) -> None:
    token = token_of(bench.propose("r1", window=None))
    assert isinstance(bench.forget(), StateConflict)
    bench.confirm(token)
    assert isinstance(bench.forget("never"), NotFound)
    assert bench.forget() == Forgotten("d_forget_x")
    assert bench.forget(again=True) == Forgotten("d_forget_x")
    assert isinstance(bench.forget(), NotFound)
    assert_stale(bench.confirm(token), "released")
    assert bench.propose("r2").verdict == "allow"
    (entry,) = [e for e in bench.trail() if e["rule"] == "forget"]
    assert (entry["actor"], entry["reason"], entry["inputs"]["origin"]["run_id"]) == ("curator", "wrong", "r1")


def imported(what: str, **changes: Any) -> Import:
    op = Import(key(what), "acme", "ops", "triage", "mail", "curator", f"d_import_{what}", window=3600 * SECOND)
    return op._replace(**changes)


def test_imported_keys_have_the_origin_that_is_known_and_no_other(bench: Bench) -> None:
    an_hour_ago = micros(bench.wall) - 3600 * SECOND
    held = token_of(bench.propose("r", what="held"))
    answers = bench.run(
        imported("bare"),
        imported("full", run_id="old", step_id="1", confirmed_at=an_hour_ago + 1),
        imported("over", confirmed_at=an_hour_ago),
        imported("held"),
        imported("bare"),
    )
    assert answers == [Imported(o) for o in ("imported", "imported", "window_ended", "reserved", "already_confirmed")]
    bare, full = bench.propose("r", what="bare"), bench.propose("r", what="full")
    assert (bare.verdict, bare.origin_run, bare.origin_step, bare.confirmed_at) == ("duplicate", None, None, None)
    assert (full.verdict, full.origin_run, full.confirmed_at) == ("duplicate", "old", an_hour_ago + 1)
    assert bench.trail("r")[1]["inputs"]["origin"] == {}
    bench.confirm(held)
    bench.wait(3600)
    assert bench.propose("r", what="bare").verdict == "allow"


def test_a_lost_answer_is_not_counted_or_recorded_twice(bench: Bench) -> None:
    proposal = bench.proposal("r1")
    first = bench.run(proposal)[0]
    assert bench.run(proposal._replace(again=True))[0].token == first.token
    bench.confirm(token_of(first))
    duplicate = bench.proposal("r2")
    assert bench.run(duplicate)[0].duplicates == 1
    assert bench.run(duplicate._replace(again=True))[0].duplicates == 1
    never_arrived = bench.proposal("r2", again=True)
    assert bench.run(never_arrived)[0].duplicates == 2
    assert len(bench.trail("r1")) == 1
    assert len(bench.trail("r2")) == 2


def test_a_caller_that_went_away_gives_back_only_what_nobody_claimed_since(bench: Bench) -> None:
    gone = bench.propose("r1")
    back = bench.propose("r1")
    assert bench.release(token_of(gone), claim=gone.decision_id) == Settled("reserved")
    assert bench.propose("r2").verdict == "pending"
    assert bench.release(token_of(back), claim=back.decision_id) == Settled("released")


def test_each_operation_of_a_batch_sees_those_before_it_and_fails_alone(bench: Bench) -> None:
    token = Token.parse(token_of(bench.propose("r1")))
    wrong = Confirm("acme", token.key, token.fence + 1, token.nonce, "a")
    right = Confirm("acme", *token, "a")
    answers = bench.run(
        wrong, right, bench.proposal("r2"), Release("acme", *token, "a"), bench.proposal("r2", what="y")
    )
    assert isinstance(answers[0], StaleReservation)
    assert isinstance(answers[3], StaleReservation)
    assert [a.verdict for a in (answers[2], answers[4])] == ["duplicate", "allow"]


def test_everything_survives_a_restart(bench: Bench) -> None:
    confirmed = token_of(bench.propose("r1", what="c"))
    bench.confirm(confirmed)
    held = token_of(bench.propose("r1", what="h"))
    bench.restart()
    assert bench.propose("r2", what="c").origin_run == "r1"
    assert bench.propose("r2", what="h").verdict == "pending"
    assert bench.confirm(held).state == "confirmed"
    assert bench.confirm(confirmed).state == "confirmed"


def test_a_replaced_ledger_writes_nothing(bench: Bench) -> None:
    old = bench.ledger
    bench.restart()
    with pytest.raises(Fenced):
        old.execute([("c", bench.proposal("r1"))])
    with pytest.raises(Fenced):
        old.keep_house(10)
    assert bench.propose("r2").verdict == "allow"


def test_what_is_over_leaves_the_table_in_slices(bench: Bench) -> None:
    for i in range(10):
        bench.release(token_of(bench.propose("r", what=f"released {i}")))
        bench.propose("r", what=f"lapses {i}")
        bench.confirm(token_of(bench.propose("r", what=f"confirmed {i}")))
        bench.confirm(token_of(bench.propose("r", what=f"permanent {i}", window=None)))
    bench.propose("r2", what="confirmed 0")
    bench.wait(RETENTION / SECOND - 1)
    assert bench.ledger.keep_house(100) == 0
    bench.wait(3602)
    assert bench.rows(effect_store.keys) == 40
    gone = [bench.ledger.keep_house(8) for _ in range(6)]
    assert sum(gone) == 31
    assert max(gone) <= 16
    assert bench.rows(effect_store.keys) == 10
    assert bench.rows(effect_store.repeats) == 0
    assert bench.propose("r2", what="permanent 3").verdict == "duplicate"


def test_time_does_not_go_back_behind_what_was_deleted(bench: Bench) -> None:
    bench.confirm(token_of(bench.propose("r1", window=60 * SECOND)))
    bench.wait(60 + RETENTION / SECOND)
    assert bench.ledger.keep_house(10) == 1
    deleted_at = bench.ledger.now()
    bench.wall -= timedelta(days=2)
    bench.restart()
    assert bench.ledger.now() >= deleted_at


def test_the_chains_verify_and_are_one_per_company(bench: Bench) -> None:
    for company in ("acme", "other"):
        for i in range(5):
            bench.propose("r", what=str(i), company=company)
    assert bench.verify() == (10, None)
    assert {e["stream"] for e in bench.trail(company="other")} == {"ledger-0:other"}


def test_a_company_is_erased_in_slices_and_can_begin_afresh(bench: Bench) -> None:
    for i in range(7):
        bench.confirm(token_of(bench.propose("r", what=str(i))))
        bench.propose("r2", what=str(i))
    bench.propose("r", company="other")
    erased: list[Erased] = []
    while not erased or erased[-1] != Erased(0, 0, 0):
        erased += bench.run(Erase("acme", limit=5))
    assert (sum(e.effects for e in erased), sum(e.decisions for e in erased)) == (7, 14)
    assert bench.trail() == []
    assert bench.rows(effect_store.keys) == 1
    assert bench.rows(effect_store.repeats) == 0
    assert bench.propose("r2", what="3").verdict == "allow"
    assert bench.verify() == (2, None)


@pytest.mark.parametrize("kind", [Confirm, Renew, Release])
def test_a_bound_key_settles_reservations_of_its_own_area_and_agent_alone(bench: Bench, kind: Any) -> None:
    token = token_of(bench.propose("r1"))
    for bound in ({"area": "finance"}, {"agent": "mailer"}, {"area": "ops", "agent": "mailer"}):
        refused = bench.run(kind("acme", *Token.parse(token), "key:2", **bound))[0]
        never = bench.run(kind("acme", key("never was"), 1, b"12345678", "key:2", **bound))[0]
        assert isinstance(refused, StaleReservation)
        assert refused.to_wire() == never.to_wire()
    assert bench.run(kind("acme", *Token.parse(token), "key:2", area="Ops", agent="triage"))[0].late is False
    # Nor is what took the key since told of to whom it does not concern.
    bench.run(Release("acme", *Token.parse(token), "key:2"))
    bench.propose("r2")
    assert "holder" not in bench.run(kind("acme", *Token.parse(token), "key:2", area="finance"))[0].fields


def test_what_is_reserved_can_be_listed(bench: Bench) -> None:
    for i in range(5):
        bench.propose(f"r{i}", what=str(i))
    bench.confirm(token_of(bench.propose("c", what="confirmed")))
    bench.propose("r", company="other")
    with bench.engine.connect() as connection:
        now = bench.ledger.now()
        listed = partial(effect_store.list_keys, connection, "acme", equal={"area": "OPS", "tool": "mail"})
        first = listed(now, state=State.RESERVED, limit=3)
        rest = listed(now, state=State.RESERVED, after=first.next)
        lapsed = listed(now + 60 * SECOND, state=State.LAPSED)
        assert listed(now + 60 * SECOND, state=State.RESERVED).rows == []
        assert [row.run_id for row in listed(now, state=State.CONFIRMED).rows] == ["c"]
        pages = [listed(now, limit=4)]
        while pages[-1].next is not None:
            pages.append(listed(now, limit=4, after=pages[-1].next))
    assert [row.run_id for row in [*first.rows, *rest.rows]] == [f"r{i}" for i in range(5)]
    assert {row.run_id for row in lapsed.rows} == {f"r{i}" for i in range(5)}
    assert sorted(row.run_id for page in pages for row in page.rows) == ["c", *[f"r{i}" for i in range(5)]]


def test_what_the_driver_itself_refuses_leaves_nothing_and_the_ledger_goes_on(bench):
    with bench.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE effect_decisions RENAME TO away")
    with pytest.raises(sa.exc.DBAPIError):
        bench.propose("r1")
    assert bench.rows(effect_store.keys) == 0
    with bench.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO effect_decisions")
    assert bench.propose("r1").verdict == "allow"
    assert bench.verify() == (1, None)
