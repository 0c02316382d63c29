"""Live resharding, 4 to 7 to 3, on a Ray of several nodes over PostgreSQL, while clients tell, ask and propose.

The mover dies in the middle of each change, together with a shard, and another one goes on. Nobody sees an error, only
a wait. ``RESHARDING_SIZES`` names other sizes, ``RESHARDING_SEED`` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from muniment.cluster import processes
from tests.spread import SOON
from tests.stores import Postgres


@pytest.mark.timeout(900)
def test_partitions_move_under_load_and_nothing_is_lost(postgres: Postgres, tmp_path: Path) -> None:
    data_dir = tmp_path.resolve()
    sizes = os.environ.get("RESHARDING_SIZES", "7,3")
    seed = os.environ.get("RESHARDING_SEED") or str(random.randrange(1, 10**6))
    print(f"seed {seed}")
    command = [sys.executable, "-m", "tests.cluster.resharding", str(data_dir), postgres.new_store(), sizes, seed]
    environment = {**os.environ, **SOON, **processes.marks(data_dir), "RAY_AUTH_MODE": "disabled"}
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        processes.sweep(data_dir)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    print(found)
    last = int(sizes.split(",")[-1])
    assert found["shards"] == sorted(f"shard-{number}" for number in range(last)), "what is empty has ended"
    assert found["moves"] > 100
    assert found["told"] > 0
    assert (found["lost"], found["stored_twice"]) == ([], 0)
    assert found["confirmed"] > 0
    assert (found["allowed_twice"], found["decided_twice"]) == ([], [])
    assert found["broken"] == [None, None], "a chain of hashes"
    assert found["verified"] > 0
    assert found["wrong"] == [], "indexes against the store"
