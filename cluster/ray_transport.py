"""A client inside a Ray cluster: its requests go to the services of this process, which call the named Ray actors."""

from __future__ import annotations

import asyncio
from pathlib import Path

from muniment.cluster import launcher
from muniment.cluster.endpoints import BY_VERB, Services, dispatch
from muniment.cluster.naming import CLIENT
from muniment.cluster.ray_metrics import RayMeter
from muniment.cluster.services import open_services
from muniment.cluster.settings import Settings, load
from muniment.cluster.transport import Answer
from muniment.cluster.verbs import Request
from muniment.policies.errors import DeadlineExceeded

_PREFIX = "ray:"


class RayTransport:
    """Calls the services. The key is looked at in every request, as over HTTP."""

    def __init__(self, address: str | Path, key: str, user: str | None, company: str | None) -> None:
        self._caller = (f"Bearer {key}", user, company)
        self._settings = _join(address)
        self._services: Services = open_services(self._settings, RayMeter(CLIENT))

    async def send(self, request: Request, seconds_left: float) -> Answer:
        """See ``Transport``."""
        try:
            async with asyncio.timeout(seconds_left):
                principal = await self._services.admin.authenticate(*self._caller)
                endpoint = BY_VERB[request.verb]
                data = request.body if endpoint.has_body else request.query
                return await dispatch(self._services, principal, endpoint, request.named, data, self._settings.limits)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer to {request.verb} in time") from error

    async def close(self) -> None:
        """Closes the stores; the connection to Ray is the process's and stays."""
        self._services.admin.close()


def _join(address: str | Path) -> Settings:
    """Connects this process to Ray, and returns the settings that the service there was started with."""
    if isinstance(address, Path) or (not address.startswith(_PREFIX) and address != "auto"):
        return launcher.published_settings(launcher.attach(Path(address)).namespace)
    namespace = load().ray.namespace
    launcher.connect_ray(address.removeprefix(_PREFIX), namespace)
    return launcher.published_settings(namespace)
