"""The models: exporting them, exchanging the embedding model, and calibrating the gate for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from muniment.cluster.settings import load
from muniment.deploy.commands.common import AsJson, DataDir, app, console, errors
from muniment.policies.calibration import TOLERANCE


@app.command("export-models")
def export_models(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Export the models for ONNX Runtime (int8), as the first start does; what is there and whole stays."""
    from muniment.actors.onnx_models import Kind, builds

    workers = load(data_dir=data_dir).workers
    wanted: list[tuple[Kind, str]] = [("embedder", workers.model)]
    if workers.reranker != "none":
        wanted.append(("reranker", workers.reranker))
    with errors.status("exporting the models"):
        folders = builds(wanted, workers.cache_dir)
    made = {kind: str(folder) for (kind, _), folder in zip(wanted, folders, strict=True)}
    if as_json:
        print(json.dumps(made))
    else:
        for kind, folder in made.items():
            console.print(f"{kind}: {folder}", highlight=False, soft_wrap=True)


@app.command()
def reindex(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Embed every fact anew with the model of the settings. Stop the service first; repeat it where it broke off."""
    from muniment.cluster.reindexing import reindex_store

    with _progress("embedding") as progress:
        done = reindex_store(load(data_dir=data_dir), progress)
    if as_json:
        print(json.dumps(asdict(done)))
    elif done.before in (None, done.model):
        console.print(f"nothing to do: the vectors are from {done.model}", highlight=False, soft_wrap=True)
    else:
        said = f"{done.facts} facts: their vectors are from {done.model}, no more from {done.before}"
        console.print(said, highlight=False, soft_wrap=True)


@app.command()
def calibrate(
    company: Annotated[str, typer.Option("--company", help="Whose gate.")],
    pairs: Annotated[
        Path | None,
        typer.Option(
            help='Labelled queries, a line each: {"query": text, "fact": id or text}. Without: made of facts.'
        ),
    ] = None,
    queries: Annotated[
        int, typer.Option(min=1, max=100_000, help="Queries that are made of the company's facts.")
    ] = 1000,
    tolerance: Annotated[float, typer.Option(min=0, max=1, help="Recall that may be lost.")] = TOLERANCE,
    plot: Annotated[Path | None, typer.Option(help="PNG of the trade to write.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the trade and store nothing.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set the similarity below which a company's recalls search L2, from its own facts or from labelled queries.

    It is for the embedding model in use, and holds from the next recall on.
    """
    from muniment.cluster import calibration
    from muniment.deploy.trade import plot_trade, table_of

    labelled = None if pairs is None else calibration.read_pairs(pairs)
    where = load(data_dir=data_dir).data_dir
    with _progress("asking") as progress:
        found = calibration.calibrate(where, company, labelled, queries, tolerance, not dry_run, progress)
    if plot is not None:
        plot_trade(found, plot)
    if as_json:
        print(json.dumps({**asdict(found), "stored": not dry_run}))
        return
    console.print(table_of(found))
    if found.left_out:
        console.print(f"{found.left_out} pairs were left out: their facts are not in memory", highlight=False)
    verb = "would hold" if dry_run else "holds"
    console.print(
        f"{found.chosen.threshold:.2f} {verb} for {company} under {found.model}; before: {found.before:.2f}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; yields what is told how many of how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
