"""Settings: what wins, what is refused, and that every error names its key."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import sqlalchemy as sa

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


def test_the_variables_of_whoever_uses_a_service_set_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load()
    for name in ("MUNIMENT_ADDRESS", "MUNIMENT_KEY", "MUNIMENT_USER"):
        monkeypatch.setenv(name, "x")
    assert load() == before


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
        ("- http", "muniment.yaml"),
        ("5: 3", "muniment.yaml"),
        ("http: {5: 3}", "http.5"),
        ("http: \udcff", "muniment.yaml"),
    ],
)
def test_an_error_in_the_file_names_its_key(tmp_path: Path, yaml: str, key: str) -> None:
    (tmp_path / "muniment.yaml").write_text(yaml, errors="surrogateescape")
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert caught.value.detail.startswith(key)


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("MUNIMENT_HTTP__PORT", "eighty", "http.port"),
        ("MUNIMENT_HTTP__PROT", "80", "http.prot"),
        ("MUNIMENT_PORT", "80", "MUNIMENT_PORT"),
        ("MUNIMENT_HTTP_PORT", "80", "MUNIMENT_HTTP_PORT"),
        ("MUNIMENT_HTTP_HOST", "0.0.0.0", "MUNIMENT_HTTP_HOST"),
        ("MUNIMENT_STORE_URL", "postgresql://db/x", "MUNIMENT_STORE_URL"),
        ("MUNIMENT_DATADIR", "/data", "MUNIMENT_DATADIR"),
        ("MUNIMENT_HTPP__SERVICE_HOST", "10.0.0.7", "MUNIMENT_HTPP__SERVICE_HOST"),
    ],
)
def test_an_error_in_the_environment_names_its_key(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, key: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError) as caught:
        load()
    assert caught.value.detail.startswith(key)


@pytest.mark.parametrize("service", ["MUNIMENT", "MUNIMENT_SERVE_SVC", "MUNIMENT_RAYCLUSTER_X7K2P_HEAD_SVC"])
def test_what_kubernetes_says_of_services_beside_ours_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    for name, value in {
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "8000",
        "SERVICE_PORT_GCS_SERVER": "6379",
        "PORT": "tcp://10.0.0.7:8000",
        "PORT_8000_TCP": "tcp://[fd00::7]:8000",
        "PORT_8000_TCP_PROTO": "tcp",
        "PORT_8000_TCP_PORT": "8000",
        "PORT_8000_TCP_ADDR": "10.0.0.7",
        "PORT_53_UDP_ADDR": "10.0.0.7",
    }.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load() == Settings()


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


def test_the_password_of_the_store_can_stand_in_a_file_that_other_nodes_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2@/:%\n")
    monkeypatch.setenv("MUNIMENT_STORE__URL", "postgresql://me@db:5432/muniment?sslmode=verify-full")
    monkeypatch.setenv("MUNIMENT_STORE__PASSWORD_FILE", str(file))
    settings = load(data_dir=tmp_path)
    wanted = sa.make_url("postgresql://me@db:5432/muniment?sslmode=verify-full").set(password="hunter2@/:%")
    assert sa.make_url(settings.store_url("memory")) == wanted
    assert "hunter2" not in str(effective(settings)) + str(settings) + repr(settings)
    assert effective(settings)["store"]["password_file"] == str(file)
    file.unlink()
    assert pickle.loads(pickle.dumps(settings)).store_url("effects") == settings.store_url("memory")


@pytest.mark.parametrize(
    ("content", "url", "says"),
    [
        (None, "postgresql://me@db/x", "store.password_file: password cannot be read: No such file"),
        (b"", "postgresql://me@db/x", "store.password_file: password is empty"),
        (b" \n", "postgresql://me@db/x", "store.password_file: password is empty"),
        (b"\xff", "postgresql://me@db/x", "store.password_file: password cannot be read: it is no text"),
        (b"hunter2", None, "store.password_file: there is no store.url"),
        (b"hunter2", "no address", "store.url is not an address"),
    ],
    ids=["absent", "empty", "blank", "bytes", "alone", "no address"],
)
def test_a_password_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, content: bytes | None, url: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "password").write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load(store={"url": url, "password_file": "password"})
    assert caught.value.detail.startswith(says)
    assert "hunter2" not in caught.value.detail


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
    assert {name for name in names if f".{name}" not in code} - {"url", "password_file"} == set()


def test_our_ray_actors_ask_for_the_resource_of_the_nodes_that_may_run_them() -> None:
    assert load(ray={"address": "auto"}).ray.placement() == {}
    assert set(load(ray={"address": "auto", "resource": "ours"}).ray.placement()) == {"ours"}
    assert load(ray={"resource": "ours"}).ray.placement() == {}  # a Ray of our own has none


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
