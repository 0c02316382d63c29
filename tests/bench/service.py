"""A real service under a benchmark: started as a user would start it, in a folder that goes when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muniment.cluster import AsyncClient, Client, launcher

COMPANY = "bench"


@dataclass(frozen=True, slots=True)
class Service:
    """A running service and a key for ``COMPANY``."""

    url: str
    data_dir: Path
    key: str
    #: The data directories that its processes name in their environment; two where the Ray cluster is not its own.
    process_dirs: tuple[Path, ...]

    @property
    def operator_key(self) -> str:
        """The key of who runs the service."""
        return (self.data_dir / launcher.OPERATOR_KEY_FILE).read_text().strip()

    def client(self, via: str, connections: int = 64) -> AsyncClient:
        """A client through ``http``, or through actor ``handle``s from this process."""
        address: Any = self.url if via == "http" else self.data_dir
        return AsyncClient(address, key=self.key, timeout_seconds=600.0, connections=connections)


@contextmanager
def service(variables: Mapping[str, str] | None = None, data_dir: Path | None = None) -> Iterator[Service]:
    """Starts a service on a free port; stops it, and this process's part in its Ray.

    ``variables``: settings other than the defaults. ``data_dir``: its folder, else one that goes when it ends.
    """
    made = TemporaryDirectory(prefix="muniment-bench-", ignore_cleanup_errors=True) if data_dir is None else None
    with made or nullcontext(str(data_dir)) as folder:
        data_dir = Path(folder).resolve()
        command = [sys.executable, "-m", "muniment.deploy.cli", "up", "--detach", "--port", "0", "--data-dir", folder]
        try:
            subprocess.run(
                command,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **(variables or {})},
            )
            running = launcher.find(data_dir)
            assert running is not None
            operator = (data_dir / launcher.OPERATOR_KEY_FILE).read_text().strip()
            with Client(running.url, key=operator, company=COMPANY) as client:
                client.create_company(COMPANY)
                key = client.create_key(("admin",), company=COMPANY)["key"]
            yield Service(running.url, data_dir, key, (data_dir,))
        finally:
            import ray

            ray.shutdown()
            launcher.stop(data_dir)
