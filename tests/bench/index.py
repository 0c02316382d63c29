"""What a search of one tier costs, by size, kind of index and share of visible members; what the constants rest on.

    python -m tests.bench.index [--sizes 500,5000,10000,20000,50000] [--dimension 384] [--out FILE.json]

One thread, synthetic clustered vectors, Zipf-distributed words with one of its own in every text (20 a text). Times are
p50 in ms; recall@k is against the exact index, 1 by definition where the exact search answers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from muniment.actors.lexical_index import LexicalIndex
from muniment.actors.tier_index import TierIndex
from tests.bench.report import figure, save

SEED = 42
K = 100
QUERIES = 100
KEPT = (1.0, 0.7, 0.4, 0.1, 0.01)
BATCH = 500

console = Console()


def vectors(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Clusters of about 100 members in a space of fewer dimensions than it shows, as sentence vectors are."""
    inner = max(8, dimension // 8)
    spread = np.random.default_rng(SEED).standard_normal((inner, dimension))
    centres = rng.standard_normal((max(5, count // 100), inner))
    points = centres[rng.integers(0, len(centres), count)] + 0.7 * rng.standard_normal((count, inner))
    return (points @ spread + 0.3 * rng.standard_normal((count, dimension))).astype(np.float32)


def texts(rng: np.random.Generator, count: int) -> list[list[str]]:
    """Twenty words each."""
    vocabulary = max(2000, 2 * count)
    likely = np.cumsum(1 / (np.arange(vocabulary) + 3.0))
    ranks = np.searchsorted(likely, rng.random((count, 19)) * likely[-1])
    return [[*(f"w{rank}" for rank in row), f"id{n}"] for n, row in enumerate(ranks)]


def p50(call: Callable[[Any], Any], arguments: Iterator[Any]) -> float:
    """Median milliseconds of one call."""
    taken = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken) * 1e3)


def vector_rows(size: int, dimension: int) -> Iterator[dict[str, Any]]:
    """Latency and recall of both kinds at one size."""
    rng = np.random.default_rng(SEED)
    stored = vectors(rng, size, dimension)
    near = stored[rng.integers(0, size, QUERIES)]
    queries = near + 0.3 * np.std(near) * rng.standard_normal(near.shape).astype(np.float32)
    ids = [f"f{n:07}" for n in range(size)]
    indexes = {kind: TierIndex(dimension, kind) for kind in ("flat", "hnsw")}
    built: dict[str, float] = {}
    for kind, index in indexes.items():
        start = time.perf_counter()
        for at in range(0, size, BATCH):
            index.add(ids[at : at + BATCH], stored[at : at + BATCH])
        index.settle(3600)
        built[kind] = time.perf_counter() - start
    for kept in KEPT:
        mask = None if kept == 1.0 else rng.random(size) < kept
        exact = [set(indexes["flat"].search(query, K, mask)[0].tolist()) for query in queries]
        for kind, index in indexes.items():
            found = [set(index.search(query, K, mask)[0].tolist()) for query in queries]
            shares = [len(a & b) / len(b) for a, b in zip(found, exact, strict=True) if b]
            yield {
                "index": kind,
                "members": size,
                "kept": kept,
                "p50_ms": p50(lambda query, index=index, mask=mask: index.search(query, K, mask), iter(queries)),
                "recall@100": float(np.mean(shares)),
                "build_us_per_member": built[kind] / size * 1e6,
            }


def word_rows(size: int) -> Iterator[dict[str, Any]]:
    """Latency of BM25 at one size; queries of nine words, one of them rare."""
    rng = np.random.default_rng(SEED)
    stored = texts(rng, size)
    index = TierIndex(1, "flat")
    lexical = LexicalIndex(index.positions)
    ids = [f"f{n:07}" for n in range(size)]
    start = time.perf_counter()
    index.add(ids, np.ones((size, 1), np.float32))
    for id, terms in zip(ids, stored, strict=True):
        lexical.add(id, Counter(terms))
    built = time.perf_counter() - start
    queries = [[*stored[n][:8], stored[n][-1]] for n in rng.integers(0, size, QUERIES)]
    for kept in KEPT:
        mask = None if kept == 1.0 else rng.random(size) < kept
        yield {
            "index": "lexical",
            "members": size,
            "kept": kept,
            "p50_ms": p50(lambda query, mask=mask: lexical.search(query, K, mask), iter(queries)),
            "recall@100": 1.0,
            "build_us_per_member": built / size * 1e6,
        }


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each index and size, a column for each share of visible members."""
    shown = Table(title=f"p50 ms for the best {K} (recall@{K} where it is not exact), by share of visible members")
    for heading in ("index", "members", *(f"{kept:.0%}" for kept in KEPT), "build, µs a member"):
        shown.add_column(heading, justify="left" if heading == "index" else "right")
    by_line: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        by_line.setdefault((row["index"], row["members"]), []).append(row)
    for (kind, members), cells in sorted(by_line.items()):
        figures = [
            f"{cell['p50_ms']:.3f}" + (f" ({cell['recall@100']:.3f})" if cell["recall@100"] < 0.9995 else "")
            for cell in cells
        ]
        shown.add_row(kind, f"{members:,}", *figures, f"{cells[0]['build_us_per_member']:.0f}")
    return shown


def plot(rows: list[dict[str, Any]], folder: Path) -> None:
    """The median time of a search by members, where all of them are visible."""
    made, axes = figure(6, 4)
    for kind, colour in (("flat", "#2a6f97"), ("hnsw", "#e09f3e"), ("lexical", "#8d99ae")):
        shown = [row for row in rows if row["index"] == kind and row["kept"] == 1.0]
        axes.plot([row["members"] for row in shown], [row["p50_ms"] for row in shown], "o-", color=colour, label=kind)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("members")
    axes.set_ylabel("p50, ms (lower is better)")
    axes.set_title(f"The best {K} of a tier", loc="left")
    axes.legend(frameon=False)
    save(made, folder, "index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="500,5000,10000,20000,50000", help="members, separated by commas")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--plots", type=Path, help="write a plot into this folder, as PNG")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    rows: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("searching", total=len(sizes) * 3 * len(KEPT))
        for size in sizes:
            for row in chain(vector_rows(size, args.dimension), word_rows(size)):
                rows.append(row)
                progress.advance(task)
    console.print(table(rows))
    if args.out is not None:
        args.out.write_text(json.dumps({"rows": rows}, indent=1))
    if args.plots is not None:
        plot(rows, args.plots)


if __name__ == "__main__":
    main()
