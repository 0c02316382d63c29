"""The doctor finds what is in the way, and says what to do."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from muniment.actors import embedding
from muniment.actors.store import effect_store
from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.engine import open_engine
from muniment.cluster import launcher
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings, load
from muniment.deploy import doctor, doctor_stores
from muniment.deploy.cli import app
from muniment.deploy.doctor import Finding


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "gpu_possible", lambda: False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(data_dir=tmp_path, workers={"cache_dir": tmp_path / "models"}, http={"port": 0})


def stores(settings: Settings) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for level, what, detail in doctor_stores.look_at_stores(settings):
        found.setdefault(what, []).append((level, detail))
    return found


def by_what(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_a_package_that_is_missing_or_does_not_fit_is_named_with_its_cure() -> None:
    wanted = ["ray[serve]<2,>=1", "no-such-package>=3", "typer>=0.1", "pytest; extra == 'dev'"]
    found = by_what(doctor.look_at_program(wanted))
    assert set(found) == {"Python", "ray", "no-such-package", "typer"}
    assert found["ray"].level == "error"
    assert "pip install 'ray<2,>=1'" in found["ray"].detail
    assert found["no-such-package"].detail == "is not installed; run: pip install 'no-such-package>=3'"
    assert found["typer"].level == "ok"


def test_a_folder_that_is_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = doctor.look_at_folder(tmp_path / "file" / "below")
    assert (found.level, found.what) == ("error", "data folder")


def test_little_disk_and_a_key_that_others_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / launcher.OPERATOR_KEY_FILE).write_text("key")
    os.chmod(tmp_path / launcher.OPERATOR_KEY_FILE, 0o644)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 1024**2))
    found = by_what(doctor.look_at_folder(tmp_path))
    assert found["free disk"].level == "warning"
    assert found[launcher.OPERATOR_KEY_FILE].level == "error"
    assert "chmod 600" in found[launcher.OPERATOR_KEY_FILE].detail


def test_a_containers_limit_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    monkeypatch.setattr(doctor, "_MEMINFO", meminfo)
    monkeypatch.setattr(doctor, "_CGROUP", tmp_path)
    assert doctor.free_memory() == 8_000_000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("400000000\n")
    assert doctor.free_memory() == 8_000_000 * 1024
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert doctor.free_memory() == 600_000_000


def test_what_the_machine_lacks_is_a_warning_with_a_cure(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_memory", lambda: 100 * 1024**2)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=1024**2))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    found = by_what(doctor.look_at_machine(settings))
    assert {one.level for one in found.values()} == {"warning"}
    assert "workers.count" in found["free memory"].detail
    assert "--shm-size" in found["shared memory"].detail
    assert found["open files"].detail.endswith("run: ulimit -n 8192")
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (1024, 4096))
    assert "hard limit (4096)" in by_what(doctor.look_at_machine(settings))["open files"].detail


def test_models_that_are_not_exported_yet_are_a_warning(settings: Settings) -> None:
    found = by_what(doctor.look_at_models(settings))
    assert found["bundled model"].level == "ok"
    assert found["exported models"].level == "warning"
    assert "muniment export-models" in found["exported models"].detail


def test_a_bundled_model_with_another_checksum_is_an_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "BUNDLED_SHA256", "0" * 64)
    (found,) = doctor.look_at_models(settings)
    assert (found.level, found.what) == ("error", "models")
    assert "reinstall" in found.detail


def test_a_model_that_is_nowhere_is_an_error_where_it_must_be_exported(tmp_path: Path) -> None:
    workers = {"model": str(tmp_path / "none"), "reranker": "none", "runtime": "onnx", "cache_dir": tmp_path}
    (found,) = doctor.look_at_models(load(data_dir=tmp_path, workers=workers))
    assert (found.level, found.what) == ("error", "models")


def with_workers(settings: Settings, **workers: Any) -> Settings:
    return settings.model_copy(update={"workers": settings.workers.model_copy(update=workers)})


def test_nobody_looks_for_exports_where_torch_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exported models" not in by_what(doctor.look_at_models(with_workers(settings, runtime="torch")))
    assert "exported models" not in by_what(doctor.look_at_models(with_workers(settings, device="cuda:0")))
    monkeypatch.setattr(embedding, "gpu_possible", lambda: True)
    assert "exported models" not in by_what(doctor.look_at_models(settings))
    for on_cpu in ({"device": "cpu"}, {"runtime": "onnx"}):
        assert "exported models" in by_what(doctor.look_at_models(with_workers(settings, **on_cpu)))


@pytest.mark.parametrize(
    ("workers", "happens"),
    [
        ({"gpus_per_worker": 1}, "wait for one for ever"),
        ({"gpus_per_worker": 0.5, "device": "cuda"}, "wait for one for ever"),
        ({"device": "cuda:1"}, "no model could be loaded"),
    ],
)
def test_a_gpu_that_is_wanted_and_not_there_is_an_error(
    settings: Settings, workers: dict[str, Any], happens: str
) -> None:
    (found,) = doctor.look_at_gpu(with_workers(settings, **workers))
    assert (found.level, found.what) == ("error", "GPU")
    assert happens in found.detail
    assert "set workers.device to cpu and workers.gpus_per_worker to 0" in found.detail


def test_where_no_gpu_is_wanted_or_the_workers_are_elsewhere_nobody_asks_for_one(settings: Settings) -> None:
    assert not list(doctor.look_at_gpu(settings))
    assert not list(doctor.look_at_gpu(with_workers(settings, device="cuda", runtime="onnx")))
    elsewhere = settings.model_copy(update={"ray": settings.ray.model_copy(update={"address": "auto"})})
    assert not list(doctor.look_at_gpu(with_workers(elsewhere, gpus_per_worker=1)))


@pytest.mark.parametrize(("usable", "level"), [(True, "ok"), (False, "error")])
def test_torch_says_whether_it_can_use_the_gpu(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, usable: bool, level: str
) -> None:
    cuda = SimpleNamespace(is_available=lambda: usable, device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __version__="2+cpu"))
    monkeypatch.setattr(embedding, "gpu_possible", lambda: True)
    (found,) = doctor.look_at_gpu(with_workers(settings, gpus_per_worker=1))
    assert found.level == level
    assert "torch can use 2" in found.detail or "CUDA build" in found.detail


def test_stores_that_were_never_made_are_no_trouble_and_are_not_made_by_looking(settings: Settings) -> None:
    found = stores(settings)
    assert {level for entries in found.values() for level, _ in entries} == {"ok"}
    assert list(settings.data_dir.iterdir()) == []


@pytest.fixture
def kept(settings: Settings) -> Settings:
    """The settings of a store with its tables."""
    prepare_stores(settings, upgrade=False)
    return settings


def test_tables_of_this_version_are_fine(kept: Settings) -> None:
    found = stores(kept)
    assert {level for entries in found.values() for level, _ in entries} == {"ok"}
    assert found["stored vectors"] == [("ok", "there are none yet")]


def test_tables_of_another_version_are_an_error_that_names_migrate(kept: Settings) -> None:
    engine = open_engine(kept.store_url("memory"))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE memory_schema SET version_num = '0000'"))
    engine.dispose()
    ((level, detail),) = stores(kept)["memory store"]
    assert level == "error"
    assert "muniment migrate" in detail


def test_a_file_that_is_no_store_is_an_error(settings: Settings) -> None:
    (settings.data_dir / "effects.db").write_bytes(b"this is no database" * 100)
    ((level, detail),) = stores(settings)["effects store"]
    assert level == "error"
    assert "no store" in detail


def test_a_database_that_is_away_is_an_error_and_its_password_is_not_told(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://muniment:pa55word@127.0.0.1:{port}/muniment"
    found = stores(load(data_dir=tmp_path, store={"url": url}))
    for database in ("memory", "effects", "control"):
        ((level, detail),) = found[f"{database} store"]
        assert level == "error"
        assert "store.url" in detail
        assert "pa55word" not in detail


def test_an_address_of_another_kind_of_database_is_an_error(tmp_path: Path) -> None:
    ((level, detail),) = stores(load(data_dir=tmp_path, store={"url": "mysql://x/y"}))["memory store"]
    assert level == "error"
    assert "PostgreSQL" in detail


def test_vectors_of_another_model_are_an_error_that_names_reindex(kept: Settings) -> None:
    engine = open_engine(kept.store_url("memory"))
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO embedding_model (name, dimension) VALUES ('other', 3)"))
    engine.dispose()
    ((level, detail),) = stores(kept)["stored vectors"]
    assert level == "error"
    assert "muniment reindex" in detail


def test_a_store_that_is_ahead_of_this_clock_is_a_warning(kept: Settings) -> None:
    engine = open_engine(kept.store_url("effects"))
    store = effect_store.EffectStore(engine.dialect, "ledger-0")
    with engine.begin() as connection:
        store.save_clock(connection, int((datetime.now(UTC) + timedelta(hours=2)).timestamp() * 1e6))
    engine.dispose()
    ((level, detail),) = stores(kept)["clock"]
    assert level == "warning"
    assert "effects" in detail


def test_the_databases_clock_is_compared_with_ours() -> None:
    def answered(skew: timedelta) -> Any:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        execute = lambda _: SimpleNamespace(scalar_one=lambda: now + skew)  # noqa: E731
        connection: Any = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"), execute=execute)
        (found,) = doctor_stores._clock(connection, now)
        return found

    assert answered(timedelta(seconds=1))[0] == "ok"
    level, _, detail = answered(timedelta(seconds=-90))
    assert level == "warning"
    assert "90.0 s" in detail


def test_a_company_without_calibration_under_a_model_of_ones_own_is_a_warning(kept: Settings, tmp_path: Path) -> None:
    control = ControlStore(kept.store_url("control"))
    control.create_company("acme", "test")
    control.close()
    assert stores(kept)["calibration"][0][0] == "ok"
    other = kept.model_copy(update={"workers": kept.workers.model_copy(update={"model": "other"})})
    ((level, detail),) = stores(other)["calibration"]
    assert level == "warning"
    assert "muniment calibrate" in detail
    assert "acme" in detail


def test_a_port_that_is_taken_and_a_ray_that_is_away_are_errors(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        found = by_what(doctor.look_at_service(load(data_dir=tmp_path, http={"port": port})))
        assert (found["port"].level, found["service"].level) == ("error", "ok")
        assert "--port" in found["port"].detail
        reached = by_what(
            doctor.look_at_service(load(data_dir=tmp_path, http={"port": 0}, ray={"address": f"127.0.0.1:{port}"}))
        )
        assert reached["Ray cluster"].level == "ok"
    gone = load(data_dir=tmp_path, http={"port": 0}, ray={"address": f"127.0.0.1:{port}"})
    assert by_what(doctor.look_at_service(gone))["Ray cluster"].level == "error"


@pytest.mark.parametrize(
    ("answer", "level", "says"),
    [
        ({"down": [], "degraded": []}, "ok", "every part"),
        ({"down": ["shard-0"], "degraded": []}, "error", "shard-0"),
        ({"down": [], "degraded": ["no_reranker"]}, "warning", "no_reranker"),
        (None, "error", "does not answer"),
    ],
    ids=["ready", "down", "degraded", "silent"],
)
def test_a_running_service_is_asked_whether_it_is_ready(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, answer: Any, level: str, says: str
) -> None:
    def get(url: str, **_: Any) -> httpx.Response:
        assert url == "http://x/readyz"
        if answer is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=answer)

    running = launcher.Running(pid=1, url="http://x", ray_address="y", namespace="z")
    monkeypatch.setattr(doctor.launcher, "find", lambda _: running)
    monkeypatch.setattr(doctor.httpx, "get", get)
    found = by_what(doctor.look_at_service(settings))
    assert found["readiness"].level == level
    assert says in found["readiness"].detail


def test_the_status_tells_whether_something_would_not_work(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path), "--json"])
    findings = json.loads(ran.stdout)
    assert ran.exit_code == int(any(finding["level"] == "error" for finding in findings))
    (tmp_path / "control.db").write_bytes(b"no" * 1000)
    assert CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path)]).exit_code == 1
