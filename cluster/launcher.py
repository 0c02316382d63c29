"""Start, attach to and stop a service: a local Ray of its own, the named Ray actors, and the HTTP application.

One service per data directory. The process that starts it holds a lock there, writes where it is reached into
``service.json``, and stays; whatever it starts ends with it. The local Ray accepts only who has the token in
``ray.token`` (0600): Ray listens on the machine's address, and whoever may talk to it may run code.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from muniment.cluster import processes
from muniment.cluster.naming import LOG_FILE as LOG_FILE
from muniment.cluster.naming import SERVE_APP
from muniment.cluster.settings import Settings
from muniment.policies.errors import ConfigurationError, StateConflict, Unavailable

STATE_FILE = "service.json"
OPERATOR_KEY_FILE = "operator.key"
TOKEN_FILE = "ray.token"
_LOCK_FILE = "service.lock"
_STOP_SECONDS = 30.0
#: How often it is looked whether the Ray actors have ended, and the pause between two looks.
_ENDING_LOOKS = 300
_ENDING_PAUSE_SECONDS = 0.1
#: Ray gives a node 30 s to come up, which a very busy machine exceeds.
_RAY_ATTEMPTS = 3
_LONGEST_TEMPORARY_FOLDER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Where a running service is reached. ``pid``: the process that started it."""

    pid: int
    url: str
    ray_address: str
    namespace: str


def find(data_dir: Path) -> Running | None:
    """The service that runs on ``data_dir``, or None."""
    try:
        running = Running(**json.loads((data_dir.resolve() / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):  # none, or cut short by a crash
        return None
    return running if processes.alive(running.pid) and processes.belongs(running.pid, data_dir.resolve()) else None


def environment(settings: Settings) -> dict[str, str]:
    """What the environment of a service's processes adds to the caller's; also creates the Ray token."""
    return {
        **processes.marks(settings.data_dir),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(_token(settings.data_dir)),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray gives way to whatever else runs on the machine (niceness 15), which who waits for an answer would feel.
        "RAY_worker_niceness": "0",
        # Ray's record of every call, which nobody reads and which grows in its head up to a hundred thousand calls.
        "RAY_task_events_report_interval_ms": "0",
        # A worker that reserves no GPU may still be told to use one.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # More threads than cores, or threads that spin, cost a text 476 ms instead of 13.
        "OMP_NUM_THREADS": str(settings.workers.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        # How long a call waits to learn that its Ray actor died, which is how long a restart stays unseen.
        "RAY_timeout_ms_task_wait_for_death_info": "50",
    }


def _token(data_dir: Path) -> Path:
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / TOKEN_FILE
    draft = data_dir / f"{TOKEN_FILE}.{os.getpid()}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    return path


class Service:
    """A running service, in the process that started it."""

    def __init__(self, settings: Settings, lock: IO[str]) -> None:
        self.settings = settings
        self._lock = lock
        self._vital: list[int] = []
        self._address = ""
        self.url = ""

    def start_ray(self) -> None:
        """The local Ray, or the connection to the cluster that the settings name."""
        self._address = start_ray(self.settings)
        if self.settings.ray.address is None:
            self._vital = _vital_processes(self.settings.data_dir)

    def create_actors(self) -> None:
        """The named Ray actors; they get ready while the application is deployed."""
        make_actors(self.settings)

    def deploy(self, application: Callable[[Settings], Any], port: int) -> None:
        """The HTTP application; from now on others find the service."""
        _deploy(self.settings, application(self.settings), port)
        _write_state(self.settings, self.url, self._address)

    def broken(self) -> bool:
        """Whether a process without which Ray cannot go on has ended."""
        return any(not processes.alive(pid) for pid in self._vital)

    def stop(self) -> None:
        """Stops the application, the Ray actors and the local Ray; leaves no process. Idempotent."""
        import ray

        data_dir = self.settings.data_dir
        try:
            if ray.is_initialized():
                if self.settings.ray.address is not None:
                    _withdraw(self.settings)
                ray.shutdown()
        finally:
            if not self.broken():
                shutil.rmtree(_ray_folder(data_dir), ignore_errors=True)  # else its logs tell why
            processes.sweep(data_dir)
            (data_dir / STATE_FILE).unlink(missing_ok=True)
            self._lock.close()


def run(settings: Settings, application: Callable[[Settings], Any], on_deployed: Callable[[str], None]) -> None:
    """The whole life of a service, in this process, which must carry ``environment`` since it was started.

    ``application`` makes the Serve application. ``on_deployed`` gets the URL, in a thread of its own; ``/readyz`` there
    tells when the service is ready. Returns after SIGINT, SIGTERM or SIGHUP, when everything it started has ended.
    Raises ``StateConflict`` where a service runs already, ``ConfigurationError`` where the port is taken,
    ``Unavailable`` where Ray does not start or ends by itself.
    """
    told = threading.Event()
    # Not in the main thread, where what a signal's handler raises in the middle of a start may be swallowed. The
    # thread stays: Linux ends Ray's processes with the thread that started them.
    with ThreadPoolExecutor(1, "start") as starter:
        starting = starter.submit(start, settings, application, told.is_set)
        while not starting.done():
            _listen(told)
            wait([starting], timeout=0.1)
        service = starting.result()
        _listen(told)
        try:
            threading.Thread(target=on_deployed, args=(service.url,), daemon=True).start()
            while not told.wait(0.5):
                if service.broken():
                    raise Unavailable("Ray ended by itself; everything else was stopped")
        finally:
            service.stop()


def _listen(told: threading.Event) -> None:
    """Has the signals that end a service set ``told``. Ray, as it starts, puts handlers of its own in their place."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())


def start(settings: Settings, application: Callable[[Settings], Any], told: Callable[[], bool]) -> Service:
    """See ``run``. Goes no further as soon as it is ``told`` to stop."""
    service = Service(settings, _lock(settings.data_dir))
    try:
        if find(settings.data_dir) is None:
            processes.sweep(settings.data_dir)
        port = _free_port(settings.http.host, settings.http.port)
        service.url = f"http://{_reachable(settings.http.host)}:{port}"
        for step in (service.start_ray, service.create_actors, lambda: service.deploy(application, port)):
            if not told():
                step()
    except BaseException:
        service.stop()
        raise
    return service


def _lock(data_dir: Path) -> IO[str]:
    data_dir.mkdir(parents=True, exist_ok=True)
    file = (data_dir / _LOCK_FILE).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        running = find(data_dir)
        where = f"at {running.url}" if running else "(still starting or stopping)"
        raise StateConflict(f"a service runs already on {data_dir} {where}") from None
    return file


@contextmanager
def stopped(data_dir: Path) -> Iterator[None]:
    """Keeps a service from starting on ``data_dir``. Raises ``StateConflict`` where one runs."""
    if find(data_dir) is not None:
        raise StateConflict(f"a service runs on {data_dir}; stop it first: muniment down")
    with _lock(data_dir):
        yield


def _free_port(host: str, port: int) -> int:
    """``port``, or a free one for 0. Raises ``ConfigurationError`` where it is taken or the host is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}; choose another --port") from None
        return int(probe.getsockname()[1])


def _reachable(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _ray_folder(data_dir: Path) -> Path:
    """A folder of this user's for one data directory, with a name so short that Ray's sockets fit in 107 characters."""
    digest = hashlib.sha256(f"{os.getuid()} {data_dir.resolve()}".encode()).hexdigest()[:16]
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) <= _LONGEST_TEMPORARY_FOLDER else "/tmp") / f"muniment-{digest}"


def start_ray(settings: Settings) -> str:
    """A local Ray of this process, or a connection to the cluster the settings name. Returns the address."""
    if settings.ray.address is not None:
        return connect_ray(settings.ray.address, settings.ray.namespace)
    ray = _import_ray()
    failure: Exception | None = None
    for _ in range(_RAY_ATTEMPTS):
        folder = _ray_folder(settings.data_dir)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            context = ray.init(
                address="local",
                num_cpus=settings.ray.num_cpus,
                object_store_memory=settings.ray.object_store_bytes,
                include_dashboard=False,
                namespace=settings.ray.namespace,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=str(folder),
            )
            return str(context.address_info["address"])
        except Exception as error:  # noqa: BLE001 - Ray has no class for a node that is not up within its 30 s
            failure = error
            ray.shutdown()
            processes.sweep(settings.data_dir)
    raise Unavailable(f"Ray does not start: {failure}") from failure


def _import_ray() -> Any:
    """Ray, with the authentication that the environment asks for now: Ray reads it once, when it is imported."""
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    logging.getLogger("ray").setLevel(logging.ERROR)

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    return ray


def connect_ray(address: str, namespace: str) -> str:
    """Makes this process a driver of the cluster at ``address`` (``auto``: the one it is in). Returns its address.

    Raises ``StateConflict`` where the process is a driver of another cluster, ``Unavailable`` where there is none.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        try:
            ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Unavailable(f"no Ray cluster at {address}: {error}", retry_after_seconds=1) from None
    connected = str(ray.get_runtime_context().gcs_address)
    if address not in ("auto", connected):
        raise StateConflict(f"this process belongs to the Ray cluster at {connected}, not to {address}")
    return connected


def _settings_key(namespace: str) -> bytes:
    return f"muniment:settings:{namespace}".encode()


def make_actors(settings: Settings) -> None:
    """The tables, and the named Ray actors in the Ray cluster of this process; those that are there stay, unless they
    were made with other settings."""
    from muniment.cluster.actor_classes import create_actors
    from muniment.cluster.services import check_model, prepare_stores

    prepare_stores(settings, settings.store.upgrade_at_start)
    check_model(settings)
    if publish_settings(settings):
        _end_actors(settings)
    create_actors(settings)


def publish_settings(settings: Settings) -> bool:
    """Leaves the settings in the Ray cluster, for clients inside it. Who can read them there can do anything there.

    Returns whether there were others.
    """
    from ray.experimental import internal_kv

    values = settings.model_dump(mode="json")
    if settings.store.url is not None:
        values["store"]["url"] = settings.store.url.get_secret_value()
    key, packed = _settings_key(settings.ray.namespace), json.dumps(values).encode()
    before = internal_kv._internal_kv_get(key)
    internal_kv._internal_kv_put(key, packed)
    return before not in (None, packed)


def published_settings(namespace: str) -> Settings:
    """The settings of the service in the Ray cluster of this process. Raises ``Unavailable`` where there is none."""
    from ray.experimental import internal_kv

    values = internal_kv._internal_kv_get(_settings_key(namespace))
    if values is None:
        raise Unavailable(f"no service runs in namespace {namespace!r} of this Ray cluster", retry_after_seconds=1)
    return Settings(**json.loads(values))


def attach(data_dir: Path) -> Running:
    """Makes this process a driver of the running service's Ray. Raises ``Unavailable`` where none runs."""
    running = find(data_dir)
    if running is None:
        raise Unavailable(f"no service runs on {data_dir}; start one with: muniment up", retry_after_seconds=1)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(data_dir.resolve() / TOKEN_FILE)
    connect_ray(running.ray_address, running.namespace)
    return running


def _vital_processes(data_dir: Path) -> list[int]:
    """The processes of the local Ray that it cannot lose: its head's store and its node manager."""
    names = {"gcs_server", "raylet"}
    return [pid for pid in processes.processes_of(data_dir) if Path(f"/proc/{pid}/comm").read_text().strip() in names]


def _deploy(settings: Settings, application: Any, port: int) -> None:
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": settings.http.host, "port": port},
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    try:
        serve.run(
            application,
            name=SERVE_APP,
            route_prefix="/",
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )
    except (RuntimeError, TimeoutError) as error:
        deployments = serve.status().applications[SERVE_APP].deployments.values()
        reasons = [line for deployment in deployments for line in deployment.message.splitlines() if line.strip()]
        reason = reasons[-1] if reasons else error
        raise Unavailable(f"the HTTP application does not start: {reason}") from error


def _withdraw(settings: Settings) -> None:
    """Takes the application and the named Ray actors out of a Ray cluster that goes on without them."""
    from ray import serve

    serve.delete(SERVE_APP)
    _end_actors(settings)


def _end_actors(settings: Settings) -> None:
    """Ends the named Ray actors, and waits until their names are free; for what they write it is as when one dies.

    Raises ``Unavailable`` where one does not end.
    """
    import ray

    for _ in range(_ENDING_LOOKS):
        left = [a for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == settings.ray.namespace]
        if not left:
            return
        for entry in left:
            with suppress(ValueError):  # gone meanwhile
                ray.kill(ray.get_actor(entry["name"], namespace=entry["namespace"]))
        time.sleep(_ENDING_PAUSE_SECONDS)
    raise Unavailable(f"a Ray actor does not end: {left[0]['name']}", retry_after_seconds=5)


def _write_state(settings: Settings, url: str, ray_address: str) -> None:
    running = Running(pid=os.getpid(), url=url, ray_address=ray_address, namespace=settings.ray.namespace)
    path = settings.data_dir / STATE_FILE
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(running)))
    draft.replace(path)


def stop(data_dir: Path) -> bool:
    """Stops the service of ``data_dir`` from outside and clears what a crash left. Whether there was anything."""
    data_dir = data_dir.resolve()
    running = find(data_dir)
    if running is not None:
        processes.send(running.pid, signal.SIGTERM)
        processes.wait_for_end([running.pid], _STOP_SECONDS)
    left = processes.sweep(data_dir)
    (data_dir / STATE_FILE).unlink(missing_ok=True)
    shutil.rmtree(_ray_folder(data_dir), ignore_errors=True)
    return running is not None or left > 0
