"""The file for Locust: it compiles, and where Locust is installed it loads a real service without a failure."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import Service

FILE = Path(__file__).with_name("locustfile.py")


def test_it_compiles() -> None:
    compile(FILE.read_text(), str(FILE), "exec")


@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="Locust is not installed: muniment[load]")
def test_its_users_meet_no_failure(service: Service, tmp_path: Path) -> None:
    key = service.key("locust", "admin")
    with service.client(key) as admin:
        admin.classify("send_mail", key_paths=["/n"], window={"seconds": 3_600})
    command = [sys.executable, "-m", "locust", "-f", FILE, "--host", service.url, "--headless", "--users", "4"]
    options = ["--spawn-rate", "4", "--run-time", "10s", "--csv", tmp_path / "found", "--exit-code-on-error", "1"]
    done = subprocess.run(
        [*map(str, command + options)],
        env={**os.environ, "LOAD_KEY": key, "LOAD_PACE": "4"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "found_stats.csv").open() as file:
        total = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    assert int(total["Request Count"]) > 0
    assert int(total["Failure Count"]) == 0
