"""What all commands share: the program, its options, and the way to a running service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from muniment.cluster import Client, launcher
from muniment.cluster.settings import load
from muniment.policies.errors import Unavailable

app = typer.Typer(
    name="muniment",
    help="Memory for AI agents, kept as an archive keeps proof.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console(width=None if sys.stdout.isatty() else 160)  # in a file or a pipe, rows are not folded
errors = Console(stderr=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the service.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
OneCompany = Annotated[str | None, typer.Option("--company", help="Only this company.", show_default=False)]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default="8000")]


@app.callback()
def _program() -> None:
    """Memory for AI agents, kept as an archive keeps proof."""


def complain(message: str) -> None:
    """Says in one line what went wrong."""
    errors.print(f"muniment: {' '.join(message.split())}", style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def counted(what: str) -> Iterator[Callable[[int], None]]:
    """How many rows are done, on standard error where that is a terminal; yields what is told how many more are."""
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed} rows"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda rows: shown.advance(task, rows)


def found(data_dir: Path) -> launcher.Running:
    """The running service of ``data_dir``. Raises ``Unavailable`` where there is none."""
    running = launcher.find(data_dir)
    if running is None:
        raise Unavailable(f"no service runs on {data_dir}; start one with: muniment up")
    return running


def operator_key(data_dir: Path) -> str:
    """The operator's key of the service of ``data_dir``, from the settings or its file. Raises ``Unavailable``."""
    given = load(data_dir=data_dir).auth.operator_key
    if given is not None:
        return given.get_secret_value().strip()
    path = data_dir / launcher.OPERATOR_KEY_FILE
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None


def operator_client(data_dir: Path | None, company: str | None = None) -> Client:
    """A client with the operator's key of the running service, which acts for ``company`` where one is named."""
    where = load(data_dir=data_dir).data_dir
    return Client(found(where).url, key=operator_key(where), company=company, timeout_seconds=20.0)
