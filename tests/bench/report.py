"""What every benchmark prints and writes: a table, JSON, PNG plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Where the output is a file or a pipe, rows are not folded.
stdout = Console(width=None if sys.stdout.isatty() else 160)
stderr = Console(stderr=True, width=None if sys.stderr.isatty() else 160)

COLOURS = {
    "full": "#2a6f97",
    "oracle": "#8d99ae",
    "no_ce": "#61a5c2",
    "no_gate": "#e09f3e",
    "lru": "#9e2a2b",
    "default": "#2a6f97",
    "fast": "#61a5c2",
    "paper": "#e09f3e",
}


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints ``columns`` of ``rows``; numbers that are not whole with three digits."""
    made = Table(title=title, title_justify="left")
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        made.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(_cell(row.get(column)) for column in columns))
    stdout.print(made)


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """Writes the result where ``--out`` says, or nowhere."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        stderr.print(f"written: {path}")


def figure(width: float = 8, height: float = 4.5) -> tuple[Any, Any]:
    """A figure and its axes, without a display and without a frame."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return made, axes


def save(made: Any, folder: Path, name: str) -> None:
    """Writes ``folder/name.png``."""
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    made.savefig(folder / f"{name}.png", dpi=150)
    pyplot.close(made)
    stderr.print(f"written: {folder / name}.png")
