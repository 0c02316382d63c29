"""What the load is put on: a service that was started for it, through HTTP or through handles, or one that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from muniment.actors.metrics import unobserved
from muniment.cluster import AsyncClient, launcher
from muniment.cluster.endpoints import BY_VERB, dispatch
from muniment.cluster.services import open_services
from muniment.cluster.transport import Answer, error_of
from muniment.cluster.verbs import Request, Verbs
from muniment.policies.errors import DeadlineExceeded, Unavailable

TOOL = "send_mail"


class Requests(Verbs[Request]):
    """The client's verbs as requests that are not sent yet: a load test repeats nothing."""

    def _send(self, request: Request) -> Request:
        return request


class Target(Protocol):
    """Carries a tenant's request there and its answer back, once."""

    async def send(self, tenant: int, request: Request, seconds_left: float) -> Answer:
        """The answer. Raises the error that was answered, ``DeadlineExceeded`` where there was none."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds."""
        ...


class OverHttp:
    """HTTP/1.1 over pooled connections, one pool for all tenants."""

    def __init__(self, url: str, keys: Sequence[str], connections: int = 2_000) -> None:
        self._url = url
        self._headers = [{"Authorization": f"Bearer {key}"} for key in keys]
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections))

    async def send(self, tenant: int, request: Request, seconds_left: float) -> Answer:
        """See ``Target``."""
        try:
            async with self._http.request(
                request.method,
                self._url + request.path,
                headers=self._headers[tenant],
                json=request.body,
                params=request.query,
                timeout=aiohttp.ClientTimeout(total=seconds_left),
            ) as response:
                content = await response.read()
                if response.status == HTTPStatus.OK:
                    answer: Answer = json.loads(content)
                    return answer
                raise error_of(response.status, response.headers.get("Retry-After", ""), content)
        except TimeoutError as error:
            raise DeadlineExceeded("no answer in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"the connection broke: {type(error).__name__}") from error

    async def close(self) -> None:
        """See ``Target``."""
        await self._http.close()


class ThroughHandles:
    """The services in this process, as the client has them that was given a Ray address, one set for all tenants."""

    def __init__(self, data_dir: Path, keys: Sequence[str]) -> None:
        self._settings = launcher.published_settings(launcher.attach(data_dir).namespace)
        self._services = open_services(self._settings, unobserved)
        self._keys = keys

    async def send(self, tenant: int, request: Request, seconds_left: float) -> Answer:
        """See ``Target``."""
        try:
            async with asyncio.timeout(seconds_left):
                caller = await self._services.admin.authenticate(f"Bearer {self._keys[tenant]}", None, None)
                endpoint = BY_VERB[request.verb]
                data = request.body if endpoint.has_body else request.query
                return await dispatch(self._services, caller, endpoint, request.named, data, self._settings.limits)
        except TimeoutError as error:
            raise DeadlineExceeded("no answer in time") from error

    async def close(self) -> None:
        """See ``Target``."""
        self._services.admin.close()


@dataclass(frozen=True, slots=True)
class Tenants:
    """Companies made for a run, and a key of each that may do everything there."""

    names: Sequence[str]
    keys: Sequence[str]


async def make_tenants(url: str, operator_key: str, count: int, prefix: str = "load") -> Tenants:
    """Creates companies with a governed tool each."""
    names = [f"{prefix}-{number}" for number in range(count)]
    keys = []
    async with AsyncClient(url, key=operator_key, timeout_seconds=120) as operator:
        for name in names:
            await operator.create_company(name)
            keys.append((await operator.create_key(("admin", "owner"), company=name))["key"])
    for key in keys:
        async with AsyncClient(url, key=key, timeout_seconds=120) as admin:
            await admin.classify(TOOL, key_paths=["/n"], window={"seconds": 86_400})
    return Tenants(names, keys)


def degraded(answer: Mapping[str, Any]) -> str | None:
    """What a recall's answer says it lacks."""
    found: str | None = answer.get("route", {}).get("degraded")
    return found
