"""One Ray and one real service for the whole session; both end with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from muniment.cluster import Client, launcher, processes
from muniment.cluster.settings import Settings, load

READY_SECONDS = 240


def muniment(*arguments: str | Path, timeout_seconds: float = READY_SECONDS) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a person would; output is captured, so whoever keeps it open is waited for."""
    return subprocess.run(
        [sys.executable, "-m", "muniment.deploy.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_seconds,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    url: str
    data_dir: Path
    operator_key: str

    def key(self, company: str, *roles: str, **options: Any) -> str:
        """A new key of ``company``, which is created if need be. Options as of ``POST /v1/keys``."""
        with self.client(company=company) as operator:
            operator.create_company(company)
            return str(operator.create_key(roles or ("agent",), company=company, **options)["key"])

    def client(self, key: str | None = None, **options: Any) -> Client:
        """A client with ``key``, or with the operator's."""
        return Client(self.url, key=key or self.operator_key, **options)


def start_service(data_dir: Path, *flags: str) -> Service:
    """A real service on ``data_dir`` and a free port, started by the command line."""
    started = muniment("up", "--detach", "--port", "0", "--data-dir", data_dir, *flags)
    log = data_dir / launcher.LOG_FILE
    assert started.returncode == 0, started.stderr + (log.read_text() if log.exists() else "")
    running = launcher.find(data_dir)
    assert running is not None
    return Service(running.url, data_dir, (data_dir / launcher.OPERATOR_KEY_FILE).read_text().strip())


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real service with the default settings."""
    data_dir = tmp_path_factory.mktemp("service").resolve()
    try:
        yield start_service(data_dir)
    finally:
        launcher.stop(data_dir)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A local Ray of which this process is the driver, and settings with a data folder for what runs in it."""
    settings = load(data_dir=tmp_path_factory.mktemp("ray").resolve())
    before = dict(os.environ)
    os.environ.update(launcher.environment(settings))
    launcher.start_ray(settings)
    try:
        yield settings
    finally:
        import ray

        ray.shutdown()
        processes.sweep(settings.data_dir)
        os.environ.clear()
        os.environ.update(before)
