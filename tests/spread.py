"""A service on PostgreSQL over several nodes, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muniment.cluster import launcher, processes
from muniment.cluster.settings import load
from tests.live import Service, start_service
from tests.stores import Postgres

SEVERAL = {"MEMORY__SHARDS": "4", "EFFECTS__LEDGERS": "2"}
#: How soon Ray calls a node dead that does not answer, in milliseconds; its own values are for networks.
SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_timeout_ms_task_wait_for_death_info": "50",
}


class Nodes:
    """The Ray below a service, see ``tests.ray_nodes``."""

    def __init__(self, data_dir: Path, environment: dict[str, str]) -> None:
        self.data_dir = data_dir
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_nodes"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, **environment, **processes.marks(data_dir), **SOON},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the nodes have ended"
        return line

    def do(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        print(f"{word} of node {self._line()}", flush=True)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            processes.sweep(self.data_dir)


@contextmanager
def spread_service(folder: Path, postgres: Postgres) -> Iterator[tuple[Service, Nodes]]:
    """The service and the nodes below it; they end with the context."""
    nodes_dir, data_dir = folder / "nodes", folder / "service"
    nodes_dir.mkdir()
    with pytest.MonkeyPatch.context() as environment:
        nodes = Nodes(nodes_dir, launcher.environment(load(data_dir=data_dir)))
        try:
            for name, value in SEVERAL.items():
                environment.setenv(f"MUNIMENT_{name}", value)
            environment.setenv("MUNIMENT_STORE__URL", postgres.new_store())
            environment.setenv("MUNIMENT_RAY__ADDRESS", nodes.address)
            try:
                yield start_service(data_dir), nodes
            finally:
                launcher.stop(data_dir)
        finally:
            nodes.close()
