"""Every query of the dashboard and of the alerts is over metrics that the code exports, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from muniment.cluster.metrics import METRICS, series
from muniment.cluster.naming import PART
from muniment.deploy import reference

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
EXPORTED = {name: metric for metric in METRICS for name in series(metric)}
#: Alternatives, as a label's regular expression has them here.
_WORDS = re.compile(r"[a-z0-9_]+(\|[a-z0-9_]+)*")


def queries() -> list[tuple[str, str]]:
    shown = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return shown + [(rule["alert"], rule["expr"]) for rule in ALERTS]


@pytest.mark.parametrize(("title", "query"), queries(), ids=lambda part: part[:40])
def test_a_query_is_over_what_is_exported(title: str, query: str) -> None:
    named = re.findall(r"\b(ray_\w+)(?:\{([^}]*)\})?", query)
    assert named, query
    known = {PART, "le"}
    for name, selector in named:
        assert name in EXPORTED, name
        labels = EXPORTED[name].labels
        known |= set(labels)
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"', selector):
            assert label in labels, (name, label)
            assert _WORDS.fullmatch(value), value
            assert operator == "=~" or "|" not in value
            assert set(value.split("|")) <= set(labels[label]), (name, label, value)
    for grouped in re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", query):
        labels_of_group = {label.strip() for label in grouped.split(",")}
        assert labels_of_group <= known, query
    assert ("_bucket" in query) == ("histogram_quantile" in query)


def test_every_metric_is_shown() -> None:
    shown = " ".join(query for _, query in queries())
    for metric in METRICS:
        assert any(re.search(rf"\b{name}\b", shown) for name in series(metric)), metric.name


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["description"]
        assert panel["datasource"]["uid"].strip("${}") in variables
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), (panel["title"], label)


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("arguments", [("check", "rules", "rules.yaml"), ("test", "rules", "rules.test.yaml")])
def test_promtool_takes_the_rules(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of Debian's package prometheus, is not installed here")
    done: Any = subprocess.run(
        [promtool, *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "made", "command"),
    [
        ("SETTINGS.md", reference.settings_markdown, "settings"),
        ("METRICS.md", reference.metrics_markdown, "metrics"),
    ],
)
def test_the_reference_pages_are_current(page: str, made: Any, command: str) -> None:
    written = (DEPLOY / page).read_text()
    assert written == made(), f"run: muniment {command} --markdown > deploy/{page}"
