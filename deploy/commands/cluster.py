"""The size of a running service."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from muniment.cluster import Client
from muniment.deploy.commands.common import AsJson, DataDir, app, console, errors, operator_client
from muniment.policies.errors import Unavailable

_KINDS = ("shards", "ledgers", "workers")
_POLL_SECONDS = 0.2


@app.command()
def scale(
    shards: Annotated[int | None, typer.Option(min=1, max=256, show_default=False, help="Memory shards.")] = None,
    ledgers: Annotated[int | None, typer.Option(min=1, max=256, show_default=False, help="Dedupe ledgers.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=1024, show_default=False, help="Model workers.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change how many there are of each part while the service runs, and wait for it; without options, show it.

    Partitions move one at a time. What breaks off goes on by itself where it stopped. A restart keeps these numbers.
    """
    with operator_client(data_dir) as client:
        asked = {"shards": shards, "ledgers": ledgers, "workers": workers}
        state = client.scale(**asked) if any(asked.values()) else client.scaling()
        if any(asked.values()):
            state = _until_done(client, state)
    _show(state, as_json)


@app.command()
def place(
    company: Annotated[str, typer.Argument(help="The company.")],
    pinned: Annotated[bool | None, typer.Option(help="Load it first and never unload it.", show_default=False)] = None,
    own_shard: Annotated[bool | None, typer.Option(help="Give it a shard of its own.", show_default=False)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Pin a company, or give it a shard of its own, while the service runs."""
    with operator_client(data_dir) as client:
        answer = client.place(company, pinned=pinned, own_shard=own_shard)
        _until_done(client, client.scaling())
    if as_json:
        print(json.dumps(answer))
    else:
        words = [name.replace("_", " ") for name in ("pinned", "own_shard") if answer[name]]
        console.print(f"{company}: {', '.join(words) or 'like any other'}", highlight=False, markup=False)


def _until_done(client: Client, state: dict[str, Any]) -> dict[str, Any]:
    """Shows what is still to be done until nothing is. Raises ``Unavailable`` where the service does not get on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        tasks = {
            kind: progress.add_task(f"partitions of {kind}", total=state[kind]["to_move"])
            for kind in _KINDS
            if state[kind].get("to_move")
        }
        waiting = progress.add_task("starting and ending", total=None)
        while not state["done"]:
            if "problem" in state:
                raise Unavailable(f"{state['problem']}; the service goes on trying, see: muniment scale")
            time.sleep(_POLL_SECONDS)
            state = client.scaling()
            for kind, task in tasks.items():
                total = progress.tasks[task].total or 0
                progress.update(task, completed=total - state[kind]["to_move"])
        progress.update(waiting, visible=False)
    return state


def _show(state: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(state))
        return
    table = Table("part", "wanted", "running", "to move", box=None, pad_edge=False)
    for kind in _KINDS:
        part = state[kind]
        table.add_row(kind, str(part["wanted"]), str(part["running"]), str(part.get("to_move", "")))
    console.print(table)
    for name in ("own_shards", "pinned"):
        if state[name]:
            console.print(f"{name.replace('_', ' ')}: {', '.join(state[name])}", highlight=False, markup=False)
    if "problem" in state:
        console.print(state["problem"], style="red", highlight=False, markup=False, soft_wrap=True)
