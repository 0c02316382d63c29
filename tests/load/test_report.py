"""Tables and plots of a load test, from what a run without a service took down."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.bench.service import Service
from tests.load import modes, report, run
from tests.load.world import Options, World


class Quick:
    """A target that answers everything at once; every seventh recall says that it was not reranked."""

    def __init__(self) -> None:
        self.recalls = 0

    async def send(self, tenant: int, request: Any, seconds_left: float) -> dict[str, Any]:
        if request.verb == "recall":
            self.recalls += 1
            return {"results": [], "route": {"degraded": "no_reranker" if self.recalls % 7 == 0 else None}}
        if request.verb == "propose":
            again = str(request.body["run_id"])
            if again.endswith("-again"):
                return {"verdict": "duplicate", "origin": {"run_id": again.removesuffix("-again")}}
            return {"verdict": "allow", "reservation": {"token": "t"}}
        if request.verb == "remember":
            told = request.body["facts"]
            return {"results": [{"id": fact["text"], "conflict_id": "c"} for fact in told]}
        return {
            "memory": {"text": request.named[0] if request.named else ""},
            "confirm": {"state": "confirmed"},
            "verify": {"intact": True},
        }.get(request.verb, {})

    async def close(self) -> None: ...


def options(mode: str, *more: str) -> argparse.Namespace:
    return run.parse([mode, "--rate", "60", "--seconds", "1", "--mix", "recall=50,remember=30,effect=20", *more])


@pytest.mark.parametrize("mode", modes.MODES)
def test_every_mode_reports_what_it_found(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_MOST_STEPS", 2)
    asked = options(mode)

    async def scenario() -> dict[str, Any]:
        world = World(Service("", tmp_path, "", (tmp_path,)), Quick(), Options(tenants=3, mix=asked.mix, checked=0.3))
        result = await modes.MODES[mode](world, asked)
        result["checks"] = await world.check()
        return result

    result = asyncio.run(scenario())
    assert run.failure(result) is None
    assert result["checks"]["looked_at"] >= result["checks"]["acknowledged"] > 10
    report.tables(mode, result)
    report.plots(mode, result, tmp_path)
    written = {path.stem.removeprefix(f"load_{mode}_") for path in tmp_path.glob("*.png")}
    assert (
        written
        == {
            "steady": {"latency", "timeline"},
            "burst": {"latency", "timeline"},
            "sweep": {"knee"},
            "overload": {"knee", "latency", "timeline"},
            "soak": {"latency", "timeline", "memory"},
        }[mode]
    )


def test_a_run_fails_on_what_is_lost_and_on_errors_that_are_no_refusals() -> None:
    fine = {"checks": {"lost_or_wrong": 0, "first_wrong": []}}
    assert run.failure(fine) is None
    assert "gone" in str(run.failure({"checks": {"lost_or_wrong": 1, "first_wrong": ["f1 is gone"]}}))
    failed = {"error": 1, "errors": {"internal: x": 1}}
    down = {"error": 0, "unavailable": 2, "errors": {"unavailable: x": 2}}
    assert "internal" in str(run.failure({**fine, "summary": failed}))
    assert "internal" in str(run.failure({**fine, "points": [failed]}))
    assert "unavailable" in str(run.failure({**fine, "summary": down}))
    assert run.failure({**fine, "summary": down, "kills": [{"second": 1.0, "kind": "ShardActor"}]}) is None
