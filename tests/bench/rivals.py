"""What people use instead of the ledger: Redis and PostgreSQL, started on loopback for the time of a benchmark.

Each system does the same cycle: make the key of the same arguments, reserve it if it is free, then confirm it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

LEASE_MS: Final = 60_000
WINDOW_MS: Final = 3_600_000
_START_SECONDS: Final = 30
#: Connections of the PostgreSQL client: what its pools usually have.
_POOL: Final = 16
_DEBIAN: Final = Path("/usr/lib/postgresql")


class Absent(Exception):
    """A rival is not installed here."""


class System(Protocol):
    """One client process's access to a system."""

    async def cycle(self, arguments: dict[str, Any], run: str) -> None:
        """Reserves and confirms the effect of ``arguments``."""

    async def close(self) -> None:
        """Lets go of connections."""


def _key(arguments: dict[str, Any]) -> str:
    return "effect:" + hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()


class Redis:
    """``SET key … NX PX lease``, then ``SET key … XX PX window``, through redis-py's asyncio client."""

    def __init__(self, port: int) -> None:
        import redis.asyncio

        self._redis = redis.asyncio.Redis(port=port, max_connections=1024)

    async def cycle(self, arguments: dict[str, Any], run: str) -> None:
        """See ``System``."""
        key = _key(arguments)
        if not await self._redis.set(key, f"reserved {run}", nx=True, px=LEASE_MS):
            raise RuntimeError("the key was taken")
        if not await self._redis.set(key, f"confirmed {run}", xx=True, px=WINDOW_MS):
            raise RuntimeError("the key was lost")

    async def close(self) -> None:
        """See ``System``."""
        await self._redis.aclose()


class Postgres:
    """``INSERT … ON CONFLICT DO NOTHING``, then ``UPDATE``, one statement an operation, through psycopg's asyncio."""

    _RESERVE = (
        "INSERT INTO effects (key, run, state, until) VALUES (%s, %s, 'reserved', now() + interval '60 s')"
        " ON CONFLICT (key) DO NOTHING RETURNING key"
    )
    _CONFIRM = (
        "UPDATE effects SET state = 'confirmed', until = now() + interval '1 h'"
        " WHERE key = %s AND run = %s RETURNING key"
    )

    def __init__(self, port: int, connections: int = _POOL) -> None:
        self.port = port
        self._address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        self._connections = connections
        self._idle: asyncio.Queue[Any] = asyncio.Queue()

    async def _connect(self) -> None:
        import psycopg

        while self._connections:
            self._connections -= 1
            self._idle.put_nowait(await psycopg.AsyncConnection.connect(self._address, autocommit=True))

    async def _execute(self, statement: str, *values: str) -> None:
        if self._connections:
            await self._connect()
        connection = await self._idle.get()
        try:
            cursor = await connection.execute(statement, values)
            if await cursor.fetchone() is None:
                raise RuntimeError("the key was taken")
        finally:
            self._idle.put_nowait(connection)

    async def cycle(self, arguments: dict[str, Any], run: str) -> None:
        """See ``System``."""
        key = _key(arguments)
        await self._execute(self._RESERVE, key, run)
        await self._execute(self._CONFIRM, key, run)

    async def close(self) -> None:
        """See ``System``."""
        while not self._idle.empty():
            await self._idle.get_nowait().close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what} does not start")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _server(command: list[str], port: int, what: str, **options: Any) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        _until(lambda: _listens(port), process, what)
        yield port
    finally:
        process.send_signal(signal.SIGINT)  # at SIGTERM, PostgreSQL waits for its clients to leave
        process.wait()


@contextmanager
def redis_server(folder: Path, fsync: str) -> Iterator[int]:
    """A Redis with an append-only file, ``fsync`` "always" or "everysec"; its port."""
    found = shutil.which("redis-server")
    if found is None:
        raise Absent("redis-server is not installed")
    data = folder / f"redis-{fsync}"
    data.mkdir()
    port = _free_port()
    options = {"port": port, "bind": "127.0.0.1", "dir": data, "appendonly": "yes", "appendfsync": fsync, "save": ""}
    command = [found, *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
    with _server(command, port, "redis-server"):
        yield port


@contextmanager
def postgres_server(folder: Path) -> Iterator[int]:
    """A PostgreSQL with its default durability; its port. It refuses to run as root, so another user does."""
    programs = sorted(_DEBIAN.glob("*/bin"), key=lambda path: int(path.parent.name)) if _DEBIAN.exists() else []
    found = shutil.which("postgres") or (str(programs[-1] / "postgres") if programs else None)
    if found is None:
        raise Absent("PostgreSQL is not installed")
    user: dict[str, Any] = {}
    data = folder / "postgres"
    data.mkdir()
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(data, account.pw_uid, account.pw_gid)
        folder.chmod(0o755)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": data}
    initdb = str(Path(found).with_name("initdb"))
    prepare = [initdb, "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
    subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL, **user)
    port = _free_port()
    command = [found, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", "", "-c", "max_connections=200"]
    with _server(command, port, "PostgreSQL", **user):
        _create_table(port)
        yield port


def _create_table(port: int) -> None:
    import psycopg

    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            connection = psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres", autocommit=True)
        except psycopg.OperationalError:  # it listens a moment before it answers
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        with connection:
            connection.execute(
                "CREATE TABLE effects (key text PRIMARY KEY, run text NOT NULL, state text NOT NULL,"
                " until timestamptz NOT NULL)"
            )
        return
