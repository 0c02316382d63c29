"""Writes to a slot and reads of one, by how many slots there are: a company's size must not be felt.

``python -m tests.bench.slots [--slots 1000,100000] [--versions 5] [--requests 300] [--out FILE.json]``

The store is filled as an import would fill it: every version of a slot is a later value, with the decision that it
replaced the one before; the newest facts lie in the two tiers, as many as these hold. Then one slot at a time, drawn at
random, gets another version (a write with its commit), and is read by rule as ``GET /v1/facts`` does. Times are of the
shard and the reader, without the network: p50 and p99 in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from muniment.actors.ids import new_id
from muniment.actors.memory_shard import MemoryShard, ShardSettings
from muniment.actors.slot_reader import SlotReader
from muniment.actors.store import memory_store
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.decision_log import Decision, DecisionLog
from muniment.actors.store.engine import create_schema, open_engine, sqlite_url, writing
from muniment.actors.store.memory_store import Stored
from muniment.actors.store.memory_tables import TABLES, decision_heads, decisions
from muniment.actors.store.policy_book import PolicyBook
from muniment.actors.wire import fact_from_dict
from muniment.policies.model import Fact, Scope, Slot, Status, Tier
from tests.bench.options import numbers
from tests.bench.report import figure, save, stderr, table, write_json

COMPANY = "bench"
DIMENSION = 128
ACTOR = {"id": "crm", "groups": [], "may_claim_record": True}
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
BATCH = 1000


class Store:
    """A shard over empty databases, its reader, and vectors that cost nothing to make."""

    def __init__(self, folder: Path) -> None:
        engine = open_engine(sqlite_url(folder / "memory.db"))
        create_schema(engine, TABLES)
        control = ControlStore(sqlite_url(folder / "control.db"))
        control.create_company(COMPANY, "bench")
        policies = PolicyBook(control)
        self.engine = engine
        self.shard = MemoryShard(engine, "shard-0", policies)
        self.reader = SlotReader(policies)
        self._rng = np.random.default_rng(42)

    def fact(self, slot: int, version: int) -> dict[str, Any]:
        return {
            "text": f"the contact of customer {slot} is person {version}",
            "subject": f"customer {slot}",
            "field": "contact",
            "value": f"person {version}",
            "importance": 0.5,
            "writer": "crm",
            "source": {"kind": "system_of_record", "id": "crm"},
            "effective_at": BEGIN + timedelta(days=version),
        }

    def fill(self, slots: int, versions: int) -> None:
        """Every slot with all its versions, the last of which is current."""
        log = DecisionLog(decisions, decision_heads)
        settings = ShardSettings()
        with writing(self.engine).begin() as connection:
            memory_store.claim_model(connection, "none", DIMENSION)
        for first in range(0, slots, BATCH):
            part = range(first, min(first + BATCH, slots))
            stored: list[Stored] = []
            logged: list[Decision] = []
            for slot in part:
                now = BEGIN + timedelta(days=100, milliseconds=slot * versions)
                times = [now + timedelta(milliseconds=version) for version in range(versions)]
                ids = [new_id("f", at) for at in times]
                for version, (id, at) in enumerate(zip(ids, times, strict=True)):
                    last = version == versions - 1
                    fact = fact_from_dict({**self.fact(slot, version), "id": id, "company": COMPANY, "recorded_at": at})
                    if not last:
                        fact = replace(fact, status=Status.SUPERSEDED, superseded_by=ids[version + 1])
                    newer = slots - 1 - slot
                    tier = Tier.L1 if newer < settings.l1_capacity else Tier.L2
                    indexed = last and newer < settings.l1_capacity + settings.l2_capacity
                    stored.append(Stored(fact, tier if indexed else None, 0, self.vectors(1)))
                    if version:
                        logged.append(_decision(fact, at))
            with writing(self.engine).begin() as connection:
                memory_store.insert_facts(connection, stored)
                log.append(connection, f"memory:{COMPANY}", COMPANY, logged)

    def vectors(self, count: int) -> bytes:
        return self._rng.standard_normal((count, DIMENSION), np.float32).tobytes()

    async def tell(self, facts: list[dict[str, Any]]) -> None:
        vectors = self.vectors(len(facts))
        await self.shard.remember(company=COMPANY, facts=facts, vectors=vectors, actor=ACTOR, model="none")

    def read(self, slot: int) -> Any:
        """As ``GET /v1/facts`` reads: the reader's own slot and the shared one."""
        names = (f"customer {slot}", "contact")
        slots = [Slot(COMPANY, Scope.PERSONAL, "ana", *names), Slot(COMPANY, Scope.SHARED, "", *names)]
        now = datetime.now(UTC)
        with self.engine.connect() as connection:
            return [self.reader.page(connection, slot, None, None, now) for slot in slots][1].current


async def measure(slots: int, versions: int, requests: int, folder: Path) -> dict[str, Any]:
    """One size: fills the store, then writes to and reads slots at random."""
    store = Store(folder)
    started = time.perf_counter()
    store.fill(slots, versions)
    stderr.print(f"{slots} slots x {versions} versions stored in {time.perf_counter() - started:.0f} s")
    await store.shard.warm(COMPANY, DIMENSION)
    rng = random.Random(42)
    reached: dict[int, int] = {}
    writes, reads = [], []
    for _ in range(requests):
        slot = rng.randrange(slots)
        reached[slot] = reached.get(slot, versions - 1) + 1
        began = time.perf_counter()
        await store.tell([store.fact(slot, reached[slot])])
        writes.append((time.perf_counter() - began) * 1000)
        slot = rng.randrange(slots)
        began = time.perf_counter()
        current = store.read(slot)
        reads.append((time.perf_counter() - began) * 1000)
        assert current is not None, "every slot has a value"
    store.shard.close()
    store.engine.dispose()
    return {
        "slots": slots,
        "versions": versions,
        **{f"write_{name}": value for name, value in _percentiles(writes).items()},
        **{f"facts_{name}": value for name, value in _percentiles(reads).items()},
    }


def _decision(fact: Fact, at: datetime) -> Decision:
    inputs = {"fact": fact.id, "challenger": {"id": fact.id, "value": fact.value}}
    return Decision(
        id=new_id("d", at),
        company=COMPANY,
        at=at,
        kind="conflict",
        rule="later_date",
        reason="Equally strong sources: the later effective date holds.",
        actor="crm",
        outcome="replaced",
        inputs=inputs,
        subject=fact.subject,
        field=fact.field,
    )


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=numbers, default=[1_000, 100_000], help="sizes, the smallest first")
    parser.add_argument("--versions", type=int, default=5, help="versions of each slot")
    parser.add_argument("--requests", type=int, default=300, help="writes and reads that are timed")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    options = parser.parse_args()
    rows = []
    for slots in options.slots:
        with tempfile.TemporaryDirectory(prefix="muniment-slots-") as folder:
            rows.append(asyncio.run(measure(slots, options.versions, options.requests, Path(folder))))
        rows[-1]["write_ratio"] = rows[-1]["write_p50_ms"] / rows[0]["write_p50_ms"]
        rows[-1]["facts_ratio"] = rows[-1]["facts_p50_ms"] / rows[0]["facts_p50_ms"]
    columns = ["slots", "versions", "write_p50_ms", "write_p99_ms", "write_ratio"]
    table("One slot among many", rows, [*columns, "facts_p50_ms", "facts_p99_ms", "facts_ratio"])
    write_json(options.out, {"rows": rows})
    if options.plots:
        plot(rows, options.plots)


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """The median times by how many slots there are."""
    made, axes = figure(5)
    for what, colour in (("write", "#2a6f97"), ("facts", "#e09f3e")):
        axes.plot(
            [row["slots"] for row in rows], [row[f"{what}_p50_ms"] for row in rows], "o-", color=colour, label=what
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("slots of one company")
    axes.set_ylabel("p50, ms (lower is better)")
    axes.set_title("A write to and a read of one slot", loc="left")
    axes.legend(frameon=False)
    save(made, folder, "slots")


if __name__ == "__main__":
    main()
