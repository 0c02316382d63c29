"""The way of an agent's host to a running service."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from muniment.cluster import logs
from muniment.cluster.client import DEFAULT_ADDRESS
from muniment.cluster.settings import ADDRESS_VARIABLE, KEY_VARIABLE, USER_VARIABLE, load
from muniment.deploy.commands.common import DataDir, app, found


@app.command()
def mcp(
    key: Annotated[str, typer.Option("--key", envvar=KEY_VARIABLE, help="The agent's key.", show_default=False)],
    address: Annotated[
        str, typer.Option("--address", envvar=ADDRESS_VARIABLE, help="http://… or a Ray address of the service.")
    ] = DEFAULT_ADDRESS,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", envvar=USER_VARIABLE, help="Who acts, where the key is bound to nobody.", show_default=False
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run an MCP server on standard input and output: an agent's way to a running service.

    The agent's host starts it. --data-dir finds the service that runs here on that folder, instead of an address.
    """
    from muniment.deploy.mcp import serve

    settings = load(data_dir=data_dir)
    logs.configure(settings.telemetry, "mcp", None)
    where: str | Path = address if data_dir is None else found(settings.data_dir).url
    # Ctrl-C ends it at once: a read of standard input cannot be called off, so an orderly end would wait for it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(serve(where, key, user))
