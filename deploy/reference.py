"""The reference pages, made from the models and tables in code: ``deploy/SETTINGS.md`` and ``deploy/METRICS.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import getdoc
from itertools import groupby

from muniment.cluster import metrics
from muniment.cluster.settings import Settings, document

_SETTINGS = """# Settings

Made by `muniment settings --markdown`; do not edit.

They are read from `muniment.yaml` (or the file that `MUNIMENT_CONFIG_FILE` names), where a dot is a level, then from
the variables, then from flags; the last wins. A key that is not known is an error that names it.
"""
_METRICS = """# Metrics

Made by `muniment metrics --markdown`; do not edit.

`GET /metrics` of the service answers with those of all nodes, as Prometheus text, to the operator's key or to
`telemetry.metrics_key`. Ray's metrics agent of each node exports the same beside Ray's own (`MetricsExportPort` of
`ray.nodes()`; on Kubernetes the pods' port `metrics`) and asks for no key: keep that port inside. A value shows after
about 10 seconds (`RAY_metrics_report_interval_ms`).

Every metric also has the label `part` (the Ray actor that tells, or `api`) and Ray's own, of which `WorkerId` changes
when a process restarts. Ray counts each value of a histogram at the middle of its bucket in `_sum`: take quantiles of
`_bucket` and rates of `_count`, but no means.
"""


def settings_markdown() -> str:
    """All settings, a table a group."""
    parts = [_SETTINGS]
    for group, entries in groupby(document(), lambda entry: entry["key"].rpartition(".")[0]):
        if group:
            parts.append(f"## {group}\n\n{getdoc(Settings.model_fields[group].annotation)}\n")
        rows = [
            (
                f"`{entry['key']}`",
                f"`{entry['variable']}`",
                f"`{entry['type']}`",
                _code(entry["default"]),
                entry["description"],
            )
            for entry in entries
        ]
        parts.append(_table(("key", "variable", "type", "default", "what"), rows))
    return "\n".join(parts)


def metrics_markdown() -> str:
    """All metrics in one table."""
    rows = [
        (f"`{entry['name']}`", entry["type"], entry["unit"], entry["labels"], entry["what"])
        for entry in metrics.document()
    ]
    return f"{_METRICS}\n{_table(('name', 'type', 'unit', 'labels', 'what'), rows)}"


def _kind(text: str) -> str:
    return text.replace("pydantic.types.", "").replace(" | None", ", optional")


def _code(text: str) -> str:
    return f"`{text}`" if text not in ("", "None") else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
