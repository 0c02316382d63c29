"""What the first start of a service says of its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muniment.cluster import actor_classes
from muniment.cluster.services import prepare_stores
from muniment.cluster.settings import Settings
from muniment.policies.errors import ConfigurationError


@pytest.mark.parametrize("refused", [{"memory": {"shards": 3}}, {"effects": {"ledgers": 2}}])
def test_a_start_that_is_refused_stores_nothing(
    tmp_path: Path, refused: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_classes, "create_actor", lambda *_: None)
    settings = Settings(data_dir=tmp_path, **refused)
    prepare_stores(settings, upgrade=False)
    with pytest.raises(ConfigurationError, match="SQLite allows one"):
        actor_classes.create_actors(settings)
    corrected = Settings(data_dir=tmp_path, workers={"count": 2})
    assert sorted(actor_classes.create_actors(corrected)) == ["ledger-0", "shard-0", "worker-0", "worker-1"]
