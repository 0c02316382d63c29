"""Recall from a real log: queries that name one or two entities of a line drawn at random, as the paper does.

    python -m tests.bench.logs --file tests/data/BGL_2k.log --format bgl --queries 200 --seed 42

Several lines often match a query equally well; ``limit`` is the MRR@5 that knowing the query text alone allows: the
mean over the queries of the sum over r ≤ min(5, n) of (1/r)/n, n the lines that contain all entities named.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from muniment.policies.entities import extract_entities
from tests.bench.memory import (
    MODES,
    ActorMemory,
    BenchFact,
    Models,
    ask,
    load_models,
    median_ms,
    profile_for,
    reciprocal_rank,
    run,
    shard_settings,
)
from tests.bench.options import add_common, names
from tests.bench.report import COLOURS, figure, save, stderr, table, write_json

DEFAULT_LOG: Final = Path(__file__).parents[1] / "data" / "BGL_2k.log"
TOP_K: Final = 5
L1, L2 = 500, 5_000
MAX_LINES: Final = 50_000
FORMATS: Final = ("bgl", "plain")
COLUMNS: Final = ("mode", "profile", "mrr@5", "share_of_limit", "latency_p50_ms", "l1", "l2")
_ALARMING: Final = re.compile(r"fatal|error|panic|fail", re.IGNORECASE)
_BGL_ENTITY: Final = re.compile(r"R\d+-M\d+|Node-\d+|FATAL|ERROR|panic|core\.\d+|0x[0-9a-fA-F]+|Kernel|Linux")
_QUESTIONS: Final = (
    "Which log line mentions {}?",
    "Look up the log record with {}",
    "What happened in connection with {}?",
    "Give me the line about {}",
)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A question made from the line at ``position``, and the entities that it names (lower case)."""

    position: int
    text: str
    entities: tuple[str, ...]


def read_lines(path: Path) -> list[str]:
    """The log's lines, trimmed, empty ones left out, at most ``MAX_LINES``."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line][:MAX_LINES]


def entities_of(line: str, form: str) -> list[str]:
    """What a question may name, in lower case: of BGL what the paper's program names, nodes, levels, core files and
    codes; of any other log its general entities."""
    if form == "bgl":
        return sorted({entity.lower() for entity in _BGL_ENTITY.findall(line)})
    return [entity for entity in extract_entities(line) if entity in line.lower()]


def make_queries(lines: Sequence[str], form: str, count: int, seed: int) -> list[LogQuery]:
    """``count`` questions about lines drawn without replacement; lines that name nothing are passed over."""
    chance = random.Random(seed)
    made: list[LogQuery] = []
    for position in chance.sample(range(len(lines)), len(lines)):
        found = entities_of(lines[position], form)
        if found:
            named = tuple(chance.sample(found, min(2, len(found))))
            made.append(LogQuery(position, chance.choice(_QUESTIONS).format(" and ".join(named)), named))
        if len(made) == count:
            break
    return made


def limit_of(queries: Sequence[LogQuery], lines: Sequence[str]) -> float:
    """See the module."""
    lowered = [line.lower() for line in lines]
    reachable = []
    for query in queries:
        n = sum(all(entity in line for entity in query.entities) for line in lowered)
        reachable.append(sum(1 / rank for rank in range(1, min(TOP_K, n) + 1)) / n)
    return fmean(reachable)


async def measure(
    models: Models, mode: str, profile: str, lines: Sequence[str], queries: Sequence[LogQuery], limit: float
) -> dict[str, Any]:
    """One row of the result."""
    facts = [BenchFact(line, 0.95 if _ALARMING.search(line) else 0.5) for line in lines]
    settings = shard_settings(mode, profile, L1, L2, len(facts))
    async with ActorMemory.open(models, profile_for(mode, profile), settings) as memory:
        ids = await memory.remember(facts)
        answers = await ask(memory, [query.text for query in queries], TOP_K, f"{profile} {mode}: asking")
        ranks = [reciprocal_rank(a.ids, {ids[q.position]}) for a, q in zip(answers, queries, strict=True)]
        mrr = fmean(ranks)
        return {
            "mode": mode,
            "profile": profile,
            "mrr@5": mrr,
            "share_of_limit": mrr / limit,
            "latency_p50_ms": median_ms(answers),
            **{tier.lower(): count for tier, count in memory.stored().items()},
        }


def plot(rows: Sequence[dict[str, Any]], limit: float, folder: Path) -> None:
    """MRR@5 by mode, with the limit as a line, per profile."""
    for profile in dict.fromkeys(row["profile"] for row in rows):
        shown = [row for row in rows if row["profile"] == profile]
        made, axes = figure()
        modes = [row["mode"] for row in shown]
        bars = axes.bar(modes, [row["mrr@5"] for row in shown], 0.6, color=[COLOURS[mode] for mode in modes])
        axes.bar_label(bars, fmt="%.3f", padding=2)
        axes.axhline(limit, color="black", linestyle="--", linewidth=1)
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "va": "bottom"}
        axes.annotate(f"limit {limit:.3f}", (1, limit), (0, 14), **place)
        axes.set_ylim(0, max(limit, *(row["mrr@5"] for row in shown)) * 1.2)
        axes.set_ylabel("MRR@5 (higher is better)")
        axes.set_title(f"Recall from a real log, profile {profile}", loc="left")
        save(made, folder, f"logs_{profile}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.logs", description=__doc__.split("\n")[0])
    parser.add_argument("--file", type=Path, default=DEFAULT_LOG, help="the log")
    parser.add_argument("--format", choices=FORMATS, default="bgl")
    parser.add_argument("--queries", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--modes", type=names(*MODES), default=list(MODES), help=", ".join(MODES))
    add_common(parser, ["default"])
    options = parser.parse_args()
    lines = read_lines(options.file)
    queries = make_queries(lines, options.format, options.queries, options.seed)
    if not queries:
        parser.error(f"{options.file}: no line names anything")
    limit = limit_of(queries, lines)

    async def everything() -> list[dict[str, Any]]:
        models = load_models(options.reranker, options.runtime)
        models.embedder.prepare(lines)
        return [
            await measure(models, mode, profile, lines, queries, limit)
            for profile, mode in product(options.profile, options.modes)
        ]

    rows = run(everything)
    table(f"{options.file.name}: {len(lines)} lines, {len(queries)} queries, limit {limit:.3f}", rows, COLUMNS)
    first = next((row for row in rows if row["mode"] == "full"), rows[0])
    top = {"mrr@5": first["mrr@5"], "limit": limit, "latency_p50_ms": first["latency_p50_ms"]}
    write_json(options.out, {**top, "rows": rows})
    stderr.print(f"MRR@5 {first['mrr@5']:.3f}, limit {limit:.3f}: {first['mrr@5'] / limit:.1%} of it")
    if options.plots:
        plot(rows, limit, options.plots)


if __name__ == "__main__":
    main()
