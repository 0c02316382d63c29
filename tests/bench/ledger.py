"""Durable reserve-then-confirm cycles: the ledger through actor handles, beside Redis and PostgreSQL.

All on one disk, with one client language and the same numbers of concurrent callers, in turns, so that a busy moment of
the machine hits all of them. Also, with ``--keys``: whether proposing slows down when the store holds very many keys.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import ray
from sqlalchemy import event

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Confirm, Propose, Token
from muniment.actors.store import effect_store
from muniment.actors.store.effect_store import KeyRow
from muniment.actors.store.engine import open_engine, sqlite_url, writing
from muniment.cluster.ledger_actor import create_ledger
from muniment.cluster.ledger_handle import LedgerHandle
from muniment.policies.fingerprint import KEY_BYTES, company_prefix, effect_key, parse_key_paths
from muniment.policies.reservation import State
from tests.bench.options import names, numbers
from tests.bench.report import figure, save, stderr, table, write_json
from tests.bench.rivals import LEASE_MS, WINDOW_MS, Absent, Postgres, Redis, System, postgres_server, redis_server

RIVALS: Final = ("redis_always", "redis_everysec", "postgres")
NAMESPACE: Final = "ledger-bench"
LEDGER: Final = "ledger-0"
_PATHS: Final = parse_key_paths(["/owner", "/repo", "/title"])
_COLOURS: Final = {
    "muniment": "#2a6f97",
    "redis_always": "#9e2a2b",
    "redis_everysec": "#e09f3e",
    "postgres": "#8d99ae",
}
_FILLED_AT_ONCE: Final = 20_000
_serial = itertools.count()


class Muniment:
    """The ledger through a handle, as a client process uses it."""

    def __init__(self, name: str = LEDGER) -> None:
        self.handle = LedgerHandle(name, NAMESPACE)

    async def propose(self, arguments: dict[str, Any], run: str) -> Any:
        """The verdict about one effect."""
        scope = {"company": "bench", "area": "ops", "agent": "triage", "tool": "github.create_issue"}
        key = effect_key(**scope, paths=_PATHS, arguments=arguments)
        decision = f"d_{os.getpid():x}_{next(_serial):x}"
        op = Propose(
            key, *scope.values(), run, "step", "key:1", decision, window=WINDOW_MS * 1000, lease=LEASE_MS * 1000
        )
        return await self.handle.propose(op, 0)

    async def cycle(self, arguments: dict[str, Any], run: str) -> None:
        """See ``System``."""
        proposed = await self.propose(arguments, run)
        await self.handle.settle(Confirm("bench", *Token.parse(proposed.token), "key:1"))

    async def close(self) -> None:
        """See ``System``."""
        await self.handle.close()


def _fresh_arguments() -> dict[str, Any]:
    title = f"incident {os.getpid()}-{next(_serial)}"
    return {"owner": "acme", "repo": "service", "title": title, "trace_id": "4bf92f3577b34da6"}


async def drive(system: System, callers: int, seconds: float) -> list[float]:
    """Cycles of ``callers`` concurrent callers for so long; the seconds that each took."""
    took: list[float] = []
    await asyncio.gather(*(system.cycle(_fresh_arguments(), "warm-up") for _ in range(callers)))
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while (start := time.perf_counter()) < end:
            await system.cycle(_fresh_arguments(), f"run-{next(_serial)}")
            took.append(time.perf_counter() - start)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return took


def _row(system: str, callers: int, processes: int, seconds: float, took: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(took)
    return {
        "system": system,
        "callers": callers,
        "processes": processes,
        "cycles_per_s": round(len(took) / seconds, 1),
        "p50_ms": round(1e3 * ordered[len(ordered) // 2], 3),
        "p99_ms": round(1e3 * ordered[int(len(ordered) * 0.99)], 3),
    }


def _middle(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds."""
    figures = ("cycles_per_s", "p50_ms", "p99_ms")
    return {**rounds[0], **{name: statistics.median(row[name] for row in rounds) for name in figures}}


@ray.remote(num_cpus=0)
class ClientProcess:
    """A client process of its own with one caller."""

    def __init__(self, make: Callable[[], System]) -> None:
        self._make = make

    def ready(self) -> bool:
        """Answers once the process is up."""
        return True

    def drive(self, seconds: float) -> list[float]:
        """See ``drive``."""

        async def main() -> list[float]:
            system = self._make()
            try:
                return await drive(system, 1, seconds)
            finally:
                await system.close()

        return asyncio.run(main())


@contextmanager
def systems(folder: Path, against: Sequence[str]) -> Iterator[dict[str, Callable[[], System]]]:
    """What makes a client of each system that is there; says which is not."""
    with ExitStack() as stack:
        create_ledger(sqlite_url(folder / "effects.db"), 0, namespace=NAMESPACE, name=LEDGER)
        made: dict[str, Callable[[], System]] = {"muniment": Muniment}
        for name in against:
            try:
                if name == "postgres":
                    port = stack.enter_context(postgres_server(folder))
                    made[name] = lambda port=port: Postgres(port)
                else:
                    port = stack.enter_context(redis_server(folder, name.removeprefix("redis_")))
                    made[name] = lambda port=port: Redis(port)
            except Absent as error:
                stderr.print(f"skipped: {name}: {error}")
        yield made


def compare(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all systems: callers in one process, and one caller in each of many processes."""
    rows = []
    with systems(folder, args.against) as made:
        for callers in args.callers:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in made}
            for _ in range(args.rounds):
                for name, make in made.items():
                    took = asyncio.run(_driven(make, callers, args.seconds))
                    rounds[name].append(_row(name, callers, 1, args.seconds, took))
            rows += [_middle(measured) for measured in rounds.values()]
            stderr.print(f"{callers} callers: " + _ratios(rows[-len(made) :]))
        if args.processes:
            rows += _many_processes(made, args.processes, args.seconds)
    return rows


async def _driven(make: Callable[[], System], callers: int, seconds: float) -> list[float]:
    system = make()
    try:
        return await drive(system, callers, seconds)
    finally:
        await system.close()


def _many_processes(made: dict[str, Callable[[], System]], count: int, seconds: float) -> list[dict[str, Any]]:
    rows = []
    for name, make in made.items():
        single = (lambda make=make: Postgres(make().port, 1)) if name == "postgres" else make
        clients = [ClientProcess.remote(single) for _ in range(count)]
        ray.get([client.ready.remote() for client in clients])
        took = [t for one in ray.get([client.drive.remote(seconds) for client in clients]) for t in one]
        rows.append(_row(name, count, count, seconds, took))
        for client in clients:
            ray.kill(client)
    return rows


def _ratios(rows: Sequence[dict[str, Any]]) -> str:
    ours = rows[0]
    parts = [f"{ours['cycles_per_s']:,.0f} cycles/s"]
    for row in rows[1:]:
        times = ours["cycles_per_s"] / row["cycles_per_s"]
        parts.append(f"{times:.2f}x {row['system']} (p50 {ours['p50_ms'] - row['p50_ms']:+.1f} ms)")
    return ", ".join(parts)


# Very many keys


def fill(url: str, count: int) -> None:
    """Stores ``count`` confirmed permanent keys, spread as hashes are but in order, which a store takes in fast."""
    engine = open_engine(url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    DedupeLedger(engine, "ledger-0").close()
    store = effect_store.EffectStore(engine.dialect, "ledger-0")
    prefix = company_prefix("bench")
    now = time.time_ns() // 1000
    width = KEY_BYTES - len(prefix)
    step = 256**width // count
    with stderr.status(f"storing {count:,} keys"), writing(engine).connect() as connection:
        for start in range(0, count, _FILLED_AT_ONCE):
            numbers = range(start, min(start + _FILLED_AT_ONCE, count))
            digests = ((i * step + int.from_bytes(os.urandom(width)) % step).to_bytes(width) for i in numbers)
            with connection.begin():
                store.save(
                    connection,
                    (_confirmed(prefix + digest, now + i) for i, digest in zip(numbers, digests, strict=True)),
                )
    engine.dispose()


def _confirmed(key: bytes, now: int) -> KeyRow:
    return KeyRow(
        key=key,
        company="bench",
        area="ops",
        agent="triage",
        tool="github.create_issue",
        state=State.CONFIRMED,
        run_id=f"run-{now}",
        step_id="step",
        fence=now,
        nonce=key[-8:],
        claim=None,
        ends_at=None,
        changed_at=now,
        lease=LEASE_MS * 1000,
        window=None,
        late=0,
        note=None,
        result_ref=None,
        retire_at=None,
    )


async def _first_answer(system: Muniment) -> float:
    start = time.perf_counter()
    await system.propose(_fresh_arguments(), "first")
    return time.perf_counter() - start


def many_keys(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Latencies of proposing with different numbers of keys in the store, in turns; and the time to start."""
    rows, ledgers = [], []
    for number, count in enumerate(args.keys):
        url = sqlite_url(folder / f"keys-{count}.db")
        name = f"{LEDGER}-keys-{number}"
        create_ledger(url, 0, namespace=NAMESPACE, name=name)
        started = asyncio.run(_with(Muniment(name), _first_answer))
        ledgers.append((name, count, started))
    for callers in (1, 64):
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in ledgers}
        for _ in range(args.rounds):
            for name, count, started in ledgers:
                took = asyncio.run(_with(Muniment(name), partial(_proposals, callers=callers, seconds=args.seconds)))
                row = _row("muniment", callers, 1, args.seconds, took)
                rounds[name].append({"keys": count, "start_s": round(started, 3), **row})
        rows += [_middle(measured) for measured in rounds.values()]
    return rows


async def _with(system: Muniment, work: Callable[[Muniment], Any]) -> Any:
    try:
        return await work(system)
    finally:
        await system.close()


async def _proposals(system: Muniment, *, callers: int, seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while (start := time.perf_counter()) < end:
            await system.propose(_fresh_arguments(), f"run-{next(_serial)}")
            took.append(time.perf_counter() - start)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return took


def plot(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Cycles a second against callers in one process."""
    made, axes = figure()
    for name, colour in _COLOURS.items():
        points = [(r["callers"], r["cycles_per_s"]) for r in rows if r["system"] == name and r["processes"] == 1]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("concurrent callers in one process")
    axes.set_ylabel("reserve + confirm cycles a second, durable")
    axes.legend(frameon=False)
    save(made, folder, "ledger")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=numbers, default=[1, 16, 64, 256])
    parser.add_argument("--against", type=names(*RIVALS), default=list(RIVALS), help=", ".join(RIVALS))
    parser.add_argument("--processes", type=int, default=64, help="client processes of one caller each; 0: none")
    parser.add_argument("--keys", type=numbers, help="only compare stores with so many keys, e.g. 10000,10000000")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind; the median counts")
    parser.add_argument("--dir", type=Path, help="where to store (a folder on the disk to be measured)")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write plots into this folder, as PNG")
    args = parser.parse_args()
    with TemporaryDirectory(prefix="muniment-bench-", dir=args.dir) as name:
        folder = Path(name)
        for count in args.keys or []:
            fill(sqlite_url(folder / f"keys-{count}.db"), count)
        ray.init(address="local", num_cpus=4, include_dashboard=False, namespace=NAMESPACE, logging_level="ERROR")
        try:
            rows = many_keys(folder, args) if args.keys else compare(folder, args)
        finally:
            ray.shutdown()
    keys = ["keys", "start_s"] if args.keys else ["system", "processes"]
    table("the ledger", rows, [*keys, "callers", "cycles_per_s", "p50_ms", "p99_ms"])
    write_json(args.out, {"rows": rows})
    if args.plots and not args.keys:
        plot(args.plots, rows)


if __name__ == "__main__":
    main()
