"""The OpenAPI document: made from the table of endpoints, with the limits that are in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from muniment.cluster.endpoints import ENDPOINTS, Endpoint
from muniment.cluster.settings import LimitSettings

_REFERENCE = "#/components/schemas/{model}"
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457.",
    "required": ["type", "title", "status", "detail", "code", "errors", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable, snake_case."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
}
_HEADERS = [
    {"name": name, "in": "header", "schema": {"type": "string"}, "description": description}
    for name, description in (
        ("X-User", "Who acts, where the key is bound to nobody."),
        ("X-Company", "What an operator key acts for."),
    )
]


def operation(endpoint: Endpoint, limits: LimitSettings) -> dict[str, Any]:
    """What the document says about an endpoint besides its route and summary."""
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in endpoint.parameters
    ]
    found: dict[str, Any] = {
        "parameters": parameters + _HEADERS,
        "security": [{"key": []}],
        "description": f"Needs the permission `{endpoint.permission.value}`.",
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": {"type": "object"}}}},
            "default": {
                "description": "A problem.",
                "content": {"application/problem+json": {"schema": {"$ref": _REFERENCE.format(model="Problem")}}},
            },
        },
    }
    if endpoint.model is not None and endpoint.has_body:
        found["requestBody"] = {
            "required": not endpoint.optional_body,
            "x-max-bytes": limits.body_bytes,
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=endpoint.model.__name__)}}},
        }
    elif endpoint.model is not None:
        found["parameters"] = [*found["parameters"], *_query_parameters(endpoint.model)]
    return found


def _query_parameters(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    for name, shown in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": shown}


def document(app: FastAPI, limits: LimitSettings) -> dict[str, Any]:
    """The whole document."""
    models = dict.fromkeys(endpoint.model for endpoint in ENDPOINTS if endpoint.model is not None)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    made["info"]["x-limits"] = limits.model_dump()
    made["components"] = {
        "schemas": {**schemas["$defs"], "Problem": _PROBLEM},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    _apply(made, limits)
    return made


def _apply(node: Any, limits: LimitSettings) -> None:
    """Puts the limits in force where a schema names its setting."""
    if isinstance(node, list):
        for item in node:
            _apply(item, limits)
    elif isinstance(node, dict):
        setting = node.get("x-limit")
        if isinstance(setting, str):
            name = next(name for name in ("maxLength", "maxItems", "x-max-bytes") if name in node)
            node[name] = getattr(limits, setting)
        for item in node.values():
            _apply(item, limits)
