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
    notes = {"chosen": point == found.chosen, "before": point.threshold == found.before}
    return ", ".join(name for name, holds in notes.items() if holds)


def plot_trade(found: Calibrated, path: Path) -> None:
    """Writes a PNG: over the threshold, the share of queries that search L2, and the recall lost."""
    try:
        from matplotlib.figure import Figure  # half a second to import: only where a picture is wanted
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib; install it with: pip install matplotlib") from error

    figure = Figure(figsize=(7, 5), layout="constrained")
    spared, costs = figure.subplots(2, sharex=True)
    thresholds = [point.threshold for point in found.points]
    spared.plot(thresholds, [point.searches_l2 for point in found.points], color="#1f6f8b")
    costs.plot(thresholds, [point.recall_lost for point in found.points], color="#c0392b")
    for axes in (spared, costs):
        axes.axvline(found.chosen.threshold, color="#444444", linewidth=1, linestyle="--")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    spared.annotate(f" {found.chosen.threshold:.2f}", (found.chosen.threshold, 0.02), color="#444444")
    spared.set_ylabel("queries that search L2")
    costs.set_ylabel("recall@5 lost")
    costs.set_xlabel("threshold (cosine similarity)")
    costs.set_xlim(0, 1)
    title = f"{found.company}: what the gate's threshold spares and costs under {found.model}"
    spared.set_title(title, loc="left", fontsize=10, parse_math=False)
    figure.savefig(path, dpi=150, format="png")
