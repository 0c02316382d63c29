"""The list of all benchmarks: each is there, and what it is run with is what it takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.bench.all import BENCHMARKS, command

OUT = Path("folder")
#: Programs that measure nothing themselves.
TRAINING = {"train_reranker", "reranker_material", "reranker_scores", "reranker_words"}
PARTS = {"all", "train_reranker"}


def test_every_benchmark_is_in_the_list() -> None:
    modules = Path(__file__).parents[1].joinpath("bench").glob("*.py")
    programs = {path.stem for path in modules if 'if __name__ == "__main__"' in path.read_text()}
    assert programs - PARTS == set(BENCHMARKS)


@pytest.mark.parametrize("size", ["smoke", "usual", "full"])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_has_only_options_that_it_knows(name: str, size: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.touch()
    line = command(name, size, OUT, {"locomo": data})
    assert line is not None
    found = importlib.util.find_spec(BENCHMARKS[name].module)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text() + Path(__file__).parents[1].joinpath("bench", "options.py").read_text()
    options = [word for word in line if word.startswith("--")]
    assert "--out" in options
    assert all(f'"{option}"' in source for option in options)


def test_a_benchmark_whose_data_is_not_here_is_left_out() -> None:
    assert command("locomo", "usual", OUT, {"locomo": None}) is None
    assert command("locomo", "usual", OUT, {"locomo": Path("nowhere.jsonl")}) is None
