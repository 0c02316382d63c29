"""The HTTP API as a Ray Serve application: one deployment, whose replicas call the Ray actors directly."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from ray import serve

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.keys import OPERATOR_ID, ensure_operator_key, key_id_of
from muniment.cluster.launcher import OPERATOR_KEY_FILE, make_actors
from muniment.cluster.ray_metrics import scrape, set_up
from muniment.cluster.settings import Settings, load
from muniment.deploy.app import create_app
from muniment.policies.errors import ConfigurationError

#: Requests of one replica under way at a time: most wait for somebody else, and each part has a bound of its own.
MAX_ONGOING_REQUESTS = 10_000


def application(args: dict[str, Any]) -> serve.Application:
    """What ``serve.yaml`` names: tables, Ray actors and application, in the Ray cluster that runs this.

    ``args``: settings, nested as in ``muniment.yaml``; they win over variables. Ray actors that were made with other
    settings are replaced.
    """
    settings = load(**{**args, "ray": {"address": "auto", **args.get("ray", {})}})
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    make_actors(settings)
    return build(settings)


def build(settings: Settings) -> serve.Application:
    """The application for ``serve.run``, made in the process that starts the service and holds its data directory."""
    store = ControlStore(settings.store_url("control"))
    store.adopt_operator_key(operator_key(settings))
    store.close()

    def replica() -> FastAPI:
        from muniment.cluster.services import open_services

        meter = set_up(settings, "api")
        services = open_services(settings, meter)
        services.scale.scaler.start()
        return create_app(services, settings, names_requests=False, observe=meter, scrape=scrape)

    bound: serve.Application = deployment(replica, settings.ray.placement()).bind()
    return bound


def operator_key(settings: Settings) -> str:
    """The operator's key that the settings give, else the one in the data directory, which is made where there is none.

    Raises ``ConfigurationError`` where it is no such key.
    """
    given = settings.auth.operator_key
    if given is None:
        return ensure_operator_key(settings.data_dir / OPERATOR_KEY_FILE)
    key = given.get_secret_value().strip()
    if key_id_of(key) != OPERATOR_ID:
        raise ConfigurationError("auth.operator_key is no operator's key; make one with: muniment key operator")
    return key


def deployment(make_app: Any, resources: dict[str, float]) -> Any:
    """The deployment whose replicas each serve what ``make_app`` makes there, on nodes that have ``resources``."""
    options = {"num_cpus": 0, "resources": resources}

    @serve.deployment(name="api", max_ongoing_requests=MAX_ONGOING_REQUESTS, ray_actor_options=options)
    @serve.ingress(make_app)
    class Api:
        pass

    return Api
