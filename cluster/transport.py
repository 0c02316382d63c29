"""How a client's request reaches the services: the transport's interface, HTTP, and repetition until a deadline."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from muniment.cluster.verbs import Request
from muniment.policies.errors import DeadlineExceeded, MunimentError, Unavailable

Answer = dict[str, Any]
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
#: Not longer than servers leave an idle connection open.
_KEEPALIVE_SECONDS = 4.0
_JSON = {"Content-Type": "application/json"}
_PROBLEM_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "instance", "request_id"})


class NotSent(Unavailable):
    """The service could not be reached; the request was not sent."""

    code = "not_sent"


class Transport(Protocol):
    """Carries one request there and its answer back, once."""

    async def send(self, request: Request, seconds_left: float) -> Answer:
        """The answer. Raises the error that was answered; ``Unavailable`` or one below it where there was none."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds."""
        ...


class HttpTransport:
    """HTTP over pooled connections, by way of the proxy that the environment names, if any."""

    def __init__(self, address: str, headers: Mapping[str, str], connections: int) -> None:
        self._address = address.rstrip("/")
        self._headers = headers
        self._connections = connections
        self._proxy = _proxy_to(self._address)
        self._opened: aiohttp.ClientSession | None = None

    def _session(self) -> aiohttp.ClientSession:
        """Opened by the first request, because it belongs to the event loop that it is opened in."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=_KEEPALIVE_SECONDS),
                proxy=self._proxy,
            )
        return self._opened

    async def send(self, request: Request, seconds_left: float) -> Answer:
        """See ``Transport``."""
        try:
            async with self._session().request(
                request.method,
                url_of(self._address, request),
                data=_packed(request.body),
                headers=_JSON,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=max(seconds_left, 0.001)),
            ) as response:
                content = await response.read()
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer from {self._address} in time") from error
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"cannot reach {self._address}: {error}") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"{self._address} broke off: {error}") from error
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            answer: Answer = json.loads(content)
            return answer
        raise error_of(response.status, response.headers.get("Retry-After", ""), content)

    async def close(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            await self._opened.close()


def url_of(address: str, request: Request) -> URL:
    """Where a request goes, its names and query encoded once."""
    query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in request.query.items()}
    encoded = f"?{urlencode(query, doseq=True)}" if query else ""
    return URL(f"{address}{request.path}{encoded}", encoded=True)


def _packed(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _proxy_to(address: str) -> str | None:
    url = URL(address)
    return None if url.host is None or proxy_bypass(url.host) else getproxies().get(url.scheme)


def error_of(status: int, retry_after: str, content: bytes) -> MunimentError:
    """The error of an answer: ``application/problem+json``, or what a proxy said in its place (500: the process that
    was to answer died). ``retry_after``: the header, empty where there is none."""
    try:
        problem = json.loads(content)
        code, detail = problem["code"], problem.get("detail", "")
    except (ValueError, KeyError, TypeError):
        kind = Unavailable if status in (429, 500, 502, 503, 504) else MunimentError
        return kind(f"HTTP status {status}: {content[:200].decode(errors='replace')}")
    fields = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS and value != []}
    if retry_after.isdigit():
        fields.setdefault("retry_after_seconds", int(retry_after))
    return MunimentError.from_wire({"code": code, "detail": detail, "fields": fields})


async def send_until(transport: Transport, request: Request, timeout_seconds: float) -> Answer:
    """Sends ``request``, again where it failed retryably and may be repeated, until the deadline.

    Raises the last error. Pauses double up to a bound, with jitter, and are never shorter than the service asks.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await transport.send(request, deadline - time.monotonic())
        except MunimentError as error:
            if not error.retryable or not (request.repeatable or isinstance(error, NotSent)):
                raise
            wait = max(pause * random.uniform(0.5, 1.0), float(error.fields.get("retry_after_seconds") or 0))
            if time.monotonic() + wait >= deadline:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
