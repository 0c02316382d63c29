"""Every metric is in one table with closed labels, and moves when what it counts happens."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors import metrics as m
from muniment.actors.clock import ForwardClock
from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Propose
from muniment.actors.memory_shard import MemoryShard
from muniment.actors.model_worker import ModelWorker, Priority
from muniment.actors.router import Router
from muniment.actors.store import memory_tables as t
from muniment.actors.store.engine import create_schema, open_engine, sqlite_url
from muniment.actors.store.group_commit import GroupCommitter
from muniment.actors.store.levels import conflict_levels, reservation_levels, wanted_levels
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.store.tenure import begin, want
from muniment.cluster import ray_metrics
from muniment.cluster.endpoints import ENDPOINTS, Services
from muniment.cluster.metrics import HTTP_SECONDS, METRICS, document, series
from muniment.cluster.naming import OTHER, PREFIX
from muniment.cluster.ray_metrics import merged
from muniment.cluster.settings import Settings, TelemetrySettings
from muniment.deploy.app import create_app
from muniment.policies.admission import AdmissionPolicy
from muniment.policies.errors import Fenced, NotFound, Overloaded, StoreUnavailable
from tests.ledger_thread import LedgerThread
from tests.observing import Seen
from tests.stores import Stores
from tests.unit.http_world import World, is_problem
from tests.unit.test_memory_shard import Bench, Words, at

SECONDS_TO_WAIT = 60
#: What would have a value for everybody who uses the service.
_UNBOUNDED = {"company", "user", "tool", "agent", "area", "subject", "field", "run", "text", "query", "key", "id"}


@pytest.fixture
def seen() -> Seen:
    return Seen()


# The table


def test_the_table_is_well_formed() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"muniment_[a-z_0-9]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is m.Kind.COUNTER)
        assert bool(metric.buckets) == (metric.kind is m.Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.what.endswith(".")
        assert not _UNBOUNDED & set(metric.labels)
        assert all(values and len(set(values)) == len(values) for values in metric.labels.values())


def test_the_labels_have_few_values() -> None:
    for metric in METRICS:
        combinations = 1
        for label, values in metric.labels.items():
            combinations *= 1 if (metric is HTTP_SECONDS and label == "method") else len(values)
        assert combinations <= 250, metric.name
    assert {endpoint.route for endpoint in ENDPOINTS} < set(HTTP_SECONDS.labels["route"])


def test_the_document_names_every_metric_as_it_is_scraped() -> None:
    assert [entry["name"] for entry in document()] == [PREFIX + metric.name for metric in METRICS]
    assert series(m.COMMIT_SECONDS)[0] == "ray_muniment_commit_seconds_bucket"
    assert m.MODEL_BUSY.unit == "seconds"


# The actors


def test_a_recall_tells_how_long_its_stages_took_and_what_it_lacks(stores: Stores, seen: Seen) -> None:
    bench = Bench(stores)
    router = Router(Words(), lambda _: bench.shard, observe=seen)

    async def go() -> None:
        await bench.tell({"text": "one two"}, {"text": "one three"})
        await router.recall("acme", "one", 5, "default", "ana", {})

    asyncio.run(go())
    bench.close()
    for stage in ("embed", "search", "total"):
        assert len(seen.of(m.STAGE_SECONDS, stage=stage)) == 1
    assert seen.of(m.STAGE_SECONDS, stage="rerank") == []
    assert seen.of(m.DEGRADED_ANSWERS, reason="no_reranker") == [1]


def test_a_shard_tells_of_its_gate_its_tiers_and_what_leaves_them(stores: Stores, seen: Seen) -> None:
    bench = Bench(stores, l1_capacity=4, l2_capacity=4)
    bench.shard.close()
    bench.shard = MemoryShard(
        bench.engine, "shard-0", PolicyBook(bench.control), bench.settings, clock=lambda: bench.now, observe=seen
    )
    bench.router = Router(Words(), lambda _: bench.shard)

    async def go() -> None:
        for n in range(12):
            await bench.tell({"text": f"fact number{n}", "importance": 0.9 if n < 8 else 0.1})
        await bench.ask("nothing like it")

    asyncio.run(go())
    assert sum(seen.of(m.OUTCOMES, outcome="stored")) == 12
    assert sum(seen.of(m.EVICTIONS, tier="L1")) >= 4
    assert len(seen.of(m.STAGE_SECONDS, stage="search_l1")) == 1
    decisions = [seen.of(m.GATE_DECISIONS, reason=reason) for reason in m.GATE_DECISIONS.labels["reason"]]
    assert sum(map(sum, decisions)) == 1
    assert len(seen.of(m.COMMIT_SECONDS, store="memory")) == len(seen.of(m.COMMIT_WRITES, store="memory")) >= 12
    seen.read(bench.shard.levels())
    sizes = next(iter(bench.shard._tenants.by_company.values())).sizes()
    assert seen.of(m.TIER_FACTS, tier="L1") == [sizes["L1"]]
    assert seen.of(m.TIER_FACTS, tier="L2") == [sizes["L2"]]
    assert seen.of(m.ESSENTIAL_OVERFLOW) == [max(0, sizes["L2"] - 4)]
    assert sum(seen.of(m.ESSENTIAL_KEPT)) == 1
    assert seen.of(m.COMPANIES_LOADED) == [1]
    bench.close()


def test_a_worker_tells_how_busy_it_is_and_whom_it_turns_away(seen: Seen) -> None:
    class Slow:
        name, dimension = "slow", 1

        def embed(self, texts: list[str]) -> Any:
            running.set()
            assert gate.wait(SECONDS_TO_WAIT)
            return [[0.0]] * len(texts)

    running, gate = threading.Event(), threading.Event()

    async def go() -> None:
        worker = ModelWorker(Slow(), None, max_batch=1, max_queued_items=2, observe=seen)
        first = asyncio.ensure_future(worker.embed(["a"]))
        await asyncio.to_thread(running.wait, SECONDS_TO_WAIT)
        waiting = asyncio.ensure_future(worker.embed(["b", "c"], Priority.INGEST))
        await asyncio.sleep(0)
        seen.read(worker.levels())
        with pytest.raises(Overloaded):
            await worker.embed(["d"], Priority.INGEST)
        gate.set()
        await asyncio.gather(first, waiting)

    asyncio.run(go())
    assert seen.of(m.QUEUE_LENGTH, queue="model_ingest") == [2]
    assert seen.of(m.QUEUE_LENGTH, queue="model_query") == [0]
    assert seen.of(m.REFUSED, queue="model_ingest") == [1]
    assert seen.of(m.MODEL_ITEMS, model="embed") == [1, 1, 1]
    assert len(seen.of(m.MODEL_SECONDS, model="embed")) == len(seen.of(m.MODEL_BUSY, model="embed")) == 3


# The stores


def test_a_group_that_is_not_committed_is_counted_with_the_reason(tmp_path: Path, seen: Seen) -> None:
    engine = open_engine(sqlite_url(tmp_path / "memory.db"))
    create_schema(engine, t.TABLES)
    committer = GroupCommitter(engine, max_queue=1, observe=seen)

    def fails(error: Exception) -> Any:
        def body(_: sa.Connection) -> None:
            raise error

        return body

    def refused(_: sa.Connection) -> None:
        raise NotFound("nothing")

    with pytest.raises(StoreUnavailable):
        committer.submit(fails(sa.exc.OperationalError("x", {}, Exception("gone")))).result(SECONDS_TO_WAIT)
    with pytest.raises(ZeroDivisionError):
        committer.submit(fails(ZeroDivisionError())).result(SECONDS_TO_WAIT)
    with pytest.raises(NotFound):
        committer.submit(refused).result(SECONDS_TO_WAIT)
    assert seen.of(m.COMMIT_FAILURES, store="memory", reason="store") == [1]
    assert seen.of(m.COMMIT_FAILURES, store="memory", reason="internal") == [1]
    gate, running = threading.Event(), threading.Event()
    committer.submit(lambda _: (running.set(), gate.wait(SECONDS_TO_WAIT)))
    assert running.wait(SECONDS_TO_WAIT)
    committer.submit(lambda _: None)
    with pytest.raises(Overloaded):
        committer.submit(lambda _: None)
    assert committer.queued == 1
    gate.set()
    committer.close()
    assert seen.of(m.REFUSED, queue="memory_writes") == [1]
    engine.dispose()


@pytest.mark.parametrize(("reported_ms", "seconds"), [(100, 1.0), (2_000, 2.0), (10_000, 5.0)])
def test_gauges_are_read_for_every_report(monkeypatch: pytest.MonkeyPatch, reported_ms: int, seconds: float) -> None:
    config = SimpleNamespace(metrics_report_interval_ms=lambda: reported_ms)
    monkeypatch.setattr(ray_metrics.ray, "_config", config)
    assert ray_metrics.sample_seconds() == seconds


def test_how_many_are_wanted_is_what_the_store_says(tmp_path: Path, seen: Seen) -> None:
    engine = open_engine(sqlite_url(tmp_path / "memory.db"))
    create_schema(engine, t.TABLES)
    with engine.begin() as connection:
        begin(connection, "shard", 2)
    for wanted in (2, 3):
        with engine.begin() as connection:
            want(connection, "shard", wanted)
        seen.read(wanted_levels(engine, "shard")())
    assert seen.of(m.ACTORS_WANTED, kind="shard") == [2, 3]
    engine.dispose()


class Ledger:
    """A ledger with its loop, and a wall clock."""

    def __init__(self, folder: Path, observe: m.Observe) -> None:
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.engine = open_engine(sqlite_url(folder / "effects.db"))
        self.thread = LedgerThread(self.open, observe=observe)

    def open(self) -> DedupeLedger:
        clock = lambda floor: ForwardClock(floor, wall=lambda: self.wall, monotonic=lambda: 0.0)  # noqa: E731
        return DedupeLedger(self.engine, "ledger-0", clock)


@pytest.fixture
def ledger(tmp_path: Path, seen: Seen) -> Iterator[Ledger]:
    made = Ledger(tmp_path, seen)
    yield made
    made.thread.close()
    made.engine.dispose()


def propose(run: str, key: bytes = b"k" * 32) -> Propose:
    return Propose(key, "acme", "sales", "bot", "mail", run, "1", "ana", f"d_{run}")


def test_a_ledger_tells_of_its_verdicts_and_of_what_is_held(ledger: Ledger, seen: Seen) -> None:
    first, second = ledger.thread.answers(propose("a"), propose("b"))
    assert (first.verdict, second.verdict) == ("allow", "pending")
    assert seen.of(m.VERDICTS, verdict="allow", reason="reserved") == [1]
    assert seen.of(m.VERDICTS, verdict="pending", reason="held_by_another_run") == [1]
    assert seen.of(m.COMMIT_WRITES, store="effects") == [2]
    ledger.wall += timedelta(seconds=50)
    seen.read(reservation_levels(ledger.engine, lambda: ledger.wall)())
    assert seen.of(m.RESERVATIONS) == [1]
    assert seen.of(m.OLDEST_RESERVATION) == [pytest.approx(50, abs=1)]
    ledger.wall += timedelta(seconds=50)  # the lease of a minute is over
    seen.read(reservation_levels(ledger.engine, lambda: ledger.wall)())
    assert seen.of(m.RESERVATIONS)[-1] == seen.of(m.OLDEST_RESERVATION)[-1] == 0
    seen.read(ledger.thread.loop.levels())
    assert seen.of(m.QUEUE_LENGTH, queue="ledger_operations") == seen.of(m.WAITING_POLLS) == [0]


def test_what_is_held_is_read_from_the_store(stores: Stores, seen: Seen) -> None:
    engine = open_engine(stores.url("effects"))
    ledger = DedupeLedger(engine, "ledger-0")
    ledger.execute([("c", propose("a")), ("c", propose("b", b"l" * 32)), ("c", propose("c"))])
    now = datetime.now(UTC)
    seen.read(reservation_levels(engine, lambda: now + timedelta(seconds=30))())
    seen.read(reservation_levels(engine, lambda: now + timedelta(minutes=2))())
    ledger.close()
    engine.dispose()
    assert seen.of(m.RESERVATIONS) == [2, 0]
    assert seen.of(m.OLDEST_RESERVATION) == [pytest.approx(30, abs=5), 0]


def test_a_replaced_ledger_is_counted_as_fenced(ledger: Ledger, seen: Seen) -> None:
    ledger.thread.answers(propose("a"))
    ledger.open()
    with pytest.raises(Fenced):
        ledger.thread.answers(propose("b"))
    assert seen.of(m.COMMIT_FAILURES, store="effects", reason="fenced") == [1]


def test_open_conflicts_are_counted_by_age_and_those_overdue_beside(stores: Stores, seen: Seen) -> None:
    bench = Bench(stores)
    bench.policy(default_owner="ana", escalation={"due_days": 2})
    slot = {"subject": "Aurora", "field": "contact", "source": {"kind": "system_of_record", "id": "crm"}}

    async def go() -> None:
        await bench.tell({"text": "Dana", "value": "Dana", **slot})
        await bench.tell({"text": "Lee", "value": "Lee", **slot})

    asyncio.run(go())
    for days, age, overdue in ((0.01, "hour", 0), (0.5, "day", 0), (3, "week", 1), (30, "older", 1)):
        then = at(days)
        one = Seen()
        one.read(conflict_levels(bench.engine, lambda then=then: then)())
        assert one.of(m.CONFLICTS_OPEN, kind="conflict", age=age) == [1]
        assert one.of(m.CONFLICTS_OVERDUE, kind="conflict") == [overdue]
        others = (name for name in m.AGE_NAMES if name != age)
        assert all(one.of(m.CONFLICTS_OPEN, kind="conflict", age=name) == [0] for name in others)
    bench.close()


# Over HTTP

EXPOSITION = "# HELP ray_muniment_x A number.\n# TYPE ray_muniment_x gauge\n"


@pytest.fixture
def world(tmp_path: Path, seen: Seen) -> Iterator[World]:
    made = World(tmp_path)
    services = Services(**{field.name: getattr(made, field.name) for field in fields(Services)})
    settings = Settings(data_dir=tmp_path, telemetry=TelemetrySettings(metrics_key="s3cret"))

    async def scrape() -> str:
        return EXPOSITION

    made.app = create_app(services, settings, observe=seen, scrape=scrape)
    yield made
    made.close()


def test_requests_are_counted_by_route_and_never_by_what_a_path_names(world: World, seen: Seen) -> None:
    key = world.key("agent")
    assert world.send("GET", "/v1/memories/f_secret", key).status_code == 200
    world.send("GET", "/v1/memories/f_secret", "nobody")
    world.send("GET", "/v1/what/is/this", key)
    world.send("BREW", "/healthz")
    world.send("GET", "/console/static/console.css")
    assert len(seen.of(HTTP_SECONDS, method="GET", route="/v1/memories/{id}", status="2xx")) == 1
    assert len(seen.of(HTTP_SECONDS, method="GET", route=OTHER, status="4xx")) == 2
    assert len(seen.of(HTTP_SECONDS, method=OTHER, route="/healthz", status="4xx")) == 1
    assert len(seen.of(HTTP_SECONDS, method="GET", route="/console", status="2xx")) == 1


def test_requests_that_are_turned_away_at_once_are_counted(
    world: World, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdmissionPolicy, "retry_after", lambda *_: 3)
    key = world.key("agent")
    is_problem(world.send("POST", "/v1/recall", key, json={"query": "x"}), 429)
    is_problem(world.send("POST", "/v1/effects/confirm", key, json={"token": "t"}), 429)
    assert seen.of(m.REFUSED, queue="http") == seen.of(m.REFUSED, queue="http_effects") == [1]


def test_metrics_open_to_the_operator_and_to_the_key_for_them_alone(world: World) -> None:
    for key in (world.operator, "s3cret"):
        answer = world.send("GET", "/metrics", key)
        assert (answer.status_code, answer.text) == (200, EXPOSITION)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    is_problem(world.send("GET", "/metrics"), 401)
    is_problem(world.send("GET", "/metrics", "s3cre"), 401)
    is_problem(world.send("GET", "/metrics", headers={"Authorization": "s3cret"}), 401)
    is_problem(world.send("GET", "/metrics", world.key("admin", "auditor")), 403)
    is_problem(world.send("GET", "/v1/stats", "s3cret"), 401)
    assert world.calls == 0


def test_the_nodes_expositions_become_one() -> None:
    node = """# HELP python_info Python.
# TYPE python_info gauge
python_info{version="3"} 1.0
# HELP ray_muniment_b Some.
# TYPE ray_muniment_b histogram
ray_muniment_b_bucket{NodeAddress="%s",le="+Inf"} 2.0
ray_muniment_b_sum{NodeAddress="%s"} 0.5
# HELP ray_serve_c Others.
# TYPE ray_serve_c counter
ray_serve_c_total 1.0
"""
    text = merged([node % ("a", "a"), node % ("b", "b")])
    assert text.splitlines() == [
        "# HELP ray_muniment_b Some.",
        "# TYPE ray_muniment_b histogram",
        'ray_muniment_b_bucket{NodeAddress="a",le="+Inf"} 2.0',
        'ray_muniment_b_sum{NodeAddress="a"} 0.5',
        'ray_muniment_b_bucket{NodeAddress="b",le="+Inf"} 2.0',
        'ray_muniment_b_sum{NodeAddress="b"} 0.5',
        "# HELP ray_serve_c Others.",
        "# TYPE ray_serve_c counter",
        "ray_serve_c_total 1.0",
        "ray_serve_c_total 1.0",
    ]
