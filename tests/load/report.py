"""Tables and plots of a load test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.report import figure, save, stdout, table
from tests.load.recorder import OUTCOMES

LATE_MS = 250.0
_AT_THE_TOP: Mapping[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
Result = Mapping[str, Any]
_BLUE, _LIGHT, _RED, _SAND, _GREY = "#2a6f97", "#61a5c2", "#9e2a2b", "#e09f3e", "#8d99ae"
_KIND_COLUMNS = ("kind", *OUTCOMES, "p50_ms", "p90_ms", "p99_ms", "p99.9_ms", "max_ms")
_POINT_COLUMNS = ("offered_per_s", "answered_per_s", *OUTCOMES[1:], "p50_ms", "p99_ms", "memory_mb")
_PART_COLUMNS = ("part", "due", *OUTCOMES, "worst_second_p99_ms", "memory_mb")


def tables(mode: str, result: Result) -> None:
    """Prints what the run found."""
    if "points" in result:
        table("by offered load (a second; counts of the whole step)", result["points"], _POINT_COLUMNS)
        best = result["knee"]
        stdout.print("knee: none" if best is None else f"knee: {best['offered_per_s']:.1f} a second", highlight=False)
    if "parts" in result:
        table(f"overload: twice {result['capacity_per_s']:.1f} a second (a second)", result["parts"], _PART_COLUMNS)
        stdout.print(f"recovered after {result['recovered_after_s']} s", highlight=False)
    if "rows" in result and mode != "sweep":
        table(f"{mode}, latency from when a request was due", result["rows"], _KIND_COLUMNS)
    if result.get("memory_mb_per_minute"):
        grows = result["memory_mb_per_minute"]
        gained = f"{grows['per_minute']:+.2f} ± {grows['uncertainty']:.2f} MB a minute"
        stdout.print(f"memory: {gained}; {len(result['kills'])} kills", highlight=False)
    for summary in [result.get("summary", {}), *result.get("points", ())]:
        if summary.get("generator_late_ms", 0) > LATE_MS:
            stdout.print(
                f"the generator itself was late by up to {summary['generator_late_ms']:.0f} ms: this machine is too "
                f"busy for {summary['offered_per_s']:.0f} a second, and the figures tell of that as well",
                highlight=False,
            )
    stdout.print(result["checks"], highlight=False)


def plots(mode: str, result: Result, folder: Path) -> None:
    """Writes what there is to see, as PNG."""
    if "points" in result:
        _load(result["points"], result["knee"], folder / f"load_{mode}_knee.png")
    if mode != "sweep" and "phase" in result:
        _percentiles(result["phase"].recorder.by_kind, folder / f"load_{mode}_latency.png")
        _timeline(result["seconds"], result.get("kills", ()), folder / f"load_{mode}_timeline.png")
    if "memory" in result:
        _memory(result, folder / f"load_{mode}_memory.png")


def _save(made: Any, path: Path) -> None:
    save(made, path.parent, path.stem)


def _load(points: Sequence[Result], best: Result | None, path: Path) -> None:
    made, axes = figure(7, 4)
    offered = [point["offered_per_s"] for point in points]
    for name, colour in (("p99_ms", _RED), ("p50_ms", _BLUE)):
        axes.plot(offered, [point[name] for point in points], "o-", color=colour, label=name[:3])
    axes.set_yscale("log")
    axes.set_xlabel("offered, requests a second")
    axes.set_ylabel("ms from when it was due")
    beside = axes.twinx()
    beside.plot(offered, [point["answered_per_s"] for point in points], "s--", color=_GREY, label="answered a second")
    beside.set_ylim(bottom=0)
    beside.set_ylabel("answered a second")
    beside.spines["top"].set_visible(False)
    if best is not None:
        axes.axvline(best["offered_per_s"], color=_SAND, lw=2)
        axes.annotate("knee", (best["offered_per_s"], 1.0), (4, -12), color=_SAND, **_AT_THE_TOP)
    lines = [*axes.get_lines()[:2], *beside.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8)
    axes.set_title("Latency against offered load", loc="left")
    _save(made, path)


def _percentiles(by_kind: Mapping[str, Any], path: Path) -> None:
    made, axes = figure(7, 4)
    wanted = 100 - np.logspace(2, -1, 100)
    for kind, one in sorted(by_kind.items()):
        if one.get_total_count():
            axes.plot(100 / (100 - wanted), [one.get_value_at_percentile(p) / 1000 for p in wanted], label=kind)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1, 2, 10, 100, 1000], ["0", "50", "90", "99", "99.9"])
    axes.set_xlabel("percentile")
    axes.set_ylabel("ms from when it was due")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("Latency by percentile", loc="left")
    _save(made, path)


def _timeline(seconds: Sequence[Result], kills: Sequence[Result], path: Path) -> None:
    from matplotlib import pyplot

    figure()  # the backend
    pyplot.close("all")
    made, (rates, times) = pyplot.subplots(2, 1, figsize=(7, 4.4), sharex=True, layout="constrained")
    seconds = _binned(seconds, max(1, len(seconds) // 120))
    at = [row["second"] for row in seconds]
    rates.step(at, [row["due"] for row in seconds], where="post", color=_GREY, label="due")
    rates.step(at, [row["finished"] for row in seconds], where="post", color=_BLUE, label="answered")
    rates.step(at, [row["refused"] for row in seconds], where="post", color=_SAND, label="refused (429)")
    failed = [row["unavailable"] + row["late"] + row["error"] for row in seconds]
    rates.step(at, failed, where="post", color=_RED, label="failed")
    rates.set_ylabel("a second")
    some = [row for row in seconds if "p50_ms" in row]
    for name, colour in (("p99_ms", _RED), ("p50_ms", _BLUE)):
        times.plot([row["second"] for row in some], [row[name] for row in some], color=colour, label=name[:3])
    times.set_yscale("log")
    times.set_ylabel("ms from when it was due")
    times.set_xlabel("seconds")
    for axes in (rates, times):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=4)
        for kill in kills:
            axes.axvline(kill["second"], color=_SAND, lw=0.8, ls=":")
    rates.set_title("Throughput, errors and latency over time", loc="left")
    _save(made, path)


def _binned(seconds: Sequence[Result], width: int) -> list[Result]:
    """So many seconds at a time: rates on average, of the percentiles the median."""
    found: list[Result] = []
    for start in range(0, len(seconds), width):
        rows = seconds[start : start + width]
        names = ("due", "finished", *OUTCOMES)
        row = {"second": start, **{name: float(np.mean([row[name] for row in rows])) for name in names}}
        for name in ("p50_ms", "p99_ms"):
            there = [row[name] for row in rows if name in row]
            if there:
                row[name] = float(np.median(there))
        found.append(row)
    return found


def _memory(result: Result, path: Path) -> None:
    made, axes = figure(8, 4)
    samples = result["memory"]
    at = [sample["second"] for sample in samples]
    kinds = sorted({k for s in samples for k in s["bytes"]}, key=lambda k: -samples[-1]["bytes"].get(k, 0))
    shown = kinds[:7]
    parts = [[s["bytes"].get(kind, 0) / 1e6 for s in samples] for kind in shown]
    parts.append([sum(v for k, v in s["bytes"].items() if k not in shown) / 1e6 for s in samples])
    axes.stackplot(at, parts, labels=[*shown, "others"], alpha=0.8)
    for kill in result["kills"]:
        axes.axvline(kill["second"], color="black", lw=0.6, ls=":")
    grows = result["memory_mb_per_minute"]
    if grows:
        said = f"second half: {grows['per_minute']:+.1f} ± {grows['uncertainty']:.1f} MB a minute"
        axes.set_title(f"Memory of all processes; {said}", loc="left", fontsize=10)
    axes.set_ylabel("MB, anonymous")
    axes.set_xlabel("seconds (dotted: a Ray actor is killed)")
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower left")
    _save(made, path)
