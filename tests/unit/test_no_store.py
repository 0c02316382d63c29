"""A mistyped data directory is one clear error, and is not made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muniment.cluster import archives
from muniment.cluster.reindexing import reindex_store
from muniment.cluster.settings import Settings
from muniment.policies.errors import NotFound


@pytest.mark.parametrize(
    "command",
    [
        lambda settings: archives.export_to(settings, settings.data_dir.with_name("archive"), None),
        lambda settings: archives.verify_stores(settings, None),
        lambda settings: reindex_store(settings, lambda done, total: None),
    ],
    ids=["export", "verify", "reindex"],
)
def test_a_command_that_needs_a_store_says_that_there_is_none(
    command: Callable[[Settings], object], tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="mistyped"):
        command(Settings(data_dir=tmp_path.resolve() / "mistyped"))
    assert list(tmp_path.iterdir()) == []
