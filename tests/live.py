"""A real service, started and used as a person would: by the command line and over HTTP."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muniment.cluster import Client, launcher

READY_SECONDS = 360


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
