"""The trade of a calibration as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

from rich.table import Column, Table

from muniment.cluster.calibration import Calibrated
from muniment.policies.calibration import TradePoint
from muniment.policies.errors import ConfigurationError

#: Every how many-th threshold is a row of the table.
_SHOWN = 5


def table_of(found: Calibrated) -> Table:
    """The trade at some thresholds, the chosen one and the one that held before."""
    table = Table(
        Column("threshold", justify="right"),
        Column("searches L2", justify="right"),
        Column("recall@5", justify="right"),
        Column("recall lost", justify="right"),
        "",
        title=f"{found.company}, {found.model}, {found.queries} queries",
        box=None,
    )
    for number, point in enumerate(found.points):
        note = _note(point, found)
        if note or number % _SHOWN == 0:
            table.add_row(
                f"{point.threshold:.2f}",
                f"{point.searches_l2:.1%}",
                f"{point.recall:.3f}",
                f"{point.recall_lost:.4f}",
                note,
                style="bold" if point == found.chosen else None,
            )
    return table


def _note(point: TradePoint, found: Calibrated) -> str:
    notes = {"chosen": point == found.chosen, "before": round(point.threshold, 9) == round(found.before, 9)}
    return ", ".join(name for name, holds in notes.items() if holds)


def plot_trade(found: Calibrated, path: Path) -> None:
    """Writes a PNG: over the threshold, the share of queries that search L2, and the recall lost."""
    try:
        from matplotlib.figure import Figure  # half a second to import: only where a picture is wanted
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib; install it with: pip install matplotlib") from error

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    thresholds = [point.threshold for point in found.points]
    axes.plot(
        thresholds, [point.searches_l2 for point in found.points], color="#1f6f8b", label="queries that search L2"
    )
    axes.plot(thresholds, [point.recall_lost for point in found.points], color="#c0392b", label="recall@5 lost")
    axes.axvline(found.chosen.threshold, color="#444444", linewidth=1, linestyle="--")
    axes.annotate(f" {found.chosen.threshold:.2f}", (found.chosen.threshold, 1.02), color="#444444", va="bottom")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.1)
    axes.set_xlabel("threshold (cosine similarity)")
    axes.set_ylabel("share of queries")
    axes.set_title(
        f"{found.company}: what the gate's threshold costs and spares under {found.model}", loc="left", fontsize=10
    )
    axes.legend(frameon=False, loc="center left")
    figure.savefig(path, dpi=150)
