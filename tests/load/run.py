"""Load on a service that is started for it, in an open loop: what it carries, and what it does beyond.

    python -m tests.load.run sweep                                    finds the knee
    python -m tests.load.run overload --capacity 60 --seconds 30      half, twice, half of it
    python -m tests.load.run soak --rate 20 --seconds 600 --kill-every 60
    python -m tests.load.run steady --rate 20 --via handle --nodes 3

Agents of tenants, few of which are busy (Zipf), recall, remember, propose and confirm effects and rule on conflicts.
Requests come when they are due, whatever became of those before, and are measured from then. Nothing is sent twice.
What the service acknowledged is looked for while the load runs, and all of it (of much, a sample) at the end: where
something is missing the run fails, and also where a request met an error that is not a refusal; while Ray actors are
killed, 503 is none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.report import stderr, write_json
from tests.load.modes import MODES
from tests.load.report import plots, tables
from tests.load.workload import MIX, mix_of
from tests.load.world import FULL_TIERS, NoPostgres, Options, one_node, several_nodes, world

_ARRIVALS = ("poisson", "constant", "bursts")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.load.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--via", choices=("http", "handle"), default="http", help="HTTP, or actor handles")
    parser.add_argument("--nodes", type=int, default=1, help="Ray nodes; several need PostgreSQL")
    parser.add_argument("--rate", type=float, default=10.0, help="requests due a second; of a sweep, the first")
    parser.add_argument("--seconds", type=float, help="of a step, part or run; default 20, of a soak 600")
    parser.add_argument("--step", type=float, default=1.4, help="of a sweep, between two rates")
    parser.add_argument("--within-ms", type=float, default=1_000.0, help="p99 that counts as carried")
    parser.add_argument("--capacity", type=float, help="of an overload; default: what a sweep finds")
    parser.add_argument("--kill-every", type=float, help="of a soak: seconds between kills; default none")
    parser.add_argument("--arrivals", choices=_ARRIVALS, help="default poisson; of a burst, bursts")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds a request has from when it is due")
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent: how much busier the busiest are")
    parser.add_argument("--mix", type=mix_of, default=dict(MIX), help=",".join(f"{k}={v:g}" for k, v in MIX.items()))
    parser.add_argument("--prefill", type=int, help="facts of each tenant before it starts; of a soak, full tiers")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, help="write the result there, as JSON")
    parser.add_argument("--plots", type=Path, help="write plots into this folder, as PNG")
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or (600.0 if options.mode == "soak" else 20.0)
    options.prefill = options.prefill or (FULL_TIERS if options.mode == "soak" else 100)
    options.arrivals = options.arrivals or ("bursts" if options.mode == "burst" else "poisson")
    return options


async def load(options: argparse.Namespace, running: Any) -> dict[str, Any]:
    """The load, and whether what was acknowledged is there afterwards."""
    asked = Options(
        via=options.via,
        nodes=options.nodes,
        tenants=options.tenants,
        exponent=options.zipf,
        mix=options.mix,
        deadline_seconds=options.deadline,
        seed=options.seed,
        prefill=options.prefill,
    )
    async with world(running, asked) as made:
        result = await MODES[options.mode](made, options)
        result["checks"] = await made.check()
    return result


def punctual() -> None:
    """Lets this process go before others where it may, so that what is sent late is not for its own sake."""
    with suppress(PermissionError):
        os.nice(-15)


def failure(result: dict[str, Any]) -> str | None:
    """Why the run failed, or None."""
    checks = result["checks"]
    if checks["lost_or_wrong"]:
        return f"acknowledged, and not there: {checks['first_wrong']}"
    summaries = [result.get("summary", {}), *result.get("points", ())]
    failed = ("error",) if result.get("kills") else ("error", "unavailable")
    errors = [summary["errors"] for summary in summaries if any(summary.get(outcome) for outcome in failed)]
    return f"requests failed: {errors}" if errors else result.get("failed")


def main() -> None:
    options = parse()
    try:
        with one_node() if options.nodes == 1 else several_nodes(options.nodes) as running:
            punctual()
            result = asyncio.run(load(options, running))
    except NoPostgres as absent:
        print(f"load on {options.nodes} nodes: {absent}")
        return
    tables(options.mode, result)
    if options.plots:
        plots(options.mode, result, options.plots)
    result.pop("phase", None)
    said = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    write_json(options.out, {"options": said, **result})
    problem = failure(result)
    if problem:
        stderr.print(problem, markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
