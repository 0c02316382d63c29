"""Starting, finding and stopping a service: side by side, after a crash, at a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from muniment.cluster import launcher, processes
from tests.live import Service, muniment, start_service

#: Several starts of a service in one test, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A folder for one service; whatever a failed test left of it is ended."""
    yield tmp_path.resolve()
    launcher.stop(tmp_path.resolve())


def children_of(pid: int) -> set[int]:
    """The living descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return {child for child in found - {pid} if processes.alive(child)}


def test_starting_what_runs_already_changes_nothing(service: Service) -> None:
    before = launcher.find(service.data_dir)
    again = muniment("up", "--detach", "--data-dir", service.data_dir)
    assert again.returncode == 0
    assert service.url in again.stdout
    assert launcher.find(service.data_dir) == before


def test_every_process_that_was_started_carries_the_data_folder(service: Service) -> None:
    running = launcher.find(service.data_dir)
    assert running is not None
    started = children_of(running.pid)
    assert len(started) > 5
    assert started | {running.pid} <= set(processes.processes_of(service.data_dir))


def test_secrets_are_only_the_users(service: Service) -> None:
    for name in (launcher.TOKEN_FILE, launcher.OPERATOR_KEY_FILE):
        assert stat.S_IMODE((service.data_dir / name).stat().st_mode) == 0o600


def test_ray_refuses_a_driver_without_the_token(service: Service) -> None:
    running = launcher.find(service.data_dir)
    assert running is not None
    code = f"import ray; ray.init(address={running.ray_address!r}, namespace='x'); print('joined')"
    token = service.data_dir / launcher.TOKEN_FILE

    def joined(environment: dict[str, str]) -> bool:
        environment = {**os.environ, "RAY_gcs_rpc_server_connect_timeout_s": "2", **environment}
        tried = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return "joined" in tried.stdout

    tried = [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)},
    ]
    with ThreadPoolExecutor(len(tried)) as threads:
        assert list(threads.map(joined, tried)) == [False, False, True]


def test_services_run_side_by_side_and_a_killed_one_leaves_nothing_after_down(service: Service, data_dir: Path) -> None:
    second = start_service(data_dir)
    assert second.url != service.url
    assert second.operator_key != service.operator_key
    for url in (service.url, second.url):
        assert httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    assert (
        httpx.get(f"{service.url}/v1/stats", headers={"Authorization": f"Bearer {second.operator_key}"}).status_code
        == 401
    )

    running = launcher.find(data_dir)
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    down = muniment("down", "--data-dir", data_dir)
    assert down.returncode == 0
    assert processes.processes_of(data_dir) == []
    assert launcher.find(data_dir) is None
    assert httpx.get(f"{service.url}/readyz", timeout=10).status_code == 200

    with start_service(data_dir).client() as again:  # what a crash left is in nobody's way
        again.create_company("after-the-crash")
    assert muniment("down", "--data-dir", data_dir).returncode == 0
    assert processes.processes_of(data_dir) == []


def test_a_signal_stops_everything(data_dir: Path) -> None:  # Ctrl-C: see the tour
    command = [sys.executable, "-m", "muniment.deploy.cli", "up", "--port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=180) == 0
    assert processes.processes_of(data_dir) == []
    assert launcher.find(data_dir) is None


def test_a_signal_during_the_start_leaves_nothing(data_dir: Path) -> None:
    command = [sys.executable, "-m", "muniment.deploy.cli", "up", "--port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        while len(processes.processes_of(data_dir)) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=180)
    assert processes.processes_of(data_dir) == []


def test_a_port_that_is_taken_is_one_clear_line(data_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flags in ((), ("--detach",)):
            tried = muniment("up", "--port", str(port), "--data-dir", data_dir, *flags)
            assert tried.returncode != 0
            assert tried.stderr.count("\n") == 1
            assert str(port) in tried.stderr
    assert processes.processes_of(data_dir) == []


def test_a_users_shell_that_exports_the_variable_is_left_alone(data_dir: Path) -> None:
    environment = {**os.environ, processes.DATA_DIR_VARIABLE: str(data_dir)}
    environment.pop(processes.SERVICE_VARIABLE, None)  # of a service of this test session's own
    with subprocess.Popen(["sleep", "600"], env=environment) as bystander:
        try:
            assert muniment("down", "--data-dir", data_dir).returncode == 0
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_what_is_left_without_a_state_file_is_found_and_ended(data_dir: Path) -> None:
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, **processes.marks(data_dir)})
    elsewhere = subprocess.Popen(["sleep", "600"], env={**os.environ, **processes.marks(data_dir / "other")})
    try:
        assert muniment("down", "--data-dir", data_dir).returncode == 0
        assert orphan.wait(timeout=10) != 0
        assert elsewhere.poll() is None
    finally:
        for process in (orphan, elsewhere):
            process.kill()
            process.wait()


def test_a_state_file_that_was_cut_short_is_no_service(data_dir: Path) -> None:
    (data_dir / launcher.STATE_FILE).write_text('{"pid": 1, "ur')
    assert launcher.find(data_dir) is None
    (data_dir / launcher.STATE_FILE).write_text(
        json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:1", "ray_address": "x", "namespace": "x"})
    )
    assert launcher.find(data_dir) is None  # the process lives, but it is not this folder's
