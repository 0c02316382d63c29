"""Settings: what wins, what is refused, and that every error names its key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from muniment.cluster.settings import LimitSettings, Settings, document, effective, load
from muniment.policies.errors import ConfigurationError
from muniment.policies.routing import PROFILES


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_last_of_file_environment_and_flags_wins_for_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muniment.yaml").write_text("http: {host: file, port: 1}\nmemory: {l1_capacity: 7, l2_capacity: 70}\n")
    monkeypatch.setenv("MUNIMENT_HTTP__PORT", "2")
    monkeypatch.setenv("MUNIMENT_MEMORY__L1_CAPACITY", "8")
    settings = load(http={"port": 3})
    assert (settings.http.host, settings.http.port) == ("file", 3)
    assert (settings.memory.l1_capacity, settings.memory.l2_capacity) == (8, 70)


def test_a_flag_that_says_nothing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUNIMENT_HTTP__PORT", "2")
    assert load(data_dir=None, http={"host": None, "port": None}).http.port == 2


def test_the_file_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "elsewhere.yaml"
    file.write_text("effects: {ledgers: 3}")
    monkeypatch.setenv("MUNIMENT_CONFIG_FILE", str(file))
    assert load().effects.ledgers == 3
    monkeypatch.setenv("MUNIMENT_CONFIG_FILE", str(tmp_path / "absent.yaml"))
    with pytest.raises(ConfigurationError, match=r"absent\.yaml"):
        load()


@pytest.mark.parametrize(
    ("yaml", "key"),
    [
        ("http: {port: 70000}", "http.port"),
        ("http: {prot: 80}", "http.prot"),
        ("htpp: {port: 80}", "htpp"),
        ("memory: {l1_capacity: 0}", "memory.l1_capacity"),
        ("memory: {index: annoy}", "memory.index"),
        ("memory: 5", "memory"),
        ("recall: {dense_weight: -1}", "recall.dense_weight"),
        ("recall: {dense_weight: 0, lexical_weight: 0}", "recall"),
        ("recall: {similarity_exponent: 2}", "recall.similarity_exponent"),
        ("http: [", "muniment.yaml"),
    ],
)
def test_an_error_in_the_file_names_its_key(tmp_path: Path, yaml: str, key: str) -> None:
    (tmp_path / "muniment.yaml").write_text(yaml)
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert caught.value.detail.startswith(key)


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("MUNIMENT_HTTP__PORT", "eighty", "http.port"),
        ("MUNIMENT_HTTP__PROT", "80", "http.prot"),
        ("MUNIMENT_PORT", "80", "MUNIMENT_PORT"),
    ],
)
def test_an_error_in_the_environment_names_its_key(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, key: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert caught.value.detail.startswith(key)


def test_settings_are_frozen_and_travel_between_processes(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path, store={"url": "postgresql+psycopg://me:hunter2@db/muniment"})
    with pytest.raises(ValueError, match="frozen"):
        settings.http.port = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_data_folder_is_absolute_wherever_it_is_named(tmp_path: Path) -> None:
    assert load(data_dir="here/../there").data_dir == tmp_path / "there"
    assert load().data_dir.is_absolute()


def test_a_secret_is_masked_where_it_is_shown_and_not_where_it_is_used(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path, store={"url": "postgresql+psycopg://me:hunter2@db/muniment"})
    assert "hunter2" not in str(effective(settings)) + str(settings)
    assert settings.store_url("memory") == "postgresql+psycopg://me:hunter2@db/muniment"


def test_without_postgresql_each_database_is_a_file(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path)
    urls = {settings.store_url(name) for name in ("memory", "effects", "control")}
    assert len(urls) == 3
    assert all(str(tmp_path) in url for url in urls)


def test_every_setting_is_documented_from_its_model() -> None:
    entries = {entry["key"]: entry for entry in document()}
    assert set(entries) >= {"data_dir", "http.port", "memory.l1_capacity", "workers.reranker"}
    assert all(entry["description"] for entry in entries.values())
    assert entries["http.port"]["variable"] == "MUNIMENT_HTTP__PORT"
    assert entries["limits.batch_facts"]["default"] == str(LimitSettings().batch_facts)


def test_every_setting_is_used() -> None:
    root = Path(__file__).parents[2]
    files = [path for layer in ("policies", "actors", "cluster", "deploy") for path in (root / layer).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files if path.name != "settings.py")
    names = {entry["key"].rpartition(".")[2] for entry in document()}
    assert {name for name in names if f".{name}" not in code} - {"url"} == set()


def test_the_recall_profiles_follow_the_settings_and_the_papers_does_not() -> None:
    assert Settings().recall.profiles() == PROFILES
    made = load(recall={"lexical_weight": 0, "rerank_depth": 7}).recall.profiles()
    assert (made["default"].lexical, made["default"].rerank_depth, made["fast"].rerank_depth) == (False, 7, 7)
    assert (made["default"].rerank, made["fast"].rerank) == (True, False)
    assert made["paper"] == PROFILES["paper"]


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert (settings.http.host, settings.http.port) == ("127.0.0.1", 8000)
    assert (settings.memory.l1_capacity, settings.memory.l2_capacity) == (500, 5000)
    assert settings.limits.body_bytes == 8 * 1024**2
