"""Which processes belong to a service: every process it starts carries ``MUNIMENT_DATA_DIR``; found in ``/proc``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

DATA_DIR_VARIABLE = "MUNIMENT_DATA_DIR"
#: Set beside it in what a service starts, so that a user's shell that merely exports the variable is nobody's child.
SERVICE_VARIABLE = "MUNIMENTD"


def marks(data_dir: Path) -> dict[str, str]:
    """What the environment of every process of a service holds."""
    # Without SPT_NOENV, Ray's processes overwrite the environment that /proc shows with their titles.
    return {DATA_DIR_VARIABLE: str(data_dir), SERVICE_VARIABLE: "1", "SPT_NOENV": "1"}


def belongs(pid: int, data_dir: Path) -> bool:
    """Whether process ``pid`` lives and was started by the service of ``data_dir`` (an absolute path)."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False
    wanted = {f"{DATA_DIR_VARIABLE}={data_dir}".encode(), f"{SERVICE_VARIABLE}=1".encode()}
    return wanted.issubset(environment)


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def processes_of(data_dir: Path) -> list[int]:
    """The living processes of the service of ``data_dir``, this one aside."""
    candidates = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in candidates if pid != os.getpid() and belongs(pid, data_dir) and alive(pid))


def wait_for_end(pids: Iterable[int], timeout_seconds: float) -> list[int]:
    """Waits until all have ended; returns those that have not in time."""
    deadline = time.monotonic() + timeout_seconds
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if alive(pid)]
    return left


def send(pid: int, signal_number: signal.Signals) -> None:
    """Sends a signal; a process that is gone already is no error."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return


def sweep(data_dir: Path, grace_seconds: float = 3.0) -> int:
    """Ends whatever is left of the service of ``data_dir``: asks, waits, kills. Returns how many were left."""
    found: set[int] = set()
    for signal_number, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0), (signal.SIGKILL, 5.0)):
        pids = processes_of(data_dir)
        found.update(pids)
        for pid in pids:
            send(pid, signal_number)
        wait_for_end(pids, patience)
    return len(found)
