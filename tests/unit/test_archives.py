"""The commands over whole stores: migrate, export, import, verify, as a person calls them, without a service."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from muniment.actors.store.control_store import Calibration, ControlStore
from muniment.actors.store.engine import sqlite_url
from muniment.actors.store.policy_book import PolicyBook
from muniment.deploy.cli import app
from muniment.deploy.commands import common
from muniment.policies.errors import CorruptData, NotFound

CALIBRATION = Calibration(threshold=0.8, queries=400, searches_l2=0.5, recall_lost=0.001)


def muniment(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    assert muniment("migrate", "--data-dir", folder).exit_code == 0
    control = ControlStore(sqlite_url(folder / "control.db"))
    control.create_company("acme", "operator")
    control.put_precedence("acme", {"fields": {}}, "ana")
    control.put_memory_policy("acme", {"languages": ["pt"]}, "ana")
    control.calibrate("acme", "a model", CALIBRATION, "key:operator")
    control.close()
    return folder


def test_a_company_moves_by_two_commands(data_dir: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "acme.archive", tmp_path / "other"
    exported = muniment("export", file, "--company", "acme", "--data-dir", data_dir)
    assert (exported.exit_code, "1 companies" in exported.stdout) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for new in ("1 companies, 9 rows", "0 companies, 0 rows"):
        imported = muniment("import", file, "--data-dir", other)
        assert (imported.exit_code, new in imported.stdout) == (0, True), imported.stdout
    verified = muniment("verify", "--json", "--data-dir", other)
    report = json.loads(verified.stdout)
    assert (verified.exit_code, report["intact"], report["checked"]["companies"]) == (0, True, 1)
    control = ControlStore(sqlite_url(other / "control.db"))
    policy = control.precedence("acme")
    assert policy is not None
    assert policy.version == 1
    assert PolicyBook(control).memory("acme").languages == ("pt",)
    assert control.calibrations("acme") == {"a model": CALIBRATION}
    control.close()


def test_the_counts_are_one_line_of_json(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "acme.archive"
    exported = muniment("export", file, "--json", "--data-dir", data_dir)
    told = json.loads(exported.stdout)
    assert (told["file"], told["companies"], told["rows"]) == (str(file), 1, 9)
    assert (told["tables"]["calibrations"], sum(told["tables"].values())) == (1, 9)
    for rows in (9, 0):
        imported = json.loads(muniment("import", file, "--json", "--data-dir", tmp_path / "other").stdout)
        assert (imported["file"], imported["rows"]) == (str(file), rows)


def test_long_commands_show_how_far_they_are_where_somebody_looks(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(common, "errors", Console(file=screen, force_terminal=True))
    file = tmp_path / "archive"
    other = tmp_path / "other"
    for what, command in (
        ("exporting: 9 rows", ("export", file, "--json", "--data-dir", data_dir)),
        ("importing: 9 rows", ("import", file, "--json", "--data-dir", other)),
        ("checking: 4 rows", ("verify", "--json", "--data-dir", other)),
    ):
        json.loads(muniment(*command).stdout)
        assert what in screen.getvalue()


def test_what_fails_leaves_nothing(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "archive"
    file.write_bytes(b"kept")
    failed = muniment("export", file, "--company", "nobody", "--data-dir", data_dir)
    assert isinstance(failed.exception, NotFound)
    assert (file.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == (b"kept", ["archive", "data"])
    assert isinstance(muniment("import", file, "--data-dir", tmp_path / "other").exception, CorruptData)


def test_verify_says_no_by_its_status(data_dir: Path) -> None:
    control = ControlStore(sqlite_url(data_dir / "control.db"))
    with control.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE control_decisions SET body = hash")
    control.close()
    assert isinstance(muniment("verify", "--company", "nobody", "--data-dir", data_dir).exception, NotFound)
    verified = muniment("verify", "--data-dir", data_dir)
    assert (verified.exit_code, "broken chain" in verified.stdout) == (1, True)
