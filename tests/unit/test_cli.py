"""What the command line says of a service that ended at its start."""

from __future__ import annotations

import sys

import pytest

from muniment.cluster import launcher
from muniment.cluster.settings import load
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
