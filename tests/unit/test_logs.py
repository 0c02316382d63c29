"""A log line names its part, its request and its trace, as text or as one JSON object."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from muniment.cluster import logs, telemetry
from muniment.cluster.settings import TelemetrySettings

log = logging.getLogger("muniment.tests")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Where the lines are to go; afterwards the loggers are as before."""
    before = {name: logging.getLogger(name).__dict__.copy() for name in ("muniment", "opentelemetry")}
    for name in before:
        logging.getLogger(name).handlers = []
    yield tmp_path / "service.log"
    for name, fields in before.items():
        logger = logging.getLogger(name)
        for handler in logger.handlers:
            handler.close()
        logger.__dict__.update(fields)
        logger.manager._clear_cache()


def fail() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        log.exception("request %s failed", "r-1")


def test_json_lines_hold_everything_that_is_known(file: Path) -> None:
    logs.configure(TelemetrySettings(log_format="json", log_level="INFO"), "shard-3", file)
    with telemetry.span("shard.recall", [{"request-id": "r-1"}]):
        log.info("one %d\nline", 1)
    fail()
    log.debug("of no concern")
    first, second = map(json.loads, file.read_text().splitlines())
    assert {name: first[name] for name in ("level", "part", "request_id", "message", "logger")} == {
        "level": "INFO",
        "part": "shard-3",
        "request_id": "r-1",
        "message": "one 1\nline",
        "logger": "muniment.tests",
    }
    assert first["at"].endswith("+00:00")
    assert "request_id" not in second
    assert second["exception"].endswith("ZeroDivisionError: by zero")


def test_text_lines_say_the_same(file: Path) -> None:
    logs.configure(TelemetrySettings(), "ledger-0", file)
    log.info("of no concern")
    with telemetry.span("ledger.propose", [{"request-id": "r-2"}]):
        log.warning("the store is away")
    fail()
    lines = file.read_text().splitlines()
    assert lines[0].endswith(" WARNING ledger-0 muniment.tests request_id=r-2: the store is away")
    assert lines[1].endswith(" ERROR ledger-0 muniment.tests: request r-1 failed")
    assert lines[-1] == "ZeroDivisionError: by zero"


def test_spans_that_do_not_arrive_are_told_too(file: Path) -> None:
    logs.configure(TelemetrySettings(), "api", file)
    logging.getLogger("opentelemetry.exporter").warning("nobody answers")
    assert "nobody answers" in file.read_text()


def test_a_call_carries_the_request_it_is_made_for() -> None:
    assert telemetry.carrier() == {}
    with telemetry.span("http", telemetry.from_outside({}, "r-3")):
        assert telemetry.carrier() == {"request-id": "r-3"}
        with telemetry.span("recall"):
            assert telemetry.carrier()["request-id"] == "r-3"
    assert telemetry.request_id.get() is None
