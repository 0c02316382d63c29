"""A Ray of several nodes on this machine, of which a test can take some away: ``python -m tests.ray_nodes``.

It prints its address, and then carries out what it reads, a word a line, each answered by a line. ``kill`` ends the
node that holds most shards and ledgers. ``pause`` stops it with all that runs on it, as a machine that hangs, and
``resume`` lets it go on. A new node comes in the place of each. The head stays: Ray itself ends with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._private.state import actors
from ray.cluster_utils import Cluster

_NODES = 2
_STORE_BYTES = 150 * 1024**2
#: How often, ten times a second, it is looked whether what restarts is up.
_TICKS = 600


class Nodes:
    """The nodes but the head."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": _STORE_BYTES}
        )
        self._nodes = [self._new() for _ in range(_NODES)]
        self._paused: tuple[Any, list[int]] | None = None
        ray.init(address=self.cluster.address, log_to_driver=False)

    def _new(self) -> Any:
        return self.cluster.add_node(num_cpus=2, object_store_memory=_STORE_BYTES)

    def _victim(self) -> Any:
        """The node, but for the head, that holds most shards and ledgers once those that restart are up. Ray may have
        put all of them on the head; then one that holds none."""
        tick = threading.Event()
        for _ in range(_TICKS):
            entries = [entry for entry in actors().values() if entry["Name"].startswith(("shard-", "ledger-"))]
            if all(entry["State"] in ("ALIVE", "DEAD") for entry in entries):
                break
            tick.wait(0.1)
        places = [entry["Address"]["NodeID"] for entry in entries if entry["State"] == "ALIVE"]
        victim = max(self._nodes, key=lambda node: places.count(node.node_id))
        self._nodes.remove(victim)
        return victim

    def kill(self) -> str:
        """See the module."""
        victim = self._victim()
        self.cluster.remove_node(victim, allow_graceful=False)
        self._nodes.append(self._new())
        return str(victim.node_id)

    def pause(self) -> str:
        """See the module."""
        victim = self._victim()
        raylet = victim.all_processes["raylet"][0].process.pid
        stopped = [raylet, *_descendants(raylet)]
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        self._paused = (victim, stopped)
        self._nodes.append(self._new())
        return str(victim.node_id)

    def resume(self) -> str:
        """See the module. A raylet that learns that it was given up ends by itself."""
        assert self._paused is not None
        victim, stopped = self._paused
        for pid in reversed(stopped):
            _send(pid, signal.SIGCONT)
        self._paused = None
        return str(victim.node_id)

    def close(self) -> None:
        """Ends all of it."""
        if self._paused is not None:
            self.resume()
        ray.shutdown()
        self.cluster.shutdown()


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


def main() -> None:
    # Ray's processes write to standard output what nobody asked for.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    nodes = Nodes()
    try:
        print(nodes.cluster.address, file=told, flush=True)
        for line in sys.stdin:
            done = {"kill": nodes.kill, "pause": nodes.pause, "resume": nodes.resume}[line.strip()]()
            print(done, file=told, flush=True)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
