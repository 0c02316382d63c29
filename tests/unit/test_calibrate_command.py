"""``muniment calibrate``: what it reads, and how it shows the trade."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from muniment.cluster import calibration
from muniment.cluster.calibration import Calibrated, read_pairs
from muniment.deploy.cli import app
from muniment.deploy.trade import table_of
from muniment.policies.calibration import TOLERANCE, Observation, choose, trade
from muniment.policies.errors import InvalidInput, Unavailable


def found(company: str = "acme") -> Calibrated:
    seen = [Observation(top_similarity=(n + 0.5) / 100, covered=True, in_l1=n > 63, in_both=True) for n in range(100)]
    points = trade(seen)
    return Calibrated(company, "a model", points, choose(points), 0.7, len(seen), 2)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def calibrate(*options: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", "--company", "$x_{a}$", *options])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of the service; it answers ``found``."""
    calls: list[tuple[Any, ...]] = []

    def answer(data_dir: Path, company: str, *rest: Any) -> Calibrated:
        calls.append((company, *rest[:4]))
        return found(company)

    monkeypatch.setattr(calibration, "calibrate", answer)
    return calls


def test_the_trade_as_a_table() -> None:
    out = io.StringIO()
    Console(file=out, width=160).print(table_of(found()))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["0.64", "64.0%", "1.000", "0.0000", "chosen"] in rows
    assert ["0.70", "70.0%", "1.000", "0.0000", "before"] in rows
    assert ["0.00", "0.0%", "0.360", "0.6400"] in rows


def test_the_trade_as_json_and_as_a_picture(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    done = calibrate("--json", "--dry-run", "--plot", str(tmp_path / "trade.png"))
    said = json.loads(done.stdout)
    assert (said["company"], said["stored"], said["chosen"]["threshold"], len(said["points"])) == (
        "$x_{a}$",
        False,
        0.64,
        101,
    )
    assert (tmp_path / "trade.png").read_bytes()[:4] == b"\x89PNG"
    assert asked == [("$x_{a}$", None, 1000, TOLERANCE, False)]


def test_labelled_queries_are_read_from_a_file(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        '{"query": "who?", "fact": "f_1"}\n\n{"query": "où?", "fact": "ici", "more": 1}\n', encoding="utf-8"
    )
    done = calibrate("--pairs", str(file))
    assert asked[0][1] == [("who?", "f_1"), ("où?", "ici")]
    assert "0.64 holds" in done.stdout
    assert "2 pairs were left out" in done.stdout


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", '{"query": "x"}', '{"query": "x", "fact": ""}', '{"query": 1, "fact": "x"}']
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"query": "who?", "fact": "f_1"}}\n{line}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        read_pairs(file)


def test_it_needs_a_running_service(tmp_path: Path) -> None:
    done = calibrate("--data-dir", str(tmp_path))
    assert isinstance(done.exception, Unavailable)
