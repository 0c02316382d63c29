"""Spans of the verbs, which carry the ids of the decisions they made (OpenTelemetry).

Without an SDK, or in a process that nobody configured, the API's spans are no-ops. ``configure`` sends them to an OTLP
receiver; a process that has a tracer provider of its own keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from muniment.cluster.settings import TelemetrySettings
from muniment.policies.errors import ConfigurationError, MunimentError

#: The attribute that names decisions, and how many of a batch's are named.
DECISIONS = "muniment.decision_ids"
_MAX_NAMED = 128

_tracer = trace.get_tracer("muniment")


def configure(settings: TelemetrySettings, part: str) -> None:
    """Sends this process's spans to ``settings.endpoint``, where one is set. ``part``: what runs here, as "shard-0".

    Raises ``ConfigurationError`` where the exporter is not installed.
    """
    if settings.endpoint is None or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError(
            "telemetry.endpoint is set and the exporter is not there: pip install 'muniment[telemetry]'"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "muniment", "service.instance.id": part}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
    trace.set_tracer_provider(provider)


@contextmanager
def span(name: str, carrier: Mapping[str, str] | None = None) -> Iterator[Span]:
    """A span for as long as the context lasts, below the one in ``carrier`` (W3C Trace Context) or the current one.

    An error of ours marks it with its code; one that nobody foresaw is recorded.
    """
    kind = SpanKind.INTERNAL if carrier is None else SpanKind.SERVER
    above = None if carrier is None else propagate.extract(carrier)
    with _tracer.start_as_current_span(
        f"muniment.{name}", context=above, kind=kind, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except MunimentError as error:
            current.set_attribute("muniment.error", error.code)
            current.set_status(Status(StatusCode.ERROR, error.code))
            raise
        except BaseException as error:
            current.record_exception(error)
            current.set_status(Status(StatusCode.ERROR))
            raise


def carrier() -> dict[str, str]:
    """The current span for a call to another process; empty where there is none."""
    found: dict[str, str] = {}
    propagate.inject(found)
    return found


def name_decisions(current: Span, answer: Mapping[str, Any]) -> None:
    """Puts the ids of an answer's decisions on the span."""
    if not current.is_recording():
        return
    parts = [answer, *answer.get("results", ())]
    ids = [part["decision_id"] for part in parts if part.get("decision_id") is not None]
    if ids:
        current.set_attribute(DECISIONS, ids[:_MAX_NAMED])
