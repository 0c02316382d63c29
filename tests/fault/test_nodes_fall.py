"""A service over several nodes, of which one dies and one hangs and wakes up again: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.fault import seeds
from tests.fault.faults import disturbed, kill_of
from tests.fault.workload import Work
from tests.spread import spread_service
from tests.stores import Postgres


@pytest.mark.timeout(7200)
def test_what_was_acknowledged_survives_nodes_that_die_or_hang(tmp_path: Path, postgres: Postgres) -> None:
    with spread_service(tmp_path.resolve(), postgres) as (service, nodes):

        async def die(work: Work, chance: random.Random) -> None:
            await asyncio.to_thread(nodes.do, "kill")

        async def hang(work: Work, chance: random.Random) -> None:
            """What ran there is replaced while it stands still, and then goes on with what it had."""
            await asyncio.to_thread(nodes.do, "pause")
            try:
                await work.goes_on(2)
            finally:
                await asyncio.to_thread(nodes.do, "resume")

        seed = seeds.seed()
        work = Work(service, seed)
        faults = [die, hang, kill_of("ShardActor", nodes.data_dir), kill_of("LedgerActor", nodes.data_dir)]
        asyncio.run(disturbed(work, faults, seeds.rounds(2), random.Random(seed)))
