"""Shards and ledgers over several nodes: a node dies, and what it held goes on elsewhere, with all that was told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muniment.cluster import processes
from tests.spread import SOON
from tests.stores import Postgres


@pytest.mark.timeout(600)
def test_a_node_dies_and_its_shards_and_ledgers_go_on_elsewhere(postgres: Postgres, tmp_path: Path) -> None:
    data_dir = tmp_path.resolve()
    command = [sys.executable, "-m", "tests.cluster.node_death", str(data_dir), postgres.new_store()]
    root = Path(__file__).parents[2]
    environment = {**os.environ, **SOON, **processes.marks(data_dir), "RAY_AUTH_MODE": "disabled"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
    finally:
        processes.sweep(data_dir)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    print(found)
    assert found["nodes"] > 1, "they are spread"
    assert found["moved"]
    assert found["stayed_dead"] == []
    assert found["facts"] == 24
    assert found["first"] == [["allow", None]] * 8
    assert found["second"] == [["duplicate", "first"]] * 8
