"""All metrics of a service: those of the actors, and that of the HTTP API. ``ray_metrics`` exports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muniment.actors.metrics import METRICS as OF_ACTORS
from muniment.actors.metrics import SECONDS, Kind, Metric
from muniment.cluster.endpoints import ENDPOINTS
from muniment.cluster.naming import OTHER, PREFIX

#: Paths that are no verb of the API; ``/console`` stands for all of the review desk.
PLAIN_PATHS: Final = ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/console")

HTTP_SECONDS = Metric(
    name="muniment_http_request_seconds",
    kind=Kind.HISTOGRAM,
    what="How long HTTP requests take inside the service, by method, route and class of status.",
    labels={
        "method": ("GET", "POST", "PUT", "DELETE", "HEAD", OTHER),
        "route": (*sorted({endpoint.route for endpoint in ENDPOINTS}), *PLAIN_PATHS, OTHER),
        "status": ("2xx", "3xx", "4xx", "5xx"),
    },
    buckets=SECONDS,
)
METRICS: tuple[Metric, ...] = (HTTP_SECONDS, *OF_ACTORS)


def series(metric: Metric) -> tuple[str, ...]:
    """The names under which Prometheus has a metric."""
    name = PREFIX + metric.name
    return tuple(name + end for end in ("_bucket", "_sum", "_count")) if metric.kind is Kind.HISTOGRAM else (name,)


def document() -> Iterator[dict[str, str]]:
    """Every metric: ``name`` (as Prometheus has it), ``type``, ``unit``, ``labels`` with their values, ``what``."""
    for metric in METRICS:
        labels = [f"{label}: {', '.join(values)}" for label, values in metric.labels.items()]
        yield {
            "name": PREFIX + metric.name,
            "type": metric.kind.value,
            "unit": metric.unit,
            "labels": "; ".join(labels),
            "what": metric.what,
        }
