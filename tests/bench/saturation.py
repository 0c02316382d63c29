"""Precision under saturation: the paper's scenarios A, B and C against its ablations.

    python -m tests.bench.saturation --scenario A,B,C --modes full,lru --seeds 42,43 --profile default,paper

``--data`` takes facts and queries from a file instead of the generator (JSON lines: ``text``, ``importance``,
``query``), with the scenario's capacities. Every fact is told once, in order; then the last 101 and the first 100 are
asked for (the paper's program takes the last 101). ``history_mrr`` cannot exceed ``history_retained``, the share of the
first 100 that retention still has.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tests.bench.memory import (
    MODES,
    ActorMemory,
    Asked,
    BenchFact,
    Models,
    ask,
    load_models,
    median_ms,
    profile_for,
    progress,
    reciprocal_rank,
    run,
    shard_settings,
)
from tests.bench.options import add_common, names, numbers
from tests.bench.report import COLOURS, figure, save, stderr, table, write_json

ACTIVE, HISTORY = 101, 100
TOP_K: Final = 5
ESSENTIAL: Final = 0.95
ORDINARY: Final = 0.5
_REGIONS: Final = 25
_SUBSYSTEMS: Final = 1000
_CAUSES: Final = ("Memory Overflow", "CPU Throttling", "Disk Saturation", "Kernel Panic", "I/O Wait", "OOM Killer")
_SERVICES: Final = ("Auth-Svc", "Inference-Engine", "Data-Lake", "API-Gateway", "Stream-Processor")
COLUMNS: Final = (
    "scenario",
    "profile",
    "mode",
    "seed",
    "active_mrr",
    "history_mrr",
    "history_retained",
    "essential_lost",
    "l1",
    "l2",
    "latency_p50_ms",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """How many facts come, and how many L1 and L2 hold."""

    facts: int
    l1: int
    l2: int


SCENARIOS: Final = {
    "A": Scenario(3_000, 500, 5_000),
    "B": Scenario(15_000, 500, 5_000),
    "C": Scenario(5_000, 1_000, 14_000),
}


def read(path: Path) -> tuple[list[BenchFact], list[str]]:
    """Facts and queries of a file of JSON lines, gzipped or not."""
    data = path.read_bytes()
    rows = [json.loads(line) for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()]
    return [BenchFact(row["text"], row["importance"]) for row in rows], [row["query"] for row in rows]


def generate(count: int, seed: int) -> tuple[list[BenchFact], list[str]]:
    """``count`` facts and a query for each: a code is told, and asked for by everything else that the fact says."""
    chance = random.Random(seed)
    facts, queries = [], []
    for i in range(1, count + 1):
        region = f"Region-{chance.randrange(_REGIONS)}"
        cause, service = chance.choice(_CAUSES), chance.choice(_SERVICES)
        subsystem = f"Subsystem-{i % _SUBSYSTEMS}"
        essential = i % 10 == 0 or "Panic" in cause
        text = f"RECORD {i}: {cause} at {subsystem}, reported by {service} in {region}. Code: 0x{i:04X}."
        facts.append(BenchFact(text, ESSENTIAL if essential else ORDINARY))
        queries.append(f"Which code did {service} in {region} report for the {cause} at {subsystem}?")
    return facts, queries


async def measure(
    models: Models,
    scenario: str,
    mode: str,
    profile: str,
    facts: Sequence[BenchFact],
    queries: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    """One row of the result: a memory is filled, then asked."""
    size = SCENARIOS[scenario]
    label = f"{scenario} {profile} {mode} {seed}"
    settings = shard_settings(mode, profile, size.l1, size.l2, len(facts))
    async with ActorMemory.open(models, profile_for(mode, profile), settings) as memory:
        ids: list[str] = []
        with progress(f"{label}: telling", len(facts)) as advance:
            for start in range(0, len(facts), 1000):
                part = facts[start : start + 1000]
                ids += await memory.remember(part)
                advance(len(part))
        asked = {
            "active": range(len(facts) - ACTIVE, len(facts)),
            "history": range(HISTORY),
        }
        answers: list[Asked] = []
        mrr: dict[str, float] = {}
        for when, positions in asked.items():
            got = await ask(memory, [queries[i] for i in positions], TOP_K, f"{label}: asking, {when}")
            ranks = (reciprocal_rank(one.ids, {ids[i]}) for one, i in zip(got, positions, strict=True))
            mrr[when] = fmean(ranks)
            answers += got
        kept = memory.kept()
        return {
            "scenario": scenario,
            "mode": mode,
            "profile": profile,
            "seed": seed,
            "active_mrr": mrr["active"],
            "history_mrr": mrr["history"],
            "history_retained": fmean(float(id in kept) for id in ids[:HISTORY]),
            "essential_lost": sum(f.importance == ESSENTIAL and i not in kept for f, i in zip(facts, ids, strict=True)),
            **{tier.lower(): count for tier, count in memory.stored().items()},
            "latency_p50_ms": median_ms(answers),
        }


def plot(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Precision by mode, and latency against precision, per scenario and profile."""
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["scenario"], row["profile"]][row["mode"]].append(row)
    for (scenario, profile), modes in groups.items():
        suffix = f"{scenario.lower()}_{profile}"
        made, axes = figure()
        for offset, (key, label, colour) in enumerate(
            (("active_mrr", "newest 101", "#2a6f97"), ("history_mrr", "oldest 100", "#e09f3e"))
        ):
            means = [fmean(row[key] for row in modes[mode]) for mode in modes]
            spread = [[mean - min(row[key] for row in modes[mode]) for mode, mean in zip(modes, means, strict=True)]]
            spread.append(
                [max(row[key] for row in modes[mode]) - mean for mode, mean in zip(modes, means, strict=True)]
            )
            places = [i + (offset - 0.5) * 0.38 for i in range(len(modes))]
            bars = axes.bar(places, means, 0.36, yerr=spread, capsize=3, color=colour, label=label)
            axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
        axes.set_xticks(range(len(modes)), list(modes))
        axes.set_ylim(0, 1.12)
        axes.set_ylabel("mean reciprocal rank (higher is better)")
        axes.set_title(f"Precision under saturation: scenario {scenario}, profile {profile}", loc="left")
        axes.legend(loc="upper right", frameon=False, ncols=2)
        save(made, folder, f"saturation_{suffix}")

        made, axes = figure()
        for mode, runs in modes.items():
            x, y = fmean(row["latency_p50_ms"] for row in runs), fmean(row["active_mrr"] for row in runs)
            axes.scatter(x, y, s=110, color=COLOURS[mode], edgecolor="black", linewidth=0.6, zorder=3)
            axes.annotate(mode, (x, y), xytext=(8, -3), textcoords="offset points")
        axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
        axes.set_ylim(0, 1.08)
        axes.set_xlabel("median time of a recall, ms")
        axes.set_ylabel("mean reciprocal rank, newest 101")
        axes.set_title(f"Latency against precision: scenario {scenario}, profile {profile}", loc="left")
        save(made, folder, f"latency_precision_{suffix}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.saturation", description=__doc__.split("\n")[0])
    parser.add_argument("--scenario", type=names(*SCENARIOS), default=["B"], help="A, B, C, separated by commas")
    parser.add_argument("--modes", type=names(*MODES), default=list(MODES), help=", ".join(MODES))
    parser.add_argument("--seeds", type=numbers, default=[42], help="numbers, separated by commas")
    parser.add_argument("--data", type=Path, help="a file of facts and queries instead of generated ones")
    add_common(parser, ["default"])
    options = parser.parse_args()

    async def everything() -> list[dict[str, Any]]:
        models = load_models(options.reranker, options.runtime)
        rows = []
        for scenario, seed in product(options.scenario, options.seeds):
            facts, queries = read(options.data) if options.data else generate(SCENARIOS[scenario].facts, seed)
            models.embedder.prepare(fact.text for fact in facts)
            for profile, mode in product(options.profile, options.modes):
                rows.append(await measure(models, scenario, mode, profile, facts, queries, seed))
                stderr.print(" ".join(f"{key}={_short(value)}" for key, value in rows[-1].items()), soft_wrap=True)
        return rows

    rows = run(everything)
    table("Precision under saturation", rows, COLUMNS)
    write_json(options.out, {"rows": rows})
    if options.plots:
        plot(rows, options.plots)


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
