"""Names of the Ray actors, one place for all: ``get_actor`` finds what ``create_actors`` made."""

from __future__ import annotations

from typing import Final

from muniment.policies.partitioning import Kind

#: What Ray puts before the name of every metric.
PREFIX: Final = "ray_"
#: The label, beside those in the table, that names who tells: a Ray actor ("shard-0"), "api" of the HTTP replicas, or
#: "client" of the Python clients inside Ray.
PART: Final = "part"
CLIENT: Final = "client"
#: What stands for a label's value that is none of its set.
OTHER: Final = "other"
#: The name of the Serve application.
SERVE_APP = "muniment"
#: What a local service logs, in its data directory.
LOG_FILE = "service.log"


def actor_name(kind: Kind, number: int) -> str:
    """The name of the ``number``-th Ray actor of a kind, counted from 0, e.g. ``shard-0``."""
    return f"{kind}-{number}"
