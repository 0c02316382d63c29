"""Names of the Ray actors, one place for all: ``get_actor`` finds what ``create_actors`` made."""

from __future__ import annotations

from typing import Literal

Role = Literal["shard", "ledger", "router", "worker"]

#: The name of the Serve application.
SERVE_APP = "muniment"


def actor_name(role: Role, number: int) -> str:
    """The name of the ``number``-th Ray actor of a role, counted from 0, e.g. ``shard-0``."""
    return f"{role}-{number}"


def actor_names(role: Role, count: int) -> list[str]:
    """The names of all ``count`` Ray actors of a role."""
    return [actor_name(role, number) for number in range(count)]
