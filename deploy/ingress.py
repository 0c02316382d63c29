"""The HTTP API as a Ray Serve application: one deployment, whose replicas call the Ray actors directly."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from ray import serve

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.keys import ensure_operator_key
from muniment.cluster.launcher import OPERATOR_KEY_FILE
from muniment.cluster.ray_metrics import scrape, set_up
from muniment.cluster.settings import Settings
from muniment.deploy.app import create_app

#: Requests of one replica under way at a time: most wait for somebody else, and each part has a bound of its own.
MAX_ONGOING_REQUESTS = 10_000


def build(settings: Settings) -> serve.Application:
    """The application for ``serve.run``, made in the process that starts the service and holds its data directory."""
    store = ControlStore(settings.store_url("control"))
    store.adopt_operator_key(ensure_operator_key(settings.data_dir / OPERATOR_KEY_FILE))
    store.close()

    def replica() -> FastAPI:
        from muniment.cluster.services import open_services

        meter = set_up(settings, "api")
        services = open_services(settings)
        services.scale.scaler.start()
        return create_app(services, settings, names_requests=False, observe=meter, scrape=scrape)

    application: serve.Application = deployment(replica).bind()
    return application


def deployment(make_app: Any) -> Any:
    """The deployment whose replicas each serve what ``make_app`` makes there."""

    @serve.deployment(name="api", max_ongoing_requests=MAX_ONGOING_REQUESTS, ray_actor_options={"num_cpus": 0})
    @serve.ingress(make_app)
    class Api:
        pass

    return Api
