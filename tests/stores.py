"""The stores that tests run on: SQLite files, and a PostgreSQL server of the session's own.

The server comes from the system's packages; it runs as an unprivileged user, in a folder of its own, on a socket there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event

from muniment.actors.store.engine import open_engine, sqlite_url

#: Whom root lets run the server.
_USERS = ("postgres", "nobody")


def _programs() -> Path | None:
    """The folder of initdb and pg_ctl."""
    if shutil.which("pg_config"):
        found = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        if (Path(found) / "initdb").exists():
            return Path(found)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


class Postgres:
    """A PostgreSQL server, reached through a socket in its folder."""

    def __init__(self, programs: Path, folder: Path, user: str | None, durable: bool) -> None:
        self._programs = programs
        self._user = user
        self._data = folder / "data"
        self._socket = folder / "socket"
        for made in (folder, self._socket):
            made.mkdir(exist_ok=True)
            if user is not None:
                shutil.chown(made, user)
        self._run("initdb", "--auth=trust", "--username=muniment", "--encoding=UTF8", "--no-sync")
        settings = {"listen_addresses": "''", "unix_socket_directories": f"'{self._socket}'", "max_connections": "200"}
        if not durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments, "--pgdata", str(self._data)]
        done = subprocess.run(
            command,
            user=self._user,
            group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            extra_groups=None if self._user is None else [],
            cwd=self._data.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        self._run("pg_ctl", "start", "--wait", "--silent", "--log", str(self._data.parent / "log"))

    def stop(self) -> None:
        """Stops the server at once; who is connected is cut off, what was committed is safe."""
        self._run("pg_ctl", "stop", "--wait", "--silent", "--mode=immediate")

    @property
    def running(self) -> bool:
        """Whether the server has been started and not been stopped since."""
        return (self._data / "postmaster.pid").exists()

    def pause(self) -> None:
        """Connections stay open, new ones are accepted, and nothing answers any more."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of a pause."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        main = (self._data / "postmaster.pid").read_text().split("\n", 1)[0]
        backends = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *backends):
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def url(self, database: str = "postgres") -> str:
        """The address of a database."""
        return f"postgresql://muniment@/{database}?host={self._socket}"

    def new_store(self) -> str:
        """The address of an empty store: a schema of its own, which is quicker made than a database."""
        name = f"s{uuid.uuid4().hex}"
        engine = open_engine(self.url())
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        engine.dispose()
        return f"{self.url()}&options=-c%20search_path={name}"


@contextmanager
def postgres_server(durable: bool = False) -> Iterator[Postgres | None]:
    """A running server for as long as the context lasts; None where PostgreSQL is not installed.

    ``durable``: what was committed survives the end of the server, which costs time.
    """
    programs = _programs()
    if programs is None:
        yield None
        return
    user = None
    if os.geteuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in _USERS if name in names), None)
        if user is None:
            yield None
            return
    # Not under pytest's folder, which only its own user may enter, and whose name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="muniment-pg-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = Postgres(programs, Path(folder), user, durable)
        server.start()
        try:
            yield server
        finally:
            if server.running:
                server.resume()
                server.stop()


class Stores:
    """The databases of one test, empty at its start: SQLite files in ``folder``, or all in one of ``server``."""

    def __init__(self, folder: Path, server: Postgres | None = None) -> None:
        self._folder = folder
        self._server = server
        self._one = None if server is None else server.new_store()

    def url(self, database: str) -> str:
        """The address of "memory", "effects" or "control"; in PostgreSQL they are one."""
        return self._one or sqlite_url(self._folder / f"{database}.db")

    def another(self, folder: Path) -> Stores:
        """Other empty databases of the same kind."""
        return Stores(folder, self._server)

    def hasten(self, engine: sa.Engine) -> sa.Engine:
        """The engine, which no longer waits for the disk."""
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF").close())
        return engine
