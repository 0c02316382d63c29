"""Reading a request's JSON: bounded in bytes and nesting, strict about what JSON is (RFC 8259, I-JSON RFC 7493)."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

from starlette.requests import Request

from muniment.cluster.schemas.base import MAX_DEPTH
from muniment.policies.errors import MalformedBody, TooLarge

#: A whole string, or the rest of a body that leaves one open; possessive, so that no input takes more than one pass.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_STEP = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
#: No integer that is accepted anywhere is longer; a longer one is cut here, and what is left is still too large.
_MAX_DIGITS = 25


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body. Raises ``TooLarge`` as soon as it is known to be, which may be before it has arrived."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit_bytes} bytes", limit_bytes=limit_bytes)


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. NaN and infinities are read, for the field's own error to name them.

    Raises ``MalformedBody``: not JSON, not UTF-8, nested deeper than 64, or a name twice in one object.
    """
    _check_depth(body)
    try:
        return json.loads(body.decode(), object_pairs_hook=_object, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None


def _check_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    brackets = _BRACKET.findall(_STRING.sub(b"", body))
    for depth in accumulate(map(_STEP.__getitem__, brackets)):
        if depth > MAX_DEPTH:
            raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise MalformedBody(f"the body has the name {twice[:100]!a} twice in one object")
    return found


def _integer(digits: str) -> int:
    return int(digits[:_MAX_DIGITS])
