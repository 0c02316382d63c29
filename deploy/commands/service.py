"""Starting, stopping and looking at a service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Column, Table

from muniment.cluster import launcher, processes
from muniment.cluster.metrics import document as metric_document
from muniment.cluster.settings import Settings, document, effective, load
from muniment.deploy import reference
from muniment.deploy.commands.common import (
    AsJson,
    DataDir,
    Host,
    Port,
    app,
    complain,
    console,
    found,
    operator_key,
)
from muniment.policies.errors import Unavailable

READY_SECONDS = 300.0
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the reference page, as Markdown.")]
_POLL_SECONDS = 0.2


@app.command()
def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready and leave it running.")] = False,
) -> None:
    """Start the service and wait until it is ready; without --detach, serve until Ctrl-C."""
    settings = load(data_dir=data_dir, http={"host": host, "port": port})
    running = launcher.find(settings.data_dir)
    if running is not None:
        _wait_until_ready(settings.data_dir, None)
        console.print(f"runs already: {running.url}", highlight=False)
    elif detach:
        with console.status("starting the service"):
            start_detached(settings)
        console.print(f"ready: {found(settings.data_dir).url}", highlight=False)
    elif processes.belongs(os.getpid(), settings.data_dir):
        _serve(settings)
    else:  # once more, with what every process of the service carries
        os.execve(sys.executable, _command(settings), _environment(settings))


def _command(settings: Settings) -> list[str]:
    flags = ["--host", settings.http.host, "--port", str(settings.http.port), "--data-dir", str(settings.data_dir)]
    return [sys.executable, "-m", "muniment.deploy.cli", "up", *flags]


def _environment(settings: Settings) -> dict[str, str]:
    return {**os.environ, **launcher.environment(settings)}


def _serve(settings: Settings) -> None:
    """The process of a service, from start to stop."""
    from muniment.deploy.ingress import build

    def announce(url: str) -> None:
        try:
            _wait_until_ready(settings.data_dir, None)
        except Unavailable as error:
            complain(error.detail or error.code)
            return
        console.print(f"ready: {url}   docs: {url}/docs   Ctrl-C stops it", highlight=False, soft_wrap=True)

    launcher.run(settings, build, announce)


def start_detached(settings: Settings) -> None:
    """Starts a service that outlives this process, and waits until it is ready. Raises ``Unavailable``."""
    environment = _environment(settings)
    with (settings.data_dir / launcher.LOG_FILE).open("ab") as log:
        began = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            _command(settings),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_ready(settings.data_dir, process, began)
    except BaseException:
        launcher.stop(settings.data_dir)
        raise


def _wait_until_ready(data_dir: Path, process: subprocess.Popen[bytes] | None, began: int = 0) -> None:
    """``began``: where what ``process`` writes into the log begins; before it are the words of others."""
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(timeout=5.0) as http:
        while time.monotonic() < deadline:
            if process is not None and process.poll() is not None:
                lines = (data_dir / launcher.LOG_FILE).read_bytes()[began:].decode(errors="replace").split("\n")
                said = [line.removeprefix("muniment: ") for line in lines if line.startswith("muniment: ")]
                raise Unavailable(said[-1] if said else f"it ended at its start; see {data_dir / launcher.LOG_FILE}")
            running = launcher.find(data_dir)
            if running is not None and _is_ready(http, running.url):
                return
            time.sleep(_POLL_SECONDS)
    raise Unavailable(f"not ready after {READY_SECONDS:.0f} s; see {data_dir / launcher.LOG_FILE}")


def _is_ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False  # not listening yet


@app.command()
def down(data_dir: DataDir = None) -> None:
    """Stop the service, and clear what a crash left of it."""
    settings = load(data_dir=data_dir)
    stopped = launcher.stop(settings.data_dir)
    console.print("stopped" if stopped else f"nothing runs on {settings.data_dir}", highlight=False, soft_wrap=True)


@app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say whether the service runs and is ready; status 1 where it is not."""
    settings = load(data_dir=data_dir)
    running = launcher.find(settings.data_dir)
    report: dict[str, Any] = {"data_dir": str(settings.data_dir), "running": running is not None}
    if running is not None:
        answer = httpx.get(f"{running.url}/readyz", timeout=10.0)
        report |= {
            "url": running.url,
            "pid": running.pid,
            "processes": 1 + len(set(processes.processes_of(settings.data_dir)) - {running.pid}),
            "ready": answer.status_code == httpx.codes.OK,
            "parts": answer.json(),
        }
    if as_json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            console.print(f"{name:>10}  {value}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if report.get("ready") else 1)


@app.command()
def settings(data_dir: DataDir = None, as_json: AsJson = False, markdown: Markdown = False) -> None:
    """Show every setting: its value now, and what it is for."""
    if markdown:
        print(reference.settings_markdown(), end="")
        return
    values = effective(load(data_dir=data_dir))
    if as_json:
        print(json.dumps(values))
        return
    table = Table(Column("setting", no_wrap=True), Column("value", overflow="fold"), "what", box=None, pad_edge=False)
    for entry in document():
        value: Any = values
        for part in entry["key"].split("."):
            value = value[part]
        table.add_row(entry["key"], str(value), entry["description"])
    console.print(table)
    console.print("Variables: MUNIMENT_ and the name in capitals with __ for each dot, e.g. MUNIMENT_HTTP__PORT.")


@app.command()
def metrics(as_json: AsJson = False, markdown: Markdown = False) -> None:
    """Show every metric that the service exports: its type, its labels, and what it counts."""
    if markdown:
        print(reference.metrics_markdown(), end="")
    elif as_json:
        print(json.dumps(list(metric_document())))
    else:
        table = Table(Column("metric", no_wrap=True), "type", "labels", "what", box=None, pad_edge=False)
        for entry in metric_document():
            table.add_row(entry["name"], entry["type"], entry["labels"], entry["what"])
        console.print(table)


@app.command()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check this machine and the service's folder; status 1 where something would not work."""
    from muniment.deploy.doctor import examine

    findings = examine(load(data_dir=data_dir))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark = {"ok": "[green]ok  [/]", "warning": "[yellow]warn[/]", "error": "[red]bad [/]"}[finding.level]
            console.print(f"{mark} {finding.what}: {finding.detail}", highlight=False, soft_wrap=True)
    raise typer.Exit(1 if any(finding.level == "error" for finding in findings) else 0)


@app.command()
def demo(
    log: Annotated[Path, typer.Option("--log", help="A log file of BlueGene/L, as in LogHub's BGL_2k.log.")],
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the tour what it started.")] = False,
) -> None:
    """Walk through what the service does, on a real log; start a service if none runs, and then serve until Ctrl-C."""
    from muniment.deploy import tour

    settings = load(data_dir=data_dir, http={"host": host, "port": port})
    if not log.is_file():
        raise Unavailable(f"there is no file {log}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT too: a shell's "&" has it ignored
        signal.signal(number, signal.default_int_handler)
    ours = launcher.find(settings.data_dir) is None
    try:
        if ours:
            with console.status("starting the service"):
                start_detached(settings)
        running = found(settings.data_dir)
        tour.walk(running.url, operator_key(settings.data_dir), log, console)
        tour.say_where(running.url, settings.data_dir, console)
        if ours and not once:
            console.print("Serving until Ctrl-C.")
            while launcher.find(settings.data_dir) is not None:
                time.sleep(0.5)
            raise Unavailable(f"the service ended; see {settings.data_dir / launcher.LOG_FILE}")
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            launcher.stop(settings.data_dir)
