"""The command line against a running service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import httpx
import pytest

from muniment.cluster import launcher, processes
from muniment.policies.errors import Unauthenticated
from tests.live import Service, muniment

#: Several starts of a service in one test, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)

LOG = Path(__file__).parents[1] / "data" / "BGL_2k.log"


def test_a_key_is_one_line_and_valid_at_once(service: Service) -> None:
    flags = ("--company", "cli-keys", "--roles", "agent,owner", "--user", "ana", "--groups", "sales,support")
    made = muniment("key", "create", *flags, "--data-dir", service.data_dir, "--json")
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("\n") == 1
    key = json.loads(made.stdout)
    assert set(key) == {"id", "key", "company", "roles", "user"}
    assert (key["company"], sorted(key["roles"]), key["user"]) == ("cli-keys", ["agent", "owner"], "ana")
    with service.client(key["key"]) as client:
        assert client.memories()["memories"] == []

    listed = muniment("key", "list", "--company", "cli-keys", "--data-dir", service.data_dir, "--json")
    assert [entry["id"] for entry in json.loads(listed.stdout)["keys"]] == [key["id"]]
    assert key["key"] not in listed.stdout

    revoked = muniment("key", "revoke", key["id"], "--company", "cli-keys", "--data-dir", service.data_dir)
    assert revoked.returncode == 0, revoked.stderr
    with service.client(key["key"]) as client, pytest.raises(Unauthenticated):
        client.memories()


def test_a_gate_is_not_calibrated_by_too_little(service: Service, tmp_path: Path) -> None:
    key = service.key("cli-gate")
    with service.client(key) as client:
        source = {"kind": "counterparty"}
        client.remember([{"text": f"pump {n} of hall {n} leaks oil", "source": source} for n in range(3)])
    tried = muniment("calibrate", "--company", "cli-gate", "--data-dir", service.data_dir)
    assert (tried.returncode, tried.stdout) == (1, "")
    assert "for 0 of 3 queries" in tried.stderr
    assert tried.stderr.count("\n") == 1
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"query": "pump", "fact": "nobody told this"}\n')
    tried = muniment("calibrate", "--company", "cli-gate", "--pairs", pairs, "--data-dir", service.data_dir)
    assert (tried.returncode, tried.stdout) == (1, "")
    assert tried.stderr.endswith("of the 1 pairs no fact is in memory\n")


def test_a_running_service_is_not_reindexed(service: Service) -> None:
    tried = muniment("reindex", "--data-dir", service.data_dir)
    assert (tried.returncode, tried.stdout) == (1, "")
    assert "muniment down" in tried.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("key", "create", "--company", "c", "--roles", "king"), "/roles/0"),
        (("key", "revoke", "k_none", "--company", "nobody-has-this-name"), "no such company"),
        (("demo", "--log", "no-such-file.log"), "no-such-file.log"),
    ],
    ids=["a role that is none", "a company that is none", "a file that is none"],
)
def test_a_failure_is_one_clear_line(service: Service, command: tuple[str, ...], says: str) -> None:
    tried = muniment(*command, "--data-dir", service.data_dir)
    assert tried.returncode == 1
    assert tried.stdout == ""
    assert tried.stderr.count("\n") == 1
    assert says in tried.stderr


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for flags in ((), ("--detach",)):
        tried = muniment("up", *flags, "--port", "0", "--data-dir", tmp_path / "file" / "below")
        assert tried.returncode == 1
        assert tried.stderr.count("\n") == 1
        assert str(tmp_path) in tried.stderr


def test_commands_say_that_no_service_runs(tmp_path: Path) -> None:
    for command in (("key", "list", "--company", "c"), ("key", "create", "--company", "c", "--roles", "agent")):
        tried = muniment(*command, "--data-dir", tmp_path)
        assert tried.returncode == 1
        assert "muniment up" in tried.stderr
    assert muniment("status", "--data-dir", tmp_path).returncode == 1
    assert muniment("down", "--data-dir", tmp_path).returncode == 0


def test_status_and_doctor_find_a_running_service(service: Service) -> None:
    status = muniment("status", "--data-dir", service.data_dir, "--json")
    assert status.returncode == 0
    report = json.loads(status.stdout)
    assert (report["url"], report["ready"]) == (service.url, True)
    assert report["processes"] > 5
    doctor = muniment("doctor", "--data-dir", service.data_dir, "--json")
    assert doctor.returncode == 0, doctor.stdout
    assert {"level": "ok", "what": "service", "detail": f"runs at {service.url}"} in json.loads(doctor.stdout)


def test_the_tour_shows_all_parts_and_a_second_one_finds_the_facts_of_the_first(
    service: Service, tmp_path: Path
) -> None:
    log = tmp_path / "some.log"
    log.write_text("".join(LOG.read_text().splitlines(keepends=True)[1200:1260]) + "a line of another format\n")
    tours = [muniment("demo", "--log", log, "--data-dir", service.data_dir) for _ in range(2)]
    for tour in tours:
        assert tour.returncode == 0, tour.stderr
        for part in range(1, 6):
            assert re.search(rf"^{part}\. ", tour.stdout, re.MULTILINE)
        assert re.search(r"gate: (l1_only|search_l2) because \w+", tour.stdout)
        assert re.search(r"decided: \w+ by rule \w+", tour.stdout)
        assert re.search(r"step 1: allow", tour.stdout)
        assert re.search(r"step 7: duplicate .*\n  origin: run-\S+-a step 1, confirmed 2", tour.stdout)
        assert f"{service.url}/docs" in tour.stdout
    assert "60 of 61 lines are facts" in tours[0].stdout
    assert "0 were here already, 60 are new" in tours[0].stdout
    assert "60 were here already, 0 are new" in tours[1].stdout
    assert httpx.get(f"{service.url}/readyz").status_code == 200  # the tour stops only what it started


def test_the_tour_leaves_no_key_behind(service: Service, tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text(LOG.read_text().splitlines()[0])
    assert muniment("demo", "--log", log, "--data-dir", service.data_dir).returncode == 0
    with service.client(company="tour") as operator:
        assert operator.keys()["keys"] == []


def test_the_tour_stops_the_service_that_it_started(tmp_path: Path) -> None:
    data_dir, log = tmp_path.resolve() / "data", tmp_path / "some.log"
    log.write_text("".join(LOG.read_text().splitlines(keepends=True)[:20]))
    command = [sys.executable, "-m", "muniment.deploy.cli", "demo", "--port", "0", "--log", log, "--data-dir", data_dir]
    ignoring = ["bash", "-c", "trap '' INT; exec \"$@\"", "-"]  # as a shell without job control starts what ends in "&"
    try:
        with subprocess.Popen([*ignoring, *command], stdout=subprocess.PIPE, text=True, start_new_session=True) as tour:
            assert tour.stdout is not None
            said = list(takewhile(lambda line: line != "Serving until Ctrl-C.\n", tour.stdout))
            assert "0 were here already, 20 are new" in "".join(said)
            os.killpg(tour.pid, signal.SIGINT)
            assert tour.wait(timeout=180) == 0
        assert processes.processes_of(data_dir) == []

        once = muniment(*command[3:], "--once")
        assert once.returncode == 0, once.stderr
        assert "20 were here already, 0 are new" in once.stdout
        assert processes.processes_of(data_dir) == []
    finally:
        launcher.stop(data_dir)
