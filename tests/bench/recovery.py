"""Recovery: how long after ``kill -9`` of its shard a company is answered again, also beside very many others.

    python -m tests.bench.recovery                                   one company of 5,500 facts
    python -m tests.bench.recovery --tenants 1000 --facts-per-tenant 1000    beside a million others

Three times: a Ray actor that does nothing restarts (Ray's part: it notices, starts a process, imports ray); the shard
restarts and answers for a company without facts (ours: imports, opening the store); the shard restarts and answers for
the company of many facts (ours: reading it). Beside it, the same company read in a process that is warm. ``cpu_s`` is
what the new process had used of the processor when it answered, which a busy machine stretches less than the time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from muniment.actors.router import Router
from muniment.cluster.settings import Settings
from tests.bench.filling import cpu_seconds, filled, router_of, shard_pids
from tests.bench.report import figure, save, stderr, table, write_json

LARGE: Final = "large"
EMPTY: Final = "empty"
COLUMNS: Final = ("what", "facts_in_store", "median_s", "lowest_s", "highest_s", "cpu_s")


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class Nothing:
    """A Ray actor that imports nothing of ours."""

    async def pid(self) -> int:
        return os.getpid()


async def ask(router: Router, company: str, text: str) -> dict[str, Any]:
    """The answer, which waits through the restart."""
    return await router.recall(company, text, 5, "fast", None, {})


#: Seconds until the first answer, and of the processor.
Took = tuple[float, float]


async def after_a_kill(pid: int, answered: Callable[[], Awaitable[int]]) -> Took:
    """From the end of a process to the first answer of the next one, whose id ``answered`` returns."""
    os.kill(pid, signal.SIGKILL)
    started = time.perf_counter()
    following = await answered()
    return time.perf_counter() - started, cpu_seconds(following)


async def ray_alone(rounds: int) -> list[Took]:
    """See ``Nothing``."""
    actor = Nothing.remote()

    async def pid() -> int:
        while True:
            try:
                return int(await asyncio.wrap_future(actor.pid.remote().future()))
            except RayActorError:
                await asyncio.sleep(0.1)

    took = [await after_a_kill(await pid(), pid) for _ in range(rounds)]
    ray.kill(actor)
    return took


async def of_company(settings: Settings, router: Router, company: str, text: str, rounds: int) -> list[Took]:
    """Each time after the shard is up and has answered for the company, so that nothing else is going on."""

    async def answered() -> int:
        await ask(router, company, text)
        (pid,) = shard_pids(settings)
        return pid

    return [await after_a_kill(await answered(), answered) for _ in range(rounds)]


async def loading(settings: Settings, router: Router, text: str, rounds: int) -> list[Took]:
    """The first answer for a company that is not loaded, of a shard that is up."""
    (pid,) = shard_pids(settings)
    took = []
    for number in range(rounds):
        started, used = time.perf_counter(), cpu_seconds(pid)
        await ask(router, f"{LARGE}-{number}", text)
        took.append((time.perf_counter() - started, cpu_seconds(pid) - used))
    return took


def row(what: str, facts: int, took: list[Took]) -> dict[str, Any]:
    """A line of the table."""
    seconds = [one for one, _ in took]
    return {
        "what": what,
        "facts_in_store": facts,
        "median_s": statistics.median(seconds),
        "lowest_s": min(seconds),
        "highest_s": max(seconds),
        "cpu_s": statistics.median(cpu for _, cpu in took),
    }


def measure(facts: int, tenants: int, facts_per_tenant: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of one store."""
    large = [LARGE, *(f"{LARGE}-{number}" for number in range(rounds))]
    groups = [(large, facts), ([f"tenant-{number}" for number in range(tenants)], facts_per_tenant)]
    total = sum(len(companies) * each for companies, each in groups)
    with filled([*groups, ([EMPTY], 0)]) as (settings, texts):
        router = router_of(settings)

        async def main() -> list[dict[str, Any]]:
            rows = [row("Ray alone", total, await ray_alone(rounds))]
            rows.append(row("shard, no facts", total, await of_company(settings, router, EMPTY, texts[0], rounds)))
            rows.append(row(f"{facts} facts", total, await of_company(settings, router, LARGE, texts[0], rounds)))
            rows.append(row(f"{facts} facts, warm process", total, await loading(settings, router, texts[0], rounds)))
            return rows

        return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recovery", description=__doc__.split("\n")[0])
    parser.add_argument("--facts", type=int, default=5_500, help="facts of the company that is asked for")
    parser.add_argument("--tenants", type=int, default=0, help="other companies in a second store")
    parser.add_argument("--facts-per-tenant", type=int, default=1_000, help="facts of each of them")
    parser.add_argument("--rounds", type=int, default=5, help="kills of each kind")
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    options = parser.parse_args()
    rows = measure(options.facts, 0, 0, options.rounds)
    if options.tenants:
        stderr.print(f"{options.tenants * options.facts_per_tenant:,} facts more")
        rows += measure(options.facts, options.tenants, options.facts_per_tenant, options.rounds)
    table("first answer after kill -9", rows, COLUMNS)
    write_json(options.out, {"rows": rows})
    if options.plots:
        made, axes = figure(7, 0.5 + 0.5 * len(rows))
        labels = [f"{one['what']} ({one['facts_in_store']:,} in the store)" for one in rows]
        axes.barh(labels[::-1], [one["median_s"] for one in rows][::-1], color="#2a6f97")
        axes.set_xlabel("seconds (lower is better)")
        axes.set_title("First answer after kill -9 of the shard", loc="left")
        save(made, options.plots, "recovery")


if __name__ == "__main__":
    main()
