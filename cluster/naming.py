"""Names of the Ray actors, one place for all: ``get_actor`` finds what ``create_actors`` made."""

from __future__ import annotations

from muniment.policies.partitioning import Kind

#: The name of the Serve application.
SERVE_APP = "muniment"
#: What a local service logs, in its data directory.
LOG_FILE = "service.log"


def actor_name(kind: Kind, number: int) -> str:
    """The name of the ``number``-th Ray actor of a kind, counted from 0, e.g. ``shard-0``."""
    return f"{kind}-{number}"
