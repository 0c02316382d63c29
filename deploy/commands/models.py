"""The models."""

from __future__ import annotations

import json

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
