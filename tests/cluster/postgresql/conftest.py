"""What tests/unit shows on SQLite holds on PostgreSQL; here, because it takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import Postgres, Stores


@pytest.fixture
def stores(tmp_path: Path, postgres: Postgres) -> Stores:
    """Empty databases on PostgreSQL."""
    return Stores(tmp_path, postgres)
