"""What a running service tells of itself: traces through every process, metrics that move, logs with request ids."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from muniment.cluster import launcher
from muniment.cluster.metrics import METRICS
from muniment.cluster.naming import PREFIX
from tests.live import Service, start_service

SECONDS_TO_WAIT = 90
#: What a client's own trace is called here (W3C Trace Context).
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@dataclass
class Receiver:
    """A small OTLP receiver: remembers the spans that come."""

    spans: list[Any] = field(default_factory=list)
    parts: dict[bytes, str] = field(default_factory=dict)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for of_process in request.resource_spans:
            told = {a.key: a.value.string_value for a in of_process.resource.attributes}
            for scope in of_process.scope_spans:
                self.spans += scope.spans
                self.parts |= {span.span_id: told["service.instance.id"] for span in scope.spans}

    def trace(self, trace_id: bytes) -> list[Any]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[Receiver, str]]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield received, f"http://127.0.0.1:{server.server_port}/v1/traces"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def watched(receiver: tuple[Receiver, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that sends spans to the receiver and logs as JSON, also what is of no concern."""
    data_dir = tmp_path_factory.mktemp("watched").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUNIMENT_TELEMETRY__ENDPOINT", receiver[1])
        patch.setenv("MUNIMENT_TELEMETRY__LOG_FORMAT", "json")
        patch.setenv("MUNIMENT_TELEMETRY__LOG_LEVEL", "INFO")
        patch.setenv("MUNIMENT_TELEMETRY__METRICS_KEY", "for-prometheus")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        patch.setenv("RAY_metrics_report_interval_ms", "1000")
        try:
            yield start_service(data_dir)
        finally:
            launcher.stop(data_dir)


def until(found: Callable[[], Any], what: str) -> Any:
    """What ``found`` returns as soon as it is true."""
    tick = threading.Event()
    for _ in range(SECONDS_TO_WAIT * 10):
        result = found()
        if result:
            return result
        tick.wait(0.1)
    raise AssertionError(f"it did not come: {what}")


def attributes(span: Any) -> dict[str, Any]:
    return {
        a.key: a.value.string_value or [v.string_value for v in a.value.array_value.values] for a in span.attributes
    }


def post(service: Service, key: str, path: str, body: Any, trace: str, parent: str = PARENT) -> httpx.Response:
    headers = {
        "Authorization": f"Bearer {key}",
        "traceparent": f"00-{trace}-{parent}-01",
        "X-Request-Id": f"request-{trace[:4]}",
    }
    answer = httpx.post(service.url + path, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def tree(receiver: Receiver, trace: str, wanted: set[str]) -> dict[str, tuple[str, str, Any]]:
    """The spans of a trace, once all that are wanted have come: by name the part, the parent's name, the span."""

    def names() -> bool:
        return wanted <= {span.name for span in receiver.trace(bytes.fromhex(trace))}

    until(names, f"{wanted} of {[s.name for s in receiver.trace(bytes.fromhex(trace))]}")
    spans = receiver.trace(bytes.fromhex(trace))
    by_id = {span.span_id: span for span in spans}

    def above(span: Any) -> str:
        """The nearest span above that is one of ours: the HTTP server may have some between."""
        if span.parent_span_id == bytes.fromhex(PARENT):
            return "the client"
        parent = by_id[span.parent_span_id]
        return parent.name if parent.name.startswith("muniment.") else above(parent)

    ours = [span for span in spans if span.name.startswith("muniment.")]
    return {span.name: (receiver.parts[span.span_id], above(span), span) for span in ours}


def test_a_recall_is_one_trace_from_the_client_through_every_ray_actor(
    watched: Service, receiver: tuple[Receiver, str]
) -> None:
    key = watched.key("acme", "agent")
    facts = [{"text": f"Aurora pays bill {n}", "source": {"kind": "unattributed"}} for n in range(3)]
    post(watched, key, "/v1/memories", {"facts": facts}, "aa" * 16)
    post(watched, key, "/v1/recall", {"query": "who pays?"}, TRACE)
    found = tree(
        receiver[0],
        TRACE,
        {"muniment.http", "muniment.recall", "muniment.shard.recall"}
        | {"muniment.worker.embed", "muniment.worker.rerank"},
    )
    assert {name: (part, above) for name, (part, above, _) in found.items()} == {
        "muniment.http": ("api", "the client"),
        "muniment.recall": ("api", "muniment.http"),
        "muniment.worker.embed": ("worker-0", "muniment.recall"),
        "muniment.shard.recall": ("shard-0", "muniment.recall"),
        "muniment.worker.rerank": ("worker-0", "muniment.recall"),
    }
    http = attributes(found["muniment.http"][2])
    assert (http["http.route"], http["muniment.request_id"]) == ("/v1/recall", "request-0af7")


def test_an_effects_spans_name_its_decision(watched: Service, receiver: tuple[Receiver, str]) -> None:
    curator, agent = watched.key("acme", "curator"), watched.key("acme", "agent")
    with watched.client(curator) as client:
        client.classify("mail", key_paths=["/to"], window={"seconds": 60})
    proposal = {"area": "a", "agent": "b", "tool": "mail", "arguments": {"to": "x"}, "run_id": "r", "step_id": "1"}
    proposed = post(watched, agent, "/v1/effects/propose", proposal, "bb" * 16).json()
    post(watched, agent, "/v1/effects/confirm", {"token": proposed["reservation"]["token"]}, "cc" * 16)
    found = tree(receiver[0], "bb" * 16, {"muniment.http", "muniment.propose", "muniment.ledger.propose"})
    assert {name: found[name][:2] for name in found} == {
        "muniment.http": ("api", "the client"),
        "muniment.propose": ("api", "muniment.http"),
        "muniment.ledger.propose": ("ledger-0", "muniment.propose"),
    }
    for name in ("muniment.propose", "muniment.ledger.propose"):
        assert attributes(found[name][2])["muniment.decision_ids"] == [proposed["decision_id"]]
    assert attributes(found["muniment.ledger.propose"][2])["muniment.verdict"] == "allow"
    confirmed = tree(receiver[0], "cc" * 16, {"muniment.confirm", "muniment.ledger.confirm"})
    assert confirmed["muniment.ledger.confirm"][:2] == ("ledger-0", "muniment.confirm")


def scraped(service: Service) -> dict[str, float]:
    """The values of all samples of ours, by name and our own labels; those of several processes are added."""
    answer = httpx.get(f"{service.url}/metrics", headers={"Authorization": "Bearer for-prometheus"}, timeout=30)
    assert answer.status_code == 200, answer.text
    values: dict[str, float] = {}
    ours = {label for metric in METRICS for label in metric.labels}
    for line in answer.text.splitlines():
        if line.startswith(f"{PREFIX}muniment_"):
            name, _, rest = line.partition("{")
            labels, _, value = rest.rpartition("} ")
            pairs = dict(pair.split("=", 1) for pair in labels.removesuffix(",").split(",") if "=" in pair)
            kept = ",".join(f"{label}={pairs[label]}" for label in sorted(ours & set(pairs)))
            values[f"{name}{{{kept}}}"] = values.get(f"{name}{{{kept}}}", 0.0) + float(value)
    return values


def test_the_numbers_move_with_what_is_done(watched: Service) -> None:
    key = watched.key("moved", "agent")
    before = scraped(watched)
    with watched.client(key) as client:
        client.remember([{"text": f"Ben sells tea number {n}", "source": {"kind": "unattributed"}} for n in range(7)])
        for _ in range(3):
            client.recall("what does Ben sell?")
        client.propose(area="a", agent="b", tool="unknown", arguments={}, run_id="r", step_id="1")
    added = {
        'ray_muniment_facts_told_total{outcome="stored"}': 7,
        'ray_muniment_http_request_seconds_count{method="POST",route="/v1/recall",status="2xx"}': 3,
        'ray_muniment_recall_stage_seconds_count{stage="embed"}': 3,
        'ray_muniment_recall_stage_seconds_count{stage="gate"}': 3,
        'ray_muniment_recall_stage_seconds_count{stage="rerank"}': 3,
        'ray_muniment_verdicts_total{reason="unclassified",verdict="allow"}': 1,
    }

    def moved() -> bool:
        now = scraped(watched)
        return all(now.get(name, 0) - before.get(name, 0) == more for name, more in added.items())

    until(moved, str(added))
    until(lambda: scraped(watched).get('ray_muniment_tier_facts{tier="L1"}', 0) >= 7, "the tiers' sizes")
    shown = {
        "ray_muniment_model_busy_seconds_total",
        "ray_muniment_commit_seconds_bucket",
        "ray_muniment_reservations_held",
        "ray_muniment_queue_length",
        "ray_muniment_conflicts_open",
    }
    until(lambda: shown <= {name.partition("{")[0] for name in scraped(watched)}, str(shown))
    now = scraped(watched)
    assert not any("moved" in name or "acme" in name for name in now)


def test_what_is_logged_is_json_and_names_the_request(watched: Service) -> None:
    key = watched.key("acme", "agent")
    post(watched, key, "/v1/recall", {"query": "anything"}, "dd" * 16)

    def line() -> Any:
        lines = (watched.data_dir / launcher.LOG_FILE).read_text().splitlines()
        told = [json.loads(text) for text in lines if text.startswith("{")]
        return next((one for one in told if one.get("request_id") == "request-dddd"), None)

    told = until(line, "the line of the request")
    assert (told["level"], told["part"], told["trace_id"]) == ("INFO", "api", "dd" * 16)
    assert told["message"].startswith("POST /v1/recall 200 ")


def test_nobody_reads_the_metrics_without_a_key(watched: Service) -> None:
    assert httpx.get(f"{watched.url}/metrics").status_code == 401
    headers = {"Authorization": f"Bearer {watched.key('acme', 'admin')}"}
    assert httpx.get(f"{watched.url}/metrics", headers=headers).status_code == 403
