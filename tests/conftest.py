"""What holds for all tests: no model hub, one thread a model, and no settings from the developer's environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from muniment.cluster import launcher, processes
from muniment.cluster.settings import Settings, load
from tests.live import Service, start_service
from tests.stores import Postgres, Stores, postgres_server

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
for _name in [name for name in os.environ if name.startswith("MUNIMENT_")]:
    del os.environ[_name]
# A busy machine is slow, and how long an example takes proves nothing.
settings.register_profile("muniment", deadline=None)
# A gate says the same of the same code; chance has its place in every other run.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("muniment")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server that forgets when it falls, which is quicker."""
    with postgres_server() as server:
        if server is None:
            pytest.skip("PostgreSQL is not installed here, or there is nobody who may run it")
        yield server


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    """Empty databases on SQLite."""
    return Stores(tmp_path)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real service with the default settings."""
    data_dir = tmp_path_factory.mktemp("service").resolve()
    try:
        yield start_service(data_dir)
    finally:
        launcher.stop(data_dir)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A local Ray of which this process is the driver, and settings with a data folder for what runs in it."""
    settings = load(data_dir=tmp_path_factory.mktemp("ray").resolve())
    before = dict(os.environ)
    os.environ.update(launcher.environment(settings))
    launcher.start_ray(settings)
    try:
        yield settings
    finally:
        import ray

        ray.shutdown()
        processes.sweep(settings.data_dir)
        os.environ.clear()
        os.environ.update(before)
