"""Errors over HTTP: the one place where a code becomes a status (RFC 9457, ``application/problem+json``)."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from muniment.policies import errors
from muniment.policies.errors import MunimentError

MEDIA_TYPE = "application/problem+json"
#: The status of an error is that of its nearest class here.
STATUSES: dict[type[MunimentError], HTTPStatus] = {
    errors.MalformedBody: HTTPStatus.BAD_REQUEST,
    errors.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    errors.Forbidden: HTTPStatus.FORBIDDEN,
    errors.NotFound: HTTPStatus.NOT_FOUND,
    errors.StateConflict: HTTPStatus.CONFLICT,
    errors.TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.InvalidInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    errors.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Fenced: HTTPStatus.SERVICE_UNAVAILABLE,
    MunimentError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_RESERVED = ("type", "title", "status", "detail", "code", "errors", "request_id")


def status_of(error: MunimentError) -> HTTPStatus:
    """The HTTP status of an error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_response(error: MunimentError, request_id: str) -> Response:
    """The answer that tells of the error; what it carries in ``fields`` becomes members of the problem."""
    status = status_of(error)
    extensions = {name: value for name, value in error.fields.items() if name not in _RESERVED}
    headers = {}
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers["Retry-After"] = str(max(1, math.ceil(error.fields.get("retry_after_seconds") or 1)))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    found = error.fields.get("errors", [])
    return _problem(status, error.code, error.detail, request_id, found, extensions, headers)


def status_response(status: int, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a route or method that does not exist."""
    known = HTTPStatus(status)
    return _problem(known, known.name.lower(), known.description or known.phrase, request_id, [], {}, headers or {})


def _problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    request_id: str,
    found: list[dict[str, str]],
    extensions: dict[str, Any],
    headers: dict[str, str],
) -> Response:
    problem = {
        "type": f"urn:muniment:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": int(status),
        "detail": detail,
        "code": code,
        "errors": found,
        "request_id": request_id,
        **extensions,
    }
    content = json.dumps(problem, ensure_ascii=False, allow_nan=False).encode()
    return Response(content, status_code=int(status), media_type=MEDIA_TYPE, headers=headers)
