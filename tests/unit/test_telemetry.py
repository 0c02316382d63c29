"""Spans carry the ids of decisions, hang together across processes, and cost nobody anything who wants none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from muniment.cluster import telemetry
from muniment.cluster.endpoints import BY_VERB, Services, dispatch
from muniment.policies.access import Principal, Role
from muniment.policies.errors import NotFound

TOLD = {"facts": [{"text": "x", "source": {"kind": "unattributed"}}]}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def remember(answer: Any) -> Any:
    async def body(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    memory = SimpleNamespace(remember=body)
    services = Services(memory=memory, conflicts=None, records=None, effects=None, admin=None, scale=None)
    principal = Principal(company="acme", key_id="k", roles=frozenset({Role.AGENT}), actor="key:k")
    return await dispatch(services, principal, BY_VERB["remember"], [], TOLD)


def test_a_verbs_span_names_the_decisions_it_made(exported: InMemorySpanExporter) -> None:
    answer = {"results": [{"id": "f_1", "decision_id": "d_1"}, {"id": "f_2"}, {"id": "f_3", "decision_id": "d_3"}]}
    assert asyncio.run(remember(answer)) == answer
    (span,) = exported.get_finished_spans()
    assert span.name == "muniment.remember"
    assert span.attributes is not None
    assert span.attributes[telemetry.DECISIONS] == ("d_1", "d_3")


def test_an_error_of_ours_marks_the_span_with_its_code(exported: InMemorySpanExporter) -> None:
    with pytest.raises(NotFound):
        asyncio.run(remember(NotFound("nothing")))
    (span,) = exported.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["muniment.error"] == "not_found"
    assert not span.status.is_ok


def test_the_message_of_an_error_nobody_foresaw_stays_out_of_the_span(exported: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="Dana"):
        asyncio.run(remember(ValueError("Dana moved to Lisbon")))
    (span,) = exported.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["muniment.error"] == "ValueError"
    assert not span.status.is_ok
    assert "Dana" not in span.to_json()


def test_a_call_to_another_process_hangs_below_its_caller(exported: InMemorySpanExporter) -> None:
    with telemetry.span("recall"):
        carried = telemetry.carrier()
    with telemetry.span("shard.recall", [carried]):
        pass
    caller, called = exported.get_finished_spans()
    assert called.parent is not None
    assert called.parent.span_id == caller.context.span_id
    assert called.context.trace_id == caller.context.trace_id


def test_without_a_provider_nothing_is_recorded_or_carried() -> None:
    with telemetry.span("recall") as span:
        assert not span.is_recording()
        assert telemetry.carrier() == {}
        telemetry.name_decisions(span, {"decision_id": "d"})
