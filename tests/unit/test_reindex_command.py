"""``muniment reindex``: what it says, and when it is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from muniment.actors.model_worker import ModelWorker
from muniment.actors.store import memory_store
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.actors.store.memory_store import Stored
from muniment.cluster import launcher, reindexing
from muniment.cluster.services import check_model, prepare_stores
from muniment.cluster.settings import load
from muniment.deploy.cli import app
from muniment.policies.errors import ConfigurationError, StateConflict
from tests.unit.test_gate_observation import fact


class Other:
    """A model that thinks that all is one."""

    name = "another model"
    dimension = 3

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), self.dimension), np.float32)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def reindex(data_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["reindex", "--data-dir", str(data_dir), *options])


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two facts of the bundled model, and settings that name another."""
    folder = tmp_path / "data"
    folder.mkdir()
    prepare_stores(load(data_dir=folder), upgrade=False)
    engine = open_engine(sqlite_url(folder / "memory.db"))
    with engine.begin() as connection:
        memory_store.claim_model(connection, "all-MiniLM-L6-v2", 384)
        memory_store.insert_facts(connection, [Stored(fact(n, f"fact {n}"), None, 0, b"\0" * 1536) for n in range(2)])
    engine.dispose()
    monkeypatch.setenv("MUNIMENT_WORKERS__MODEL", Other.name)

    def opened(workers: Any) -> ModelWorker:
        assert workers.reranker == "none"
        return ModelWorker(Other(), None)

    monkeypatch.setattr(reindexing, "open_worker", opened)
    return folder


def test_a_start_with_another_model_is_refused_until_it_is_reindexed(data_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"from all-MiniLM-L6-v2 \(384 dimensions\).*muniment reindex"):
        check_model(load(data_dir=data_dir))
    done = reindex(data_dir, "--json")
    assert json.loads(done.stdout) == {"model": "another model", "before": "all-MiniLM-L6-v2", "facts": 2}
    check_model(load(data_dir=data_dir))
    assert "nothing to do" in reindex(data_dir).stdout


def test_an_empty_store_takes_any_model(tmp_path: Path, data_dir: Path) -> None:
    settings = load(data_dir=tmp_path / "fresh")
    settings.data_dir.mkdir()
    prepare_stores(settings, upgrade=False)
    check_model(settings)
    assert "nothing to do" in reindex(settings.data_dir).stdout


def test_it_is_refused_while_a_service_runs_or_starts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launcher.stopped(data_dir):
        done = reindex(data_dir)
        assert isinstance(done.exception, StateConflict)
    running = launcher.Running(pid=1, url="http://127.0.0.1:1", ray_address="", namespace="")
    monkeypatch.setattr(launcher, "find", lambda _: running)
    done = reindex(data_dir)
    assert isinstance(done.exception, StateConflict)
    assert "muniment down" in done.exception.detail
