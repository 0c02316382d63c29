"""The HTTP API: a thin layer that reads a request, asks who it is from, dispatches it, and tells of errors.

Deny by default: whatever is neither listed in ``OPEN_PATHS`` nor in an open folder (the review desk's, and the files of
the page of documentation) needs a key, also what does not exist.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muniment.actors.metrics import REFUSED, Observe, unobserved
from muniment.cluster import schemas, telemetry
from muniment.cluster.endpoints import BY_VERB, ENDPOINTS, Answer, Endpoint, Services, dispatch
from muniment.cluster.metrics import HTTP_SECONDS, PLAIN_PATHS
from muniment.cluster.naming import OTHER
from muniment.cluster.schemas import parse_query
from muniment.cluster.schemas.base import MAX_DEPTH
from muniment.cluster.settings import LimitSettings, Settings
from muniment.deploy.admission import Admission
from muniment.deploy.bodies import parse_json, read_body
from muniment.deploy.console import console_router
from muniment.deploy.openapi import document, operation
from muniment.deploy.problems import problem_response, status_response
from muniment.policies.access import Permission, require
from muniment.policies.admission import AdmissionPolicy
from muniment.policies.errors import MunimentError

log = logging.getLogger(__name__)
T = TypeVar("T")

#: What answers without a key.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
#: What Prometheus reads: with the operator's key, or with ``telemetry.metrics_key``, which opens nothing else.
METRICS_PATH = "/metrics"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The review desk, which asks for a key on a page of its own.
DESK = "/console"
#: What the page of documentation loads: from here, because a browser beside the service may reach nothing else.
_DOCS_FILES = "/docs/files"
#: Names in a route that may themselves hold a slash (as %2F).
_SLASHED = ("tool", "user", "run_id", "company")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DESCRIPTION = f"""Memory for AI agents: bounded recall, no duplicate effects, no silent contradictions.

Bodies are JSON in UTF-8, whatever their content type says, nested at most {MAX_DEPTH} deep, and no object has a name
twice (400 otherwise). A field that is not known is an error. Times are RFC 3339 with an offset; text is kept in NFC.
Lists answer `next` where there is more: give it as `cursor`."""
#: Requests about effects under way in one process, those that wait for another run included.
MAX_EFFECTS = 4_096
#: The status that nobody reads: the client has gone (as nginx writes it into its log).
_CLIENT_GONE = 499


async def _nothing() -> str:
    return ""


def create_app(
    services: Services,
    settings: Settings,
    names_requests: bool = True,
    observe: Observe = unobserved,
    scrape: Callable[[], Awaitable[str]] = _nothing,
) -> FastAPI:
    """The application over ``services``; needs neither Ray nor a network.

    ``names_requests``: whether answers get an ``X-Request-Id``; Ray Serve gives them one by itself. ``scrape``: what
    the whole service has observed so far, as Prometheus text.
    """
    app = FastAPIOffline(
        redoc_url=None,
        static_url=_DOCS_FILES,
        title="Muniment",
        version="1",
        description=_DESCRIPTION,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # there are spans and metrics of our own
    )
    wait_seconds = settings.limits.wait_seconds
    others = Admission(AdmissionPolicy(wait_seconds=wait_seconds), on_refused=lambda: observe(REFUSED, 1, queue="http"))
    # Most of them wait for another run rather than for this service, which bounds the rest in the ledger's queue.
    effects = Admission(
        AdmissionPolicy(always=MAX_EFFECTS, wait_seconds=wait_seconds),
        on_refused=lambda: observe(REFUSED, 1, queue="http_effects"),
    )
    for endpoint in ENDPOINTS:
        admission = effects if endpoint.permission is Permission.EFFECTS else others
        app.add_api_route(
            _starlette_route(endpoint),
            _handler(endpoint, services, settings.limits, admission),
            methods=[endpoint.method],
            operation_id=endpoint.verb,
            summary=endpoint.summary,
            tags=[endpoint.route.split("/")[2]],
            openapi_extra=operation(endpoint, settings.limits),
        )
    app.include_router(console_router(services, settings.limits))
    _add_probes(app, services)
    _add_metrics(app, scrape)
    _add_problems(app)
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(document(app, settings.limits))
        return made

    app.openapi = openapi  # type: ignore[method-assign]
    key = settings.telemetry.metrics_key
    metrics_key = None if key is None else key.get_secret_value()
    app.add_middleware(Gate, services=services, names_requests=names_requests, observe=observe, metrics_key=metrics_key)
    return app


def _starlette_route(endpoint: Endpoint) -> str:
    route = endpoint.route
    for name in _SLASHED:
        route = route.replace(f"{{{name}}}", f"{{{name}:path}}")
    return route


def _handler(
    endpoint: Endpoint, services: Services, limits: LimitSettings, admission: Admission
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        named = [request.path_params[name] for name in endpoint.parameters]

        async def work() -> Response:
            with admission.admitted():
                data = await _data(request, endpoint, limits)
                answering = dispatch(services, request.state.principal, endpoint, named, data, limits)
                if endpoint.verb == "propose":  # the one verb that may wait long for somebody else
                    return await _unless_gone(request, answering)
                return json_response(await answering)

        return await _told(request, work)

    handle.__name__ = endpoint.verb
    return handle


class _NoQuery(schemas.Request):
    """The query of an endpoint that knows none."""


async def _data(request: Request, endpoint: Endpoint, limits: LimitSettings) -> Any:
    asked = endpoint.model if endpoint.model is not None and not endpoint.has_body else _NoQuery
    query = parse_query(asked, request.query_params.multi_items(), limits)
    if not endpoint.has_body:
        return query
    body = await read_body(request, limits.body_bytes)
    return {} if endpoint.optional_body and not body else parse_json(body)


def json_response(answer: Answer, status: int = 200) -> Response:
    """The answer as JSON in UTF-8."""
    content = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(content, status_code=status, media_type="application/json")


async def _unless_gone(request: Request, answering: Awaitable[Answer]) -> Response:
    """The answer, unless the client goes first: then the work is cancelled, and nobody waits in its place."""
    work = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return json_response(work.result())
        return Response(status_code=_CLIENT_GONE)
    finally:
        gone.cancel()
        work.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _told(request: Request, work: Callable[[], Awaitable[T]]) -> T | Response:
    """What ``work`` returns, or the problem that tells why there is none."""
    request_id = request.state.request_id
    try:
        return await work()
    except MunimentError as error:
        if error.code in ("internal", "corrupt_data", "configuration"):
            log.exception("request %s failed", request_id)
        return problem_response(error, request_id)
    except ClientDisconnect:
        return Response(status_code=_CLIENT_GONE)
    except Exception:
        log.exception("request %s failed in a way nobody foresaw", request_id)
        return problem_response(MunimentError("an internal error; the service's log has more"), request_id)


def _add_probes(app: FastAPI, services: Services) -> None:
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", summary="Whether this process answers", tags=["probes"])
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", summary="Whether every needed part answers", tags=["probes"])
    async def readyz(request: Request) -> Response:
        async def work() -> Response:
            parts = await services.records.ready()
            return json_response(parts, 503 if parts["down"] else 200)

        return await _told(request, work)


def _add_metrics(app: FastAPI, scrape: Callable[[], Awaitable[str]]) -> None:
    @app.get(METRICS_PATH, summary="Metrics of the whole service, as Prometheus text", tags=["probes"])
    async def metrics(request: Request) -> Response:
        async def work() -> Response:
            if request.state.principal is not None:
                require(request.state.principal, Permission.OPERATE)
            return Response(await scrape(), media_type=_METRICS_TYPE)

        return await _told(request, work)


def _add_problems(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return status_response(error.status_code, request.state.request_id, dict(error.headers or {}))


class Gate:
    """Before anything is routed: the request gets an id, and outside of ``OPEN_PATHS`` its caller is established.

    Around everything: its span, its time, its line in the log.
    """

    def __init__(
        self,
        app: ASGIApp,
        services: Services,
        names_requests: bool,
        observe: Observe,
        metrics_key: str | None,
    ) -> None:
        self.app = app
        self._services = services
        self._names_requests = names_requests
        self._observe = observe
        self._metrics_key = metrics_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        named = headers.get("x-request-id", "")
        request_id = named if _REQUEST_ID.fullmatch(named) else uuid.uuid4().hex
        request = Request(scope, receive)
        request.state.request_id = request_id
        request.state.principal = None
        status = _CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._names_requests:
                    MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        async def enter() -> None:
            authorization = headers.get("authorization")
            if not (_is_open(scope["path"]) or self._may_scrape(scope["path"], authorization)):
                request.state.principal = await self._services.admin.authenticate(
                    authorization, _text(headers, "x-user"), _text(headers, "x-company")
                )

        started = time.perf_counter()
        with telemetry.span("http", telemetry.from_outside(headers, request_id)) as span:
            try:
                refusal = await _told(request, enter)
                await (refusal or self.app)(scope, receive, send_with_id)
            finally:
                seconds, route = time.perf_counter() - started, _route(scope)
                method = scope["method"] if scope["method"] in HTTP_SECONDS.labels["method"] else OTHER
                if span.is_recording():
                    span.set_attributes(
                        {
                            "http.request.method": method,
                            "http.route": route,
                            "http.response.status_code": status,
                            "muniment.request_id": request_id,
                        }
                    )
                self._observe(HTTP_SECONDS, seconds, method=method, route=route, status=f"{status // 100}xx")
                log.info("%s %s %d %.1f ms", method, route, status, seconds * 1000)

    def _may_scrape(self, path: str, authorization: str | None) -> bool:
        """Whether this is a look at the metrics with the key for that."""
        if path != METRICS_PATH or self._metrics_key is None or authorization is None:
            return False
        return secrets.compare_digest(authorization.encode(), f"Bearer {self._metrics_key}".encode())


def _route(scope: Scope) -> str:
    """The route of a request, without what its path names; of what was refused before it was routed, ``other``."""
    endpoint = BY_VERB.get(getattr(scope.get("route"), "name", ""))
    if endpoint is not None:
        return endpoint.route
    path = str(scope["path"])
    if path == DESK or path.startswith(DESK + "/"):
        return DESK
    return path if path in PLAIN_PATHS else OTHER


def _is_open(path: str) -> bool:
    """Whether a path answers without a key; the review desk signs people in by itself."""
    return path in OPEN_PATHS or path == DESK or path.startswith((DESK + "/", _DOCS_FILES + "/"))


def _text(headers: Headers, name: str) -> str | None:
    """A header as UTF-8, which clients send whatever the standard says; else as Latin-1."""
    value = headers.get(name)
    if value is None:
        return None
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
