"""What the command line says of a service that ended at its start."""

from __future__ import annotations

import sys

import pytest

from muniment.cluster import launcher
from muniment.cluster.settings import load
from muniment.deploy import cli
from muniment.deploy.commands import service
from muniment.policies.errors import Unavailable


@pytest.mark.parametrize(
    ("program", "says"),
    [("raise SystemExit(3)", "it ended at its start"), ("print('muniment: the port is taken')", "the port is taken")],
    ids=["nothing", "why"],
)
def test_only_what_this_start_wrote_is_told(tmp_path, monkeypatch, program, says):
    (tmp_path / launcher.LOG_FILE).write_text("muniment: Ray ended by itself\n")
    monkeypatch.setattr(service, "_command", lambda _: [sys.executable, "-c", program])
    with pytest.raises(Unavailable, match=says):
        service.start_detached(load(data_dir=tmp_path))


def test_whoever_runs_it_is_told_why_the_store_does_not_answer(monkeypatch, capsys):
    monkeypatch.setenv("MUNIMENT_STORE__URL", "postgresql+psycopg://u:secret@127.0.0.1:9/x")  # nobody listens there
    monkeypatch.setattr(sys, "argv", ["muniment", "migrate"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    said = capsys.readouterr().err
    assert "the store did not answer" in said
    assert "Connection refused" in said
    assert "secret" not in said
