"""Ray actors stay while the settings do, and are replaced with them; they are on the nodes that the settings name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private.state import actors

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
    assert set(made) == {"shard-0", "ledger-0", "worker-0"}
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


@pytest.fixture
def second_node(ray_cluster: Settings) -> Iterator[str]:
    """Another node of the Ray cluster, which has the resource "ours"; what it is called there."""
    before = {node["NodeID"] for node in ray.nodes()}
    address = ray.get_runtime_context().gcs_address
    options = ["--num-cpus=0", f"--object-store-memory={100 * 1024**2}", f"--resources={json.dumps({'ours': 1})}"]
    node = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", f"--address={address}", *options, "--block"],
        env={**os.environ, **launcher.environment(ray_cluster)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    tick = threading.Event()
    try:
        for _ in range(600):
            joined = {one["NodeID"] for one in ray.nodes() if one["Alive"] and "ours" in one["Resources"]} - before
            if joined:
                break
            assert node.poll() is None
            tick.wait(0.1)
        yield str(joined.pop())
    finally:
        node.terminate()
        node.wait(60)


def test_ray_actors_are_only_where_the_resource_is_that_the_settings_name(
    ray_cluster: Settings, tmp_path: Path, second_node: str
) -> None:
    where = {"namespace": "placed", "address": ray.get_runtime_context().gcs_address, "resource": "ours"}
    placed = ray_cluster.ray.model_copy(update=where)
    settings = ray_cluster.model_copy(update={"data_dir": tmp_path, "ray": placed})
    launcher.make_actors(settings)
    made = ids(settings)
    assert set(made) == {"shard-0", "ledger-0", "worker-0"}
    tick = threading.Event()
    for _ in range(600):
        entries = [actors(number) for number in made.values()]
        if all(entry["State"] == "ALIVE" for entry in entries):
            break
        tick.wait(0.1)
    assert {entry["Address"]["NodeID"] for entry in entries} == {second_node}
    for name in made:
        ray.kill(ray.get_actor(name, namespace="placed"))
