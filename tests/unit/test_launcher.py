"""What the launcher makes of a Ray that does not come up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest

from muniment.cluster import launcher
from muniment.cluster.settings import load
from muniment.policies.errors import Unavailable


@pytest.mark.parametrize("kind", [Exception, RuntimeError, OSError, ValueError])
def test_a_ray_that_does_not_start_is_an_error_of_this_project(tmp_path, monkeypatch, kind):
    """Ray raises the bare ``Exception`` where its node is not there in time, as on a machine that is very busy."""

    def init(**_: object) -> NoReturn:
        raise kind("The current node timed out during startup.")

    monkeypatch.setattr(launcher, "_import_ray", lambda: SimpleNamespace(init=init, shutdown=lambda: None))
    with pytest.raises(Unavailable, match="Ray does not start: The current node timed out"):
        launcher.start_ray(load(data_dir=tmp_path))


def test_a_ray_that_is_late_is_started_again(tmp_path, monkeypatch):
    answers = [Exception("The current node timed out during startup."), SimpleNamespace(address_info={"address": "a"})]

    def init(**_: object) -> SimpleNamespace:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(launcher, "_import_ray", lambda: SimpleNamespace(init=init, shutdown=lambda: None))
    assert launcher.start_ray(load(data_dir=tmp_path)) == "a"
