"""``serve run`` with ``deploy/serve.yaml`` starts the whole service."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml

from muniment.actors.store.keys import OPERATOR_ID, new_key
from muniment.cluster import processes
from tests.live import Service

SECONDS_TO_WAIT = 200
CONFIG = Path(__file__).parents[2] / "deploy" / "serve.yaml"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Service]:
    """The service of the file as it stands, with another port and a data directory."""
    data_dir, operator = tmp_path.resolve(), new_key(OPERATOR_ID)
    folder = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets have short names
    config = yaml.safe_load(CONFIG.read_text())
    config["http_options"] = {**config["http_options"], "host": "127.0.0.1", "port": free_port()}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    environment = {
        **os.environ,
        **processes.marks(data_dir),
        "MUNIMENT_AUTH__OPERATOR_KEY": operator,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": folder,
        "RAY_raylet_start_wait_time_s": "150",
    }
    environment.pop("RAY_ADDRESS", None)
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            [Path(sys.executable).with_name("serve"), "run", path],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{config['http_options']['port']}"
    tick = threading.Event()
    try:
        for _ in range(SECONDS_TO_WAIT * 5):
            assert running.poll() is None, (tmp_path / "log").read_text()[-3000:]
            if is_ready(url):
                break
            tick.wait(0.2)
        else:
            raise AssertionError((tmp_path / "log").read_text()[-3000:])
        yield Service(url, data_dir, operator)
    finally:
        processes.sweep(data_dir)
        running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_the_file_starts_a_service_that_answers(served: Service) -> None:
    with served.client(served.key("acme", "agent")) as client:
        client.remember([{"text": "Aurora pays by invoice", "source": {"kind": "unattributed"}}])
        (found,) = client.recall("how does Aurora pay?")["results"]
    assert found["fact"]["text"] == "Aurora pays by invoice"
    metrics = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {served.operator_key}"}, timeout=30)
    assert metrics.status_code == 200
    assert not (served.data_dir / "operator.key").exists()
