"""The behaviour of the service once more: on PostgreSQL, with several of each Ray actor, spread over several nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.test_client import *  # noqa: F403
from tests.cluster.test_conflicts_http import *  # noqa: F403
from tests.cluster.test_http_contract import *  # noqa: F403
from tests.cluster.test_http_effects import *  # noqa: F403
from tests.live import Service
from tests.spread import spread_service
from tests.stores import Postgres


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Service]:
    """A service over several nodes, in the place of the one on this machine alone."""
    with spread_service(tmp_path_factory.mktemp("nodes").resolve(), postgres) as (service, _):
        yield service
