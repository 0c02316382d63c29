"""Spans of the verbs, which carry the ids of the decisions they made (OpenTelemetry), and what a log line names.

Without an SDK, or in a process that nobody configured, the API's spans are no-ops. ``configure`` sends them to an OTLP
receiver; a process that has a tracer provider of its own keeps it. A call to another process carries the span it is
made in (W3C Trace Context) and the id of the HTTP request it is made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from muniment.cluster.settings import TelemetrySettings
from muniment.policies.errors import ConfigurationError, MunimentError

#: The attribute that names decisions, and how many of a batch's are named.
DECISIONS = "muniment.decision_ids"
_MAX_NAMED = 128
_ERROR = "muniment.error"
#: The id of the HTTP request that is being answered here, and how a call carries it.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_REQUEST_ID = "request-id"
Carrier = Mapping[str, str]

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
def span(name: str, carriers: Sequence[Carrier] | None = None) -> Iterator[Span]:
    """A span for as long as the context lasts, below the current one.

    Of a call from another process: below the one that the first of ``carriers`` names, linked to those of the others,
    which share the call. An error of ours marks it with its code; one that nobody foresaw is recorded.
    """
    above, links = None, []
    if carriers is not None:
        above = propagate.extract(carriers[0] if carriers else {})
        links = [Link(context) for other in carriers[1:] if (context := _context(other)).is_valid]
    token = None if not carriers else request_id.set(carriers[0].get(_REQUEST_ID))
    try:
        with _tracer.start_as_current_span(
            f"muniment.{name}",
            context=above,
            kind=SpanKind.INTERNAL if carriers is None else SpanKind.SERVER,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as current:
            try:
                yield current
            except MunimentError as error:
                _mark(current, error)
                raise
            except BaseException as error:
                # Its message may quote a user; the log has it.
                current.set_attribute(_ERROR, type(error).__name__)
                current.set_status(Status(StatusCode.ERROR))
                raise
    finally:
        if token is not None:
            request_id.reset(token)


def _context(carrier: Carrier) -> trace.SpanContext:
    return trace.get_current_span(propagate.extract(carrier)).get_span_context()


def _mark(current: Span, error: MunimentError) -> None:
    current.set_attribute(_ERROR, error.code)
    current.set_status(Status(StatusCode.ERROR, error.code))


def record(name: str, carrier: Carrier, started: int, outcome: Any) -> None:
    """A span that has ended, of one part of a batch. ``started``: in nanoseconds since the epoch.

    ``outcome``: the error it ended with, or an answer that may have a ``decision_id`` and a ``verdict``.
    """
    done = _tracer.start_span(
        f"muniment.{name}", context=propagate.extract(carrier), kind=SpanKind.SERVER, start_time=started
    )
    if isinstance(outcome, MunimentError):
        _mark(done, outcome)
    else:
        decision, verdict = getattr(outcome, "decision_id", None), getattr(outcome, "verdict", None)
        if decision is not None:
            done.set_attribute(DECISIONS, [decision])
        if verdict is not None:
            done.set_attribute("muniment.verdict", verdict)
    done.end()


def from_outside(headers: Mapping[str, str], asked: str) -> list[Carrier]:
    """The carriers of an HTTP request with these headers (names in lower case), to which we gave an id.

    Where the HTTP server has a span of its own for the request, that one is the caller's.
    """
    above = span_carrier() or {name: headers[name] for name in propagate.get_global_textmap().fields if name in headers}
    return [above | {_REQUEST_ID: asked}]


def carrier() -> dict[str, str]:
    """The current span and request, for a call to another process; empty where there is neither."""
    found = span_carrier()
    asked = request_id.get()
    if asked is not None:
        found[_REQUEST_ID] = asked
    return found


def span_carrier() -> dict[str, str]:
    """The current span alone; empty where there is none."""
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
