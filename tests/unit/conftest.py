"""Unit tests need no Ray: starting one is an error."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a unit test must not start Ray")

    monkeypatch.setattr("ray.init", refuse)
