"""What is done to a running service: each fault is done, and undone where it does not pass by itself."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from muniment.cluster import processes
from tests.fault.workload import DEADLINE_SECONDS, SOURCE, Account, Work, effect

KINDS = ("ShardActor", "LedgerActor", "WorkerActor", "ServeReplica", "ProxyActor")
Fault = Callable[[Work, random.Random], Awaitable[None]]


def pids(data_dir: Path, kind: str) -> set[int]:
    """The processes of a kind of Ray actor."""
    found = set()
    for pid in processes.processes_of(data_dir):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::" + kind.encode()):
                found.add(pid)
    return found


def kill_of(kind: str, data_dir: Path | None = None) -> Fault:
    """kill -9 of one Ray actor of a kind. ``data_dir``: of its Ray, where that is not the service's own."""

    async def kill(work: Work, chance: random.Random) -> None:
        where = data_dir or work.service.data_dir
        before = pids(where, kind)
        victim = chance.choice(sorted(before))
        print(f"kill -9 of {kind} {victim}", flush=True)
        os.kill(victim, signal.SIGKILL)
        await work.until(lambda: bool(pids(where, kind) - before))

    return kill


@contextmanager
def no_room(data_dir: Path) -> Iterator[None]:
    """Whoever writes to the store finds no room there: no file of theirs may have more than a page."""
    writing = [pid for kind in ("ShardActor", "LedgerActor") for pid in pids(data_dir, kind)]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in writing}
    for pid, (_, highest) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, highest))
    try:
        yield
    finally:
        for pid, limit in limits.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


async def refused(work: Work, account: Account) -> None:
    """Writes are refused clearly, at once, and may be repeated."""
    headers = {"Authorization": f"Bearer {account.keys['agent']}"}
    async with httpx.AsyncClient(base_url=work.service.url, headers=headers, timeout=DEADLINE_SECONDS) as http:
        told = {"facts": [{"text": account.text("who hears this?"), "source": SOURCE}]}
        proposed = {**effect(-1), "run_id": "refused", "step_id": "s", "wait_ms": 0}
        for path, body in (("/v1/memories", told), ("/v1/effects/propose", proposed)):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert int(answer.headers["Retry-After"]) >= 1


async def disk_full(work: Work, chance: random.Random) -> None:
    """The disk is full for a while: writes are refused, and go on by themselves when there is room again."""
    print("the disk is full", flush=True)
    with no_room(work.service.data_dir):
        await refused(work, chance.choice(work.accounts))


async def disturbed(work: Work, faults: list[Fault], rounds: int, chance: random.Random) -> None:
    """The whole of a test: all faults in turn, then at random, each when the work goes on after the one before."""
    work.start()
    try:
        await work.goes_on(1)
        for number in range(rounds):
            fault = faults[number] if number < len(faults) else chance.choice(faults)
            await fault(work, chance)
            await work.goes_on(2)
    finally:
        await work.stop()
    print(work.told(), flush=True)
    await work.settle()
    await asyncio.to_thread(work.check)
