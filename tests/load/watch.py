"""Looks at the service's processes while a load runs: how much memory each kind takes; and kills one now and then."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muniment.cluster import processes

#: Kinds of Ray actor that may die at any time, in the order in which they do.
MORTAL = ("WorkerActor", "ShardActor", "LedgerActor")


def kind_of(pid: int) -> str:
    """What a process is: the class of its Ray actor, or the name of its program."""
    title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    if title.startswith("ray::"):
        return title.removeprefix("ray::").split(".")[0].split(":")[0].split("(")[0].strip()
    return Path(f"/proc/{pid}/comm").read_text().strip()


def own_bytes(pid: int) -> int:
    """Its anonymous memory, which is where a leak is; programs and libraries are shared with whoever else runs."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(slots=True)
class Watch:
    """Samples of memory, in bytes by kind of process, and who was killed. Times are seconds since ``start``."""

    dirs: Sequence[Path]
    start: float
    clock: Callable[[], float]
    samples: list[dict[str, Any]] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)

    async def sample_every(self, seconds: float) -> None:
        """Until it is cancelled."""
        while True:
            self.samples.append(await asyncio.to_thread(self._sample))
            await asyncio.sleep(seconds)

    def _sample(self) -> dict[str, Any]:
        found: dict[str, int] = defaultdict(int)
        for pid in self._processes():
            try:
                found[kind_of(pid)] += own_bytes(pid)
            except OSError:  # it ended meanwhile
                continue
        return {"second": self.clock() - self.start, "bytes": dict(found)}

    def _processes(self) -> list[int]:
        return [pid for folder in self.dirs for pid in processes.processes_of(folder)]

    async def kill_every(self, seconds: float, until: float) -> None:
        """One after the other of the mortal kinds, up to a second of the run."""
        number = 0
        while self.clock() - self.start + seconds < until:
            await asyncio.sleep(seconds)
            kind = MORTAL[number % len(MORTAL)]
            number += 1
            await asyncio.to_thread(self._kill, kind)

    def _kill(self, kind: str) -> None:
        for pid in self._processes():
            try:
                if kind_of(pid) != kind:
                    continue
            except OSError:
                continue
            processes.send(pid, signal.SIGKILL)
            self.kills.append({"second": self.clock() - self.start, "kind": kind})
            return

    def most_mb(self, since: float, until: float) -> float | None:
        """The most that all processes together took in a part of the run; None where nobody looked."""
        seconds, megabytes = self.totals(since)
        return max((mb for at, mb in zip(seconds, megabytes, strict=True) if at < until), default=None)

    def totals(self, since: float = 0.0) -> tuple[list[float], list[float]]:
        """Seconds and megabytes of all processes together."""
        taken = [sample for sample in self.samples if sample["second"] >= since]
        return [s["second"] for s in taken], [sum(s["bytes"].values()) / 1e6 for s in taken]
