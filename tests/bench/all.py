"""Every benchmark, one after the other: all tables and plots in one folder.

    python -m tests.bench.all --out bench              what fits into 20 minutes on two cores
    python -m tests.bench.all --out bench --size full  every scenario, seed and size
    python -m tests.bench.all --out bench --size smoke whether they run and write their reports; figures mean nothing

What cannot be run here (data that is not there, a rival that is not installed) is said in one line. Each benchmark's
table goes to standard output and to ``OUT/tables.txt``, its result to ``OUT/NAME.json``, its plots to ``OUT``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.options import names
from tests.bench.report import stderr


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark and its options by size. ``needs``: an option of ours that it needs."""

    module: str
    smoke: str
    usual: str
    full: str
    needs: str | None = None


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "index": Benchmark(
        "tests.bench.index", "--sizes 500", "--sizes 500,5000,20000", "--sizes 500,5000,10000,20000,50000"
    ),
    "slots": Benchmark(
        "tests.bench.slots",
        "--slots 200,400 --requests 20",
        "--slots 1000,20000",
        "--slots 1000,100000",
    ),
    "ledger": Benchmark(
        "tests.bench.ledger",
        "--callers 16 --seconds 0.3 --rounds 1 --processes 0",
        "--callers 1,16,64,256 --seconds 2 --rounds 1 --processes 16",
        "",
    ),
    "ingest": Benchmark("tests.bench.ingest", "--facts 100", "--facts 2000", "--facts 5000"),
    "writes": Benchmark("tests.bench.writes", "--facts 200 --rounds 1", "", "--facts 20000"),
    "recall": Benchmark(
        "tests.bench.recall",
        "--facts 100 --queries 4 --callers 1,4 --against inprocess",
        "--queries 40",
        "",
    ),
    "tenants": Benchmark(
        "tests.bench.tenants",
        "--tenants 10 --active 5 --seconds 1 --large 300",
        "",
        "--tenants 100000 --active 1000 --facts 10 --large 200000",
    ),
    "shards": Benchmark(
        "tests.bench.shards",
        "--shards 1,2 --companies 4 --facts 20 --seconds 0.5",
        "--companies 16 --facts 1000 --seconds 4",
        "--shards 1,2,4,8",
    ),
    "recovery": Benchmark(
        "tests.bench.recovery",
        "--facts 100 --rounds 1",
        "--rounds 3",
        "--rounds 5 --tenants 1000 --facts-per-tenant 1000",
    ),
    "logs": Benchmark("tests.bench.logs", "--queries 10 --modes full", "--queries 60", "--profile default,fast,paper"),
    "locomo": Benchmark(
        "tests.bench.locomo", "--profile fast", "--profile default,fast", "--profile default,fast,paper", needs="locomo"
    ),
    "saturation": Benchmark(
        "tests.bench.saturation",
        "--scenario A --modes full --profile fast",
        "--scenario B --seeds 42",
        "--scenario A,B,C --seeds 42,43,44,45,46 --profile default,paper",
    ),
}


def command(name: str, size: str, out: Path, given: Mapping[str, Path | None]) -> list[str] | None:
    """What runs a benchmark; None where something it needs was not given."""
    benchmark = BENCHMARKS[name]
    found = [sys.executable, "-m", benchmark.module, *getattr(benchmark, size).split()]
    if benchmark.needs is not None:
        data = given[benchmark.needs]
        if data is None or not data.is_file():
            return None
        found += ["--data", str(data)]
    return [*found, "--out", str(out / f"{name}.json"), "--plots", str(out)]


def run(name: str, line: Sequence[str], tables: Path) -> bool:
    """Runs a benchmark; whether it went well."""
    started = time.monotonic()
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    with tables.open("a", encoding="utf-8") as file:
        file.write(done.stdout)
    ended = "done" if done.returncode == 0 else f"failed with status {done.returncode}"
    stderr.print(f"{name}: {ended} after {time.monotonic() - started:.0f} s", highlight=False)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.all", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder for everything")
    parser.add_argument("--size", choices=("smoke", "usual", "full"), default="usual")
    parser.add_argument("--only", type=names(*BENCHMARKS), default=list(BENCHMARKS), help=", ".join(BENCHMARKS))
    parser.add_argument("--locomo", type=Path, help="conversations of LoCoMo, which are not part of this repository")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tables = options.out / "tables.txt"
    tables.write_text("", encoding="utf-8")
    failed = []
    for name in options.only:
        line = command(name, options.size, options.out, {"locomo": options.locomo})
        if line is None:
            stderr.print(f"{name}: left out, its data is not here; name it with --{BENCHMARKS[name].needs}")
        elif not run(name, line, tables):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
