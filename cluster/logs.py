"""What this program logs: a line each on standard error or in a file, as text or as JSON, with the request's id."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opentelemetry import trace

from muniment.cluster import telemetry
from muniment.cluster.settings import TelemetrySettings

_ROOT = "muniment"
#: Says that spans do not arrive.
_TRACING = "opentelemetry"


def configure(settings: TelemetrySettings, part: str, file: Path | None) -> None:
    """Has our loggers and that of tracing write to ``file``, or to standard error.

    ``part``: what runs here, as "shard-0".
    """
    handler = logging.StreamHandler() if file is None else logging.FileHandler(file, encoding="utf-8", delay=True)
    handler.setFormatter(_Json(part) if settings.log_format == "json" else _Text(part))
    for name, level in ((_ROOT, settings.log_level), (_TRACING, "WARNING")):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def _described(record: logging.LogRecord, part: str) -> dict[str, Any]:
    """What a line says of a record, beside its message."""
    context = trace.get_current_span().get_span_context()
    said = {
        "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname,
        "part": part,
        "logger": record.name,
        "request_id": telemetry.request_id.get(),
        "trace_id": trace.format_trace_id(context.trace_id) if context.is_valid else None,
    }
    return {name: value for name, value in said.items() if value is not None}


class _Json(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        said = _described(record, self._part) | {"message": record.getMessage()}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


class _Text(logging.Formatter):
    """Time, level, part, logger, request and message; a traceback below."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        said = _described(record, self._part)
        ids = "".join(f" {name}={said[name]}" for name in ("request_id", "trace_id") if name in said)
        line = f"{said['at']} {said['level']} {said['part']} {said['logger']}{ids}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
