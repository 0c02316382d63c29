"""The command line, ``muniment``. Failures are one clear line and a non-zero status."""

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
from rich.console import Console
from rich.table import Column, Table

from muniment.cluster import Client, launcher, processes
from muniment.cluster.settings import Settings, document, effective, load
from muniment.policies.errors import MunimentError, Unavailable

app = typer.Typer(
    name="muniment",
    help="Memory for AI agents, kept as an archive keeps proof.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
keys = typer.Typer(help="Make, list and revoke keys.", no_args_is_help=True)
app.add_typer(keys, name="key")
console = Console(width=None if sys.stdout.isatty() else 160)  # in a file or a pipe, rows are not folded
errors = Console(stderr=True)

READY_SECONDS = 300.0
_POLL_SECONDS = 0.2

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the service.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
OneCompany = Annotated[str | None, typer.Option("--company", help="Only this company.", show_default=False)]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default="8000")]


def main() -> None:
    """Runs the command line."""
    try:
        app()
    except MunimentError as error:
        _fail(error.detail or error.code)
    except httpx.HTTPError as error:
        _fail(f"the service does not answer: {error or type(error).__name__}")
    except OSError as error:  # a folder that cannot be made, a full disk
        _fail(f"{error.filename or 'system'}: {error.strerror or error}")


def _fail(message: str) -> None:
    errors.print(f"muniment: {' '.join(message.split())}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(1)


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
            errors.print(f"muniment: {error.detail}", markup=False, highlight=False, soft_wrap=True)
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


def found(data_dir: Path) -> launcher.Running:
    """The running service of ``data_dir``. Raises ``Unavailable`` where there is none."""
    running = launcher.find(data_dir)
    if running is None:
        raise Unavailable(f"no service runs on {data_dir}; start one with: muniment up")
    return running


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
def settings(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every setting: its value now, and what it is for."""
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
def migrate(data_dir: DataDir = None) -> None:
    """Bring the tables of an older version to this one. Stop the service and back its store up first."""
    from muniment.cluster.services import prepare_stores

    settings = load(data_dir=data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    prepare_stores(settings, upgrade=True)
    console.print("the tables are those of this version", highlight=False)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The archive to write.")],
    company: OneCompany = None,
    data_dir: DataDir = None,
) -> None:
    """Write what there is of a company, or of all, into an archive; the service may run meanwhile."""
    from muniment.cluster.archives import export_to

    counts = export_to(load(data_dir=data_dir), file, company)
    console.print(f"{counts['companies']} companies, {counts.total()} rows: {file}", highlight=False, soft_wrap=True)


@app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="An archive.")], data_dir: DataDir = None) -> None:
    """Bring in the companies of an archive. What broke off is finished by repeating."""
    from muniment.cluster.archives import import_from

    settings = load(data_dir=data_dir)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with console.status("reading the archive") as status:
        done = 0

        def progress(rows: int) -> None:
            nonlocal done
            done += rows
            status.update(f"{done} rows")

        counts = import_from(settings, file, progress)
    console.print(f"{counts['companies']} companies, {counts.total()} rows were new", highlight=False)


@app.command()
def verify(company: OneCompany = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check that the store holds together, and where the service runs its indexes; status 1 where they do not."""
    from muniment.cluster.archives import verify_indexes, verify_stores

    settings = load(data_dir=data_dir)
    report = verify_stores(settings, company)
    if launcher.find(settings.data_dir) is not None:
        report["indexes"] = verify_indexes(settings.data_dir)
        report["intact"] &= not report["indexes"]["wrong"]
    if as_json:
        print(json.dumps(report))
    else:
        console.print("intact" if report["intact"] else "not intact")
        for name in ("checked", "wrong", "indexes"):
            for what, count in report.get(name, {}).items():
                console.print(f"{name:>8}  {what}: {count}", highlight=False, soft_wrap=True, markup=False)
        for problem in report["problems"]:
            console.print(f"{problem['problem']}: {problem['where']}", style="red", soft_wrap=True, markup=False)
    raise typer.Exit(0 if report["intact"] else 1)


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


def operator_key(data_dir: Path) -> str:
    """The operator's key of the service of ``data_dir``. Raises ``Unavailable``."""
    path = data_dir / launcher.OPERATOR_KEY_FILE
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from None


@keys.command("create")
def key_create(
    company: Annotated[str, typer.Option("--company", help="Whose key it is; created if need be.")],
    roles: Annotated[str, typer.Option("--roles", help="Comma-separated: agent, owner, curator, auditor, admin.")],
    user: Annotated[str | None, typer.Option("--user", help="The user it is bound to.")] = None,
    groups: Annotated[str | None, typer.Option("--groups", help="Comma-separated groups of that user.")] = None,
    sources: Annotated[str | None, typer.Option("--sources", help="Comma-separated source kinds it may claim.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown this once."""
    with _operator(data_dir, company) as client:
        client.create_company(company)
        made = client.create_key(_names(roles) or [], user=user, groups=_names(groups), sources=_names(sources))
    if as_json:
        print(json.dumps({name: made.get(name) for name in ("id", "key", "company", "roles", "user")}))
    else:
        console.print(f"{made['id']}  {made['key']}", highlight=False, soft_wrap=True, markup=False)


@keys.command("list")
def key_list(
    company: Annotated[str, typer.Option("--company", help="Whose keys.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the keys of a company, never the keys themselves."""
    found_keys: list[dict[str, Any]] = []
    with _operator(data_dir, company) as client:
        page = client.keys(limit=200)
        found_keys += page["keys"]
        while page.get("next"):
            page = client.keys(limit=200, cursor=page["next"])
            found_keys += page["keys"]
    if as_json:
        print(json.dumps({"keys": found_keys}))
        return
    table = Table(Column("id", no_wrap=True), "roles", "user", "groups", "expires", box=None, pad_edge=False)
    for key in found_keys:
        parts = [key["id"], ", ".join(key["roles"]), key.get("user"), ", ".join(key.get("groups", ()))]
        table.add_row(*(str(part or "") for part in (*parts, key.get("expires_at"))))
    console.print(table)


@keys.command("revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key, k_…")],
    company: Annotated[str, typer.Option("--company", help="Whose key it is.")],
    data_dir: DataDir = None,
) -> None:
    """End a key at once."""
    with _operator(data_dir, company) as client:
        client.revoke_key(key_id)
    console.print(f"revoked {key_id}", highlight=False, markup=False)


def _names(text: str | None) -> list[str] | None:
    """The names of a comma-separated list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _operator(data_dir: Path | None, company: str) -> Client:
    """A client that acts for ``company`` with the operator's key of the running service."""
    where = load(data_dir=data_dir).data_dir
    return Client(found(where).url, key=operator_key(where), company=company, timeout_seconds=20.0)


@app.callback()
def _program() -> None:
    """Memory for AI agents, kept as an archive keeps proof."""


if __name__ == "__main__":
    main()
