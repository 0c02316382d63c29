"""The models: exporting them, and exchanging the embedding one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from muniment.cluster.settings import load
from muniment.deploy.commands.common import AsJson, DataDir, app, console, errors


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


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; yields what is told how many of how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
