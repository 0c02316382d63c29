"""Group commit, fencing, the decision log's chains, the wire format, identifiers and clocks."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from muniment.actors.clock import ForwardClock
from muniment.actors.ids import new_id
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import Decision, DecisionLog, microseconds
from muniment.actors.store.engine import create_schema, open_engine, told_by
from muniment.actors.store.group_commit import GroupCommitter
from muniment.actors.store.tenure import Fence
from muniment.actors.wire import fact_from_dict, fact_to_dict, pack, unpack
from muniment.policies.errors import (
    CorruptData,
    Fenced,
    Forbidden,
    InvalidInput,
    MunimentError,
    Overloaded,
    StoreUnavailable,
)
from muniment.policies.model import Fact, Scope, Source, SourceKind
from tests.stores import Stores

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
def engine(stores: Stores) -> Iterator[sa.Engine]:
    engine = stores.hasten(open_engine(stores.url("memory")))
    create_schema(engine, t.TABLES)
    yield engine
    with engine.connect() as connection:
        assert LOG.verify(connection)[1] is None
    engine.dispose()


LOG = DecisionLog(t.decisions, t.decision_heads)


def decision(number: int, company: str = "acme", run: str | None = None) -> Decision:
    return Decision(
        id=f"d_{number}",
        company=company,
        at=NOW + timedelta(seconds=number),
        kind="conflict",
        rule="higher_rank",
        reason="r",
        actor="ana",
        outcome="replaced",
        inputs={"n": number},
        run_id=run,
    )


def count(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(sa.select(t.embedding_model)).all())


def insert(connection: sa.Connection) -> str:
    connection.execute(t.embedding_model.insert().values(name="m", dimension=1))
    return "done"


def test_what_arrives_during_a_commit_goes_into_the_next_one(engine: sa.Engine) -> None:
    begun: list[int] = []
    committer = GroupCommitter(engine, on_begin=lambda: begun.append(count(engine)))
    running, release = threading.Event(), threading.Event()

    def slow(connection: sa.Connection) -> None:
        running.set()
        assert release.wait(10)

    first = committer.submit(slow)
    assert running.wait(10)
    rest = [committer.submit(insert) for _ in range(50)]
    release.set()
    assert [f.result(10) for f in rest] == ["done"] * 50
    first.result(10)
    assert (committer.groups, committer.writes) == (2, 51)
    committer.close()
    assert count(engine) == 50
    assert begun == [0, 0]


def test_one_refused_write_leaves_the_rest_of_its_group(engine: sa.Engine) -> None:
    committer = GroupCommitter(engine)

    def refuse(connection: sa.Connection) -> None:
        insert(connection)
        raise Forbidden("no")

    good, bad = committer.submit(insert), committer.submit(refuse)
    assert good.result(10) == "done"
    with pytest.raises(Forbidden):
        bad.result(10)
    committer.close()
    assert count(engine) == 1


def test_a_group_that_does_not_commit_is_acknowledged_to_nobody(engine: sa.Engine) -> None:
    lost: list[bool] = []
    committer = GroupCommitter(engine, on_lost=lambda: lost.append(True))

    def broken(connection: sa.Connection) -> None:
        connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(StoreUnavailable):
        committer.submit(broken).result(10)
    assert lost == [True]
    assert committer.submit(insert).result(10) == "done"
    committer.close()


def test_answers_come_after_the_commit_and_after_what_follows_it(engine: sa.Engine) -> None:
    committer = GroupCommitter(engine)
    seen: list[int] = []
    committer.submit(insert, after=lambda _: seen.append(count(engine))).result(10)
    assert seen == [1]
    committer.close()
    with pytest.raises(StoreUnavailable):
        committer.submit(insert)


def test_what_a_user_wrote_is_not_in_what_a_store_refuses(engine: sa.Engine) -> None:
    row = {"company": "acme", "key": "k", "body_hash": b"", "expires_at": 0, "answer": b"Dana moved to Lisbon"}
    with engine.begin() as connection:
        connection.execute(t.requests.insert().values(row))
    with pytest.raises(sa.exc.IntegrityError) as caught, engine.begin() as connection:
        connection.execute(t.requests.insert(), [row])
    assert "Dana" not in str(caught.value)
    assert "UNIQUE" in told_by(caught.value).upper()
    detailed = sa.exc.DataError("INSERT", {}, Exception("a row is wrong\nDETAIL:  Failing row contains (Dana)."))
    assert told_by(detailed) == "Exception: a row is wrong"


def test_the_queue_is_bounded(engine: sa.Engine) -> None:
    committer = GroupCommitter(engine, max_queue=1)
    running, release = threading.Event(), threading.Event()

    def slow(connection: sa.Connection) -> None:
        running.set()
        assert release.wait(10)

    committer.submit(slow)
    assert running.wait(10)
    committer.submit(insert)
    with pytest.raises(Overloaded):
        committer.submit(insert)
    release.set()
    committer.close()


def test_a_replaced_instance_cannot_write(engine: sa.Engine) -> None:
    old = GroupCommitter(engine, Fence(engine, "shard-0"))
    other = GroupCommitter(engine, Fence(engine, "shard-1"))
    assert old.submit(insert).result(10) == "done"
    new = GroupCommitter(engine, Fence(engine, "shard-0"))
    with pytest.raises(Fenced):
        old.submit(insert).result(10)
    with pytest.raises(Fenced):
        old.submit(insert)
    assert new.submit(insert).result(10) == other.submit(insert).result(10) == "done"
    for committer in (old, new, other):
        committer.close()
    assert count(engine) == 3


@pytest.mark.parametrize(
    ("damage", "seq"),
    [
        ("UPDATE memory_decisions SET body = hash WHERE stream = 'a' AND seq = 2", 2),
        ("DELETE FROM memory_decisions WHERE stream = 'a' AND seq = 2", 2),
        ("DELETE FROM memory_decisions WHERE stream = 'a' AND seq = 1", 1),
        ("DELETE FROM memory_decisions WHERE stream = 'a' AND seq = 4", 4),
        ("DELETE FROM memory_decisions WHERE stream = 'a'", 1),
        ("UPDATE memory_decisions SET seq = CASE seq WHEN 2 THEN 30 ELSE seq END WHERE stream = 'a'", 2),
    ],
)
def test_verify_finds_a_changed_missing_or_reordered_entry(stores: Stores, damage: str, seq: int) -> None:
    engine = stores.hasten(open_engine(stores.url("memory")))
    create_schema(engine, t.TABLES)
    log = DecisionLog(t.decisions, t.decision_heads)
    with engine.begin() as connection:
        log.append(connection, "a", "acme", [decision(1), decision(2)])
        log.append(connection, "b", "other", [decision(3, "other")])
    fresh = DecisionLog(t.decisions, t.decision_heads)
    with engine.begin() as connection:
        fresh.append(connection, "a", "acme", [decision(4), decision(5)])
        assert fresh.verify(connection) == (5, None)
        assert fresh.verify(connection, "acme") == (4, None)
        connection.exec_driver_sql(damage)
    with engine.begin() as connection:
        broken = fresh.verify(connection)[1]
        assert broken == {"stream": "a", "seq": seq}
        assert fresh.verify(connection, "other") == (1, None)
    engine.dispose()


def test_entries_are_read_in_order_by_company_and_run(engine: sa.Engine) -> None:
    log = DecisionLog(t.decisions, t.decision_heads)
    with engine.begin() as connection:
        log.append(connection, "a", "acme", [decision(1, run="r1"), decision(2, run="r2")])
        log.append(connection, "b", "acme", [decision(3, run="r1")])
        log.append(connection, "c", "other", [decision(4, "other", run="r1")])
        entries = list(log.entries(connection, "acme", run_id="r1"))
        assert [entry["id"] for entry in entries] == ["d_1", "d_3"]
        assert entries[0]["at"] == decision(1).at
        after = (microseconds(entries[0]["at"]), "a", 1)
        assert [entry["id"] for entry in log.entries(connection, "acme", after=after)] == ["d_2", "d_3"]


def test_errors_survive_pickling_and_the_wire() -> None:
    for error in (InvalidInput.at("/facts/3/text", "empty"), Overloaded("full", retry_after_seconds=2)):
        for copy in (pickle.loads(pickle.dumps(error)), MunimentError.from_wire(unpack(pack(error.to_wire())))):
            assert type(copy) is type(error)
            assert (copy.detail, copy.fields, copy.retryable) == (error.detail, error.fields, error.retryable)
    assert MunimentError.from_wire({"code": "unheard_of", "detail": "d", "fields": {}}).code == "internal"


def test_error_codes_are_unique() -> None:
    with pytest.raises(TypeError, match="taken"):
        type("Another", (MunimentError,), {"code": "forbidden"})


@given(
    st.text(),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text()),
    st.datetimes(timezones=st.just(UTC)),
    st.dictionaries(st.text(), st.integers(0, 9), max_size=3),
)
def test_a_fact_survives_the_wire(text: str, value: object, at: datetime, metadata: dict[str, int]) -> None:
    fact = Fact(
        id="f_1",
        company="acme",
        text=text,
        source=Source(kind=SourceKind.COUNTERPARTY, author="lee", derived_from=("f_0",)),
        writer="ana",
        recorded_at=at,
        importance=0.0,
        subject="s",
        field="f",
        value=value,  # type: ignore[arg-type]
        scope=Scope.PERSONAL,
        user="ana",
        tags=("a",),
        metadata=metadata,
    )
    assert fact_from_dict(unpack(pack(fact_to_dict(fact)))) == fact


@pytest.mark.parametrize("data", [b"", b"\x02\x80", b"\x01", b"\x01\xc1", b"\x01\x92\x01"])
def test_what_is_not_our_format_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        unpack(data)


def test_ids_sort_by_time_and_do_not_collide() -> None:
    ids = [new_id("f", NOW + timedelta(microseconds=n)) for n in range(100)]
    assert ids == sorted(set(ids))
    assert len({new_id("f", NOW) for _ in range(1000)}) == 1000


def test_the_ledger_clock_never_runs_backwards() -> None:
    wall, ticks = [NOW], [100.0]
    clock = ForwardClock(NOW + timedelta(hours=1), lambda: wall[0], lambda: ticks[0])
    assert clock() == NOW + timedelta(hours=1)
    ticks[0] += 10
    wall[0] -= timedelta(days=1)
    assert clock() == NOW + timedelta(hours=1, seconds=10)
    wall[0] = NOW + timedelta(days=1)
    assert clock() == NOW + timedelta(days=1)
    wall[0] = NOW
    ticks[0] += 1
    assert clock() == NOW + timedelta(days=1, seconds=1)
