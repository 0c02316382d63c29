"""How a client's request reaches the services: the transport's interface, HTTP, and repetition until a deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from muniment.cluster.verbs import Request
from muniment.policies.errors import DeadlineExceeded, MunimentError, Unavailable

Answer = dict[str, Any]
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
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
    """HTTP over pooled connections."""

    def __init__(self, address: str, headers: Mapping[str, bytes], connections: int) -> None:
        self._address = address.rstrip("/")
        self._http = httpx.AsyncClient(
            headers=[(name.encode(), value) for name, value in headers.items()],
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def send(self, request: Request, seconds_left: float) -> Answer:
        """See ``Transport``."""
        try:
            response = await self._http.request(
                request.method,
                self._address + request.path,
                json=request.body,
                params=request.query,
                timeout=max(seconds_left, 0.001),
            )
        except httpx.ConnectError as error:
            raise NotSent(f"cannot reach {self._address}: {error}") from error
        except httpx.TimeoutException as error:
            raise DeadlineExceeded(f"no answer from {self._address} in time") from error
        except httpx.TransportError as error:
            raise Unavailable(f"{self._address} broke off: {error}") from error
        if response.is_success:
            answer: Answer = response.json()
            return answer
        raise error_of(response)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()


def error_of(response: httpx.Response) -> MunimentError:
    """The error of an answer: ``application/problem+json``, or what a proxy said in its place (500: the process that
    was to answer died)."""
    try:
        problem = response.json()
        code, detail = problem["code"], problem.get("detail", "")
    except (ValueError, KeyError, TypeError):
        kind = Unavailable if response.status_code in (429, 500, 502, 503, 504) else MunimentError
        return kind(f"HTTP status {response.status_code}: {response.text[:200]}")
    fields = {name: value for name, value in problem.items() if name not in _PROBLEM_MEMBERS and value != []}
    if response.headers.get("retry-after", "").isdigit():
        fields.setdefault("retry_after_seconds", int(response.headers["retry-after"]))
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
