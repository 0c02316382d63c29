from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from muniment.actors.store import control_store
from muniment.actors.store.control_store import Calibration, ControlStore
from muniment.actors.store.engine import sqlite_url
from muniment.actors.store.keys import OPERATOR_ID, ensure_operator_key, key_hash, key_id_of, new_key
from muniment.policies.access import Role
from muniment.policies.errors import ConfigurationError, NotFound, StateConflict, StoreUnavailable
from muniment.policies.model import SourceKind

AGENT = frozenset({Role.AGENT})


class Ticking:
    """A clock that moves a second with every look, so that what comes later is later."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def url(stores):
    return stores.url("control")


@pytest.fixture
def store(url):
    made = ControlStore(url, clock=Ticking())
    made.create_company("acme", "key:operator")
    yield made
    made.close()


def kinds(store: ControlStore, company: str) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["outcome"]) for entry in store.decisions(company)]


def test_a_key_is_known_until_it_is_revoked_and_only_its_hash_is_stored(store, tmp_path):
    expiry = datetime(2027, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    key, grant = store.create_key(
        "acme",
        "ana",
        roles=frozenset({Role.AGENT, Role.OWNER}),
        user="lee",
        groups=frozenset({"finance"}),
        source_kinds=frozenset({SourceKind.COUNTERPARTY}),
        area="sales",
        agent="closer",
        expires_at=expiry,
    )
    assert store.grant_of(key) == replace(grant, company_since=store.in_force(["acme"])["acme"][-1])
    assert (grant.expires_at, grant.company, key_id_of(key)) == (expiry, "acme", grant.key_id)
    secret = key.rpartition("_")[2].encode()
    assert all(secret not in path.read_bytes() for path in tmp_path.iterdir())
    store.revoke_key("acme", grant.key_id, "ana")
    assert store.grant_of(key) is None
    assert kinds(store, "acme") == [("company", "created"), ("key", "created"), ("key", "revoked")]


@pytest.mark.parametrize("wrong", ["", "x", "mk_k_1", "mk_k_1_" + "0" * 64, "mk_\x00_" + "0" * 64, "é" * 5000])
def test_an_unknown_key_grants_nothing(store, wrong):
    assert store.grant_of(wrong) is None


def test_a_key_with_the_right_id_and_another_secret_grants_nothing(store):
    key, grant = store.create_key("acme", "ana", roles=AGENT)
    assert store.grant_of(new_key(grant.key_id)) is None
    assert store.grant_of(key.upper()) is None
    assert store.grant_of(key) is not None


def test_what_another_process_changes_is_seen_by_the_next_question_and_nothing_is_read_again_before(store, url):
    key, grant = store.create_key("acme", "ana", roles=AGENT)
    before = (store.grant_of(key), store.in_force(["acme"])["acme"])
    reads = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *_: reads.append(1))
    assert (store.grant_of(key), store.in_force(["acme"])["acme"]) == before
    assert bool(reads) is not store.local
    other = """
import sys
from muniment.actors.store.control_store import ControlStore
store = ControlStore(sys.argv[1])
store.revoke_key("acme", sys.argv[2], "key:operator")
store.put_precedence("acme", {"fields": {}}, "key:operator")
"""
    subprocess.run([sys.executable, "-c", other, url, grant.key_id], check=True, timeout=60)
    assert store.grant_of(key) is None
    assert store.in_force(["acme"])["acme"] != before[1]


def test_a_key_belongs_to_its_company(store):
    store.create_company("globex", "key:operator")
    _, grant = store.create_key("acme", "ana", roles=AGENT)
    with pytest.raises(NotFound):
        store.revoke_key("globex", grant.key_id, "eve")
    assert store.keys("globex") == []
    with pytest.raises(NotFound):
        store.create_key("initech", "ana", roles=AGENT)


def test_keys_are_listed_in_pages(store):
    made = [store.create_key("acme", "ana", roles=AGENT)[1].key_id for _ in range(5)]
    first = store.keys("acme", limit=2)
    rest = store.keys("acme", after=first[-1].grant.key_id)
    assert [record.grant.key_id for record in first + rest] == made


def test_what_a_company_may_grow_is_bounded(store, monkeypatch):
    monkeypatch.setattr(control_store, "MAX_KEYS", 1)
    store.create_key("acme", "ana", roles=AGENT)
    with pytest.raises(StateConflict):
        store.create_key("acme", "ana", roles=AGENT)
    monkeypatch.setattr(control_store, "MAX_TOOLS", 1)
    store.put_classification("acme", "mail", {"window": "off"}, "ana")
    with pytest.raises(StateConflict):
        store.put_classification("acme", "post", {"window": "off"}, "ana")
    monkeypatch.setattr(control_store, "KEPT_VERSIONS", 2)
    for n in range(5):
        store.put_classification("acme", "mail", {"n": n}, "ana")
    assert store.classification("acme", "mail").version == 6
    with store.engine.connect() as connection:
        assert connection.execute(sa.text("select count(*) from classifications")).scalar() == 2


def test_the_operator_key_is_the_one_in_the_file(store, url, tmp_path):
    first = ensure_operator_key(tmp_path / "operator.key")
    assert stat.S_IMODE(os.stat(tmp_path / "operator.key").st_mode) == 0o600
    assert ensure_operator_key(tmp_path / "operator.key") == first
    store.adopt_operator_key(first)
    store.adopt_operator_key(first)
    grant = store.grant_of(first)
    assert (grant.key_id, grant.company, grant.roles) == (OPERATOR_ID, None, {Role.OPERATOR})
    (tmp_path / "operator.key").unlink()
    second = ensure_operator_key(tmp_path / "operator.key")
    store.adopt_operator_key(second)
    assert store.grant_of(first) is None
    assert ControlStore(url).grant_of(second) is not None


def test_an_operator_key_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "operator.key"
    ensure_operator_key(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod"):
        ensure_operator_key(path)
    path.write_text("hello")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="operator key"):
        ensure_operator_key(path)


def test_one_of_many_starters_makes_the_operator_key(tmp_path):
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure_operator_key(tmp_path / "operator.key"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["operator.key"]


def test_creating_a_company_again_changes_nothing(store):
    assert store.create_company("acme", "key:operator") is False
    assert store.create_company("globex", "key:operator") is True
    assert store.has_company("globex")
    assert not store.has_company("initech")
    assert kinds(store, "acme") == [("company", "created")]


def test_an_erased_company_leaves_nothing_and_its_name_can_be_used_afresh(store):
    key, _ = store.create_key("acme", "ana", roles=AGENT)
    store.put_classification("acme", "mail", {"window": "off"}, "ana")
    store.put_precedence("acme", {"default_owner": "ana"}, "ana")
    with pytest.raises(StateConflict):
        store.erase_company("acme", "key:operator")
    assert store.close_company("acme") == 1
    assert store.grant_of(key) is None
    assert not store.has_company("acme")
    for refused in (
        lambda: store.create_company("acme", "key:operator"),
        lambda: store.create_key("acme", "ana", roles=AGENT),
        lambda: store.put_precedence("acme", {}, "ana"),
    ):
        with pytest.raises(StateConflict):
            refused()
    assert store.close_company("acme") == 0
    erased = store.erase_company("acme", "key:operator")
    assert erased == {
        "classifications": 1, "precedence_policies": 1, "memory_policies": 0, "calibrations": 0, "control_decisions": 4
    }  # fmt: skip
    assert store.decisions("acme") == []
    assert kinds(store, "") == [("company", "erased")]
    with pytest.raises(NotFound):
        store.close_company("acme")
    assert store.create_company("acme", "key:operator") is True
    assert store.precedence("acme") is None
    assert store.verify() == (2, None)


def test_written_things_have_versions(store):
    assert store.precedence("acme") is None
    first = store.put_precedence("acme", {"default_owner": "ana"}, "ana")
    assert store.put_precedence("acme", {"default_owner": "ana"}, "lee") == first
    second = store.put_precedence("acme", {"default_owner": "lee"}, "lee")
    assert (first.version, second.version) == (1, 2)
    assert store.precedence("acme") == second
    assert [entry["policy_version"] for entry in store.decisions("acme", kind="policy")] == [1, 2]
    store.create_company("globex", "key:operator")
    store.put_classification("acme", "mail", {"window": "off"}, "ana")
    assert store.classification("acme", "mail").body == {"window": "off"}
    assert store.classification("globex", "mail") is None
    with pytest.raises(NotFound):
        store.put_precedence("initech", {}, "ana")


def test_memory_policies_have_versions_of_their_own(store):
    assert store.memory_policy("acme") is None
    first = store.put_memory_policy("acme", {"languages": ["pt"]}, "ana")
    second = store.put_memory_policy("acme", {"languages": ["en"]}, "ana")
    assert (first.version, second.version, store.memory_policy("acme")) == (1, 2, second)
    assert [entry["kind"] for entry in store.decisions("acme")][-2:] == ["memory_policy"] * 2


def test_calibrations_are_by_company_and_model(store):
    assert store.calibrations("acme") == {}
    found = Calibration(threshold=0.8, queries=400, searches_l2=0.5, recall_lost=0.001)
    again = replace(found, threshold=0.7)
    store.calibrate("acme", "m", found, "key:operator")
    store.calibrate("acme", "m", again, "key:operator")
    store.calibrate("acme", "n", found, "key:operator")
    assert store.calibrations("acme") == {"m": again, "n": found}
    assert store.decisions("acme")[-1]["inputs"] == {"model": "n", **asdict(found)}
    with pytest.raises(NotFound):
        store.calibrate("initech", "m", found, "key:operator")


def test_what_is_in_force_changes_with_everything_that_is_written(store):
    seen = {store.in_force(["acme"])["acme"]}
    for write in (
        lambda: store.put_precedence("acme", {"default_owner": "ana"}, "ana"),
        lambda: store.put_memory_policy("acme", {"languages": ["pt"]}, "ana"),
        lambda: store.calibrate("acme", "m", Calibration(threshold=1, queries=1, searches_l2=1, recall_lost=0), "ana"),
    ):
        write()
        assert store.in_force(["acme"])["acme"] not in seen
        seen.add(store.in_force(["acme"])["acme"])
    store.create_company("other", "ana")
    *policies, made = store.in_force(["other"])["other"]
    assert policies == [None] * 5
    assert made is not None
    store.close_company("other")
    assert store.in_force(["other"])["other"] == (None,) * 6


def test_several_processes_write_one_chain(store, url):
    others = [ControlStore(url) for _ in range(4)]

    def make(other: ControlStore) -> None:
        for _ in range(10):
            other.create_key("acme", "ana", roles=AGENT)

    threads = [threading.Thread(target=make, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.verify("acme") == (41, None)
    assert len(store.keys("acme")) == 40


def test_a_changed_entry_is_found(store):
    store.create_key("acme", "ana", roles=AGENT)
    store.create_key("acme", "ana", roles=AGENT)
    with store.engine.begin() as connection:
        connection.execute(sa.text("update control_decisions set body = hash where seq = 2"))
    assert store.verify("acme") == (1, {"stream": "control/acme", "seq": 2})


def test_a_store_that_cannot_be_read_is_unavailable(tmp_path):
    store = ControlStore(sqlite_url(tmp_path / "control.db"))
    with store.engine.begin() as connection:
        connection.execute(sa.text("drop table access_keys"))
    with pytest.raises(StoreUnavailable):
        store.grant_of(new_key("k_1"))


def test_a_hash_is_of_the_whole_key():
    key = new_key("k_1")
    assert len(key_hash(key)) == 32
    assert key_hash(key) != key_hash(key.replace("k_1", "k_2"))
