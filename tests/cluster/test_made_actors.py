"""Ray actors stay while the settings do, and are replaced with them."""

from __future__ import annotations

from pathlib import Path

import ray

from muniment.cluster import launcher
from muniment.cluster.settings import MemorySettings, Settings


def ids(settings: Settings) -> dict[str, str]:
    """The named Ray actors of a service, and which instances they are."""
    names = [a["name"] for a in ray.util.list_named_actors(True) if a["namespace"] == settings.ray.namespace]
    return {name: ray.get_actor(name, namespace=settings.ray.namespace)._actor_id.hex() for name in names}


def test_ray_actors_that_were_made_with_other_settings_are_replaced(ray_cluster: Settings, tmp_path: Path) -> None:
    namespace = ray_cluster.ray.model_copy(update={"namespace": "renewed"})
    settings = ray_cluster.model_copy(update={"data_dir": tmp_path, "ray": namespace})
    launcher.make_actors(settings)
    made = ids(settings)
    assert set(made) == {"shard-0", "ledger-0", "router-0", "worker-0"}
    launcher.make_actors(settings)
    assert ids(settings) == made
    other = settings.model_copy(update={"memory": MemorySettings(l1_capacity=7)})
    launcher.make_actors(other)
    replaced = ids(settings)
    assert set(replaced) == set(made)
    assert not set(replaced.values()) & set(made.values())
    assert launcher.published_settings("renewed").memory.l1_capacity == 7
    for name in replaced:
        ray.kill(ray.get_actor(name, namespace="renewed"))
