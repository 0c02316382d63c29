"""What the review desk's forms send, read into requests of the API."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from muniment.deploy.bodies import read_body
from muniment.policies.errors import InvalidInput, MalformedBody

_MAX_FIELDS = 30
_ENCODING = "application/x-www-form-urlencoded"
#: One separator before exactly three digits: a fraction to some, thousands to others.
_AMBIGUOUS = re.compile(r"-?[1-9][0-9]{0,2}[.,][0-9]{3}")


async def read_form(request: Request, limit_bytes: int) -> dict[str, str]:
    """The fields of a form, trimmed, without empty ones. Raises ``TooLarge`` and ``MalformedBody``."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != _ENCODING:
        raise MalformedBody(f"a form is sent as {_ENCODING}")
    body = await read_body(request, limit_bytes)
    try:
        pairs = parse_qsl(body.decode("ascii"), max_num_fields=_MAX_FIELDS, strict_parsing=False, errors="strict")
    except ValueError as error:
        raise MalformedBody("the form cannot be read") from error
    return {name: value.strip() for name, value in pairs if value.strip()}


def resolution(form: dict[str, str]) -> dict[str, Any]:
    """The body of a resolution, as its form filled it in.

    ``type`` is the JSON type of the values in the slot: another value is read as that type. Dates are days in UTC.
    """
    decision = form.get("decision", "")
    body: dict[str, Any] = {"decision": decision}
    if "note" in form:
        body["note"] = form["note"]
    if decision == "new_value":
        if "value" in form:
            body["value"] = typed(form["value"], form.get("type", "text"))
        if "text" in form:
            body["text"] = form["text"]
    if decision == "both_valid":
        body["rescope"] = _rescope(form)
    return body


def typed(text: str, kind: str) -> Any:
    """The text as a value of the kind ``number``, ``boolean`` or ``text``. Raises ``InvalidInput``.

    A number is one of JSON's, or the same with a decimal comma. What may also mean thousands is no number: ``1,000``
    and ``1.000`` are refused, so that nobody's thousand becomes a one.
    """
    if kind == "boolean":
        if text not in ("true", "false"):
            raise InvalidInput.at("/value", "must be true or false")
        return text == "true"
    if kind != "number":
        return text
    if _AMBIGUOUS.fullmatch(text):
        whole = text.replace(",", ".")
        raise InvalidInput.at(
            "/value", f"may mean {whole.replace('.', '')} or {whole}0: write the one that is meant, without thousands"
        )
    try:
        number = json.loads(text.replace(",", "."))
    except ValueError:
        number = None
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise InvalidInput.at("/value", "must be a number")
    return number


def _rescope(form: dict[str, str]) -> dict[str, Any]:
    rescope: dict[str, Any] = {name: form[name] for name in ("subject", "field", "user") if name in form}
    if "user" in rescope:
        rescope["scope"] = "personal"
    for name in ("effective_at", "expires_at"):
        if name in form:
            rescope[name] = form[name] if "T" in form[name] else f"{form[name]}T00:00:00Z"
    return rescope
