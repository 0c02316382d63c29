"""The metrics through Ray: each process reports to its node's metrics agent, which is scraped, or read by ``scrape``.

Ray adds labels of its own to ours: the process, the node, the session.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import ray
from ray.util import metrics as exporter

from muniment.actors.metrics import Kind, Levels, Metric
from muniment.cluster import logs, telemetry
from muniment.cluster.naming import LOG_FILE, OTHER, PART, PREFIX
from muniment.cluster.settings import Settings
from muniment.policies.errors import Unavailable

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
#: How often gauges are read at least.
_SAMPLE_SECONDS = 5.0
_SCRAPE_SECONDS = 5.0
#: Of all that Ray's agents export, what ``scrape`` hands on.
_HANDED_ON = (f"{PREFIX}muniment_", f"{PREFIX}serve_")


def sample_seconds() -> float:
    """How often gauges are read: at least once a report, as Ray's agent shows one for two reports and then drops it."""
    reported_ms: int = ray._config.metrics_report_interval_ms()
    return min(_SAMPLE_SECONDS, max(1_000, reported_ms) / 1_000)


def set_up(settings: Settings, part: str) -> RayMeter:
    """Has this process log and send its spans as the settings say; what takes its numbers. ``part``: as "shard-0".

    On a local Ray all log into one file beside the data; in a cluster on standard error, which Ray keeps.
    """
    telemetry.configure(settings.telemetry, part)
    logs.configure(settings.telemetry, part, settings.data_dir / LOG_FILE if settings.ray.address is None else None)
    return RayMeter(part)


class RayMeter:
    """The ``Observe`` of one process of a Ray cluster."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._made: dict[Metric, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, metric: Metric, value: float, **labels: str) -> None:
        """See ``Observe``. A label's value that is not in the table becomes ``other``."""
        made = self._made.get(metric) or self._make(metric)
        tags = {label: labels[label] if labels[label] in known else OTHER for label, known in metric.labels.items()}
        if metric.kind is Kind.COUNTER:
            if value > 0:
                made.inc(value, tags)
        elif metric.kind is Kind.GAUGE:
            made.set(value, tags)
        else:
            made.observe(value, tags)

    def _make(self, metric: Metric) -> Any:
        with self._lock:
            if metric not in self._made:
                keys = (PART, *metric.labels)
                if metric.kind is Kind.HISTOGRAM:
                    made: Any = exporter.Histogram(metric.name, metric.what, list(metric.buckets), keys)
                else:
                    kind = exporter.Counter if metric.kind is Kind.COUNTER else exporter.Gauge
                    made = kind(metric.name, metric.what, keys)
                made.set_default_tags({PART: self._part})
                self._made[metric] = made
        return self._made[metric]

    def watch(self, *reads: Callable[[], Levels]) -> None:
        """Shows from now on what gauges read, in a thread of its own; ``reads`` may block."""
        threading.Thread(target=self._watch, args=(reads,), name="gauges", daemon=True).start()

    def _watch(self, reads: Iterable[Callable[[], Levels]]) -> None:
        pause = threading.Event()
        while True:
            for read in reads:
                try:
                    for metric, value, labels in read():
                        self(metric, value, **labels)
                except Exception as error:  # noqa: BLE001 - the store is away, say: the others are shown all the same
                    log.warning("gauges of %s cannot be read: %s", self._part, type(error).__name__)
            pause.wait(sample_seconds())


async def scrape() -> str:
    """What all nodes' metrics agents export of this service and of Ray Serve, as Prometheus text.

    A node that does not answer is left out. Raises ``Unavailable`` where none does.
    """
    import httpx  # few who tell of themselves also read what all tell

    nodes = await asyncio.to_thread(ray.nodes)
    async with httpx.AsyncClient(timeout=_SCRAPE_SECONDS, trust_env=False) as http:
        answers = await asyncio.gather(*(_read(http, node) for node in nodes if node["Alive"]))
    texts = [text for text in answers if text is not None]
    if not texts:
        raise Unavailable("no metrics agent of Ray answers", retry_after_seconds=10)
    return merged(texts)


async def _read(http: httpx.AsyncClient, node: dict[str, Any]) -> str | None:
    import httpx

    host = node["NodeManagerAddress"]
    try:
        answer = await http.get(f"http://{f'[{host}]' if ':' in host else host}:{node['MetricsExportPort']}/metrics")
        answer.raise_for_status()
    except httpx.HTTPError as error:
        log.warning("the metrics agent of %s does not answer: %r", host, error)
        return None
    return answer.text


def merged(texts: Iterable[str]) -> str:
    """Several nodes' expositions as one: each family once, with the samples of all; only what is handed on."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for text in texts:
        for name, comments, samples in _families(text):
            if name.startswith(_HANDED_ON):
                kept = families.setdefault(name, (comments, []))
                kept[1].extend(samples)
    return "".join(f"{line}\n" for comments, samples in families.values() for line in (*comments, *samples))


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The families of an exposition: name, comment lines, sample lines."""
    name, comments, samples = "", [], []  # type: tuple[str, list[str], list[str]]
    for line in text.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            if line.split(" ", 3)[2] != name:
                yield name, comments, samples
                name, comments, samples = line.split(" ", 3)[2], [], []
            comments.append(line)
        elif line and not line.startswith("#"):
            samples.append(line)
    yield name, comments, samples
