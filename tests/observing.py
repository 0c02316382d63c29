"""An ``Observe`` that remembers what it was told, and holds everyone to the table of metrics."""

from __future__ import annotations

from muniment.actors.metrics import Levels, Metric
from muniment.cluster.metrics import METRICS


class Seen:
    """What was observed, by metric and labels."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}

    def __call__(self, metric: Metric, value: float, **labels: str) -> None:
        assert metric in METRICS
        assert set(labels) == set(metric.labels), metric.name
        for label, known in metric.labels.items():
            assert labels[label] in known, (metric.name, label, labels[label])
        self._values.setdefault((metric.name, frozenset(labels.items())), []).append(value)

    def of(self, metric: Metric, **labels: str) -> list[float]:
        """The values that were told with exactly these labels, in order."""
        return self._values.get((metric.name, frozenset(labels.items())), [])

    def read(self, levels: Levels) -> None:
        """Takes what gauges show."""
        for metric, value, labels in levels:
            self(metric, value, **labels)
