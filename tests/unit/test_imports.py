"""Imports run one way, Ray stays in its two layers, and what must be light is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("policies", "actors", "cluster", "deploy")
MODULES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
#: What a pure decision may not use: the world, its clock, its chance, its log.
IMPURE = {"ray", "asyncio", "io", "logging", "os", "pathlib", "secrets", "socket", "sqlalchemy"}


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that the file imports, at its top or inside a function, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer"
            yield node.module or "", node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    above = {f"muniment.{name}" for name in LAYERS[LAYERS.index(layer) + 1 :]}
    wrong = [(name, line) for name, line in imported(path) if ".".join(name.split(".")[:2]) in above]
    assert not wrong


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] in ("policies", "actors")], ids=lambda p: p.stem
)
def test_no_ray_below_cluster(path: Path) -> None:
    assert not [(name, line) for name, line in imported(path) if name.split(".")[0] == "ray"]


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] == "policies"], ids=lambda p: p.stem
)
def test_policies_are_pure(path: Path) -> None:
    assert not [(name, line) for name, line in imported(path) if name.split(".")[0] in IMPURE]


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] == "policies"], ids=lambda p: p.stem
)
def test_chance_comes_into_policies_as_an_argument(path: Path) -> None:
    tree = ast.parse(path.read_text())
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            assert node.attr == "Random", f"line {node.lineno}: random.{node.attr}"
            assert id(node) not in called, f"line {node.lineno}: a generator is made here"
        assert not (isinstance(node, ast.ImportFrom) and node.module == "random")


@pytest.mark.parametrize("statement", ["import muniment.cluster", "from muniment.cluster import Client, AsyncClient"])
def test_the_client_imports_neither_ray_nor_torch_nor_the_store(statement: str) -> None:
    heavy = "import sys; print([n for n in ('ray', 'torch', 'faiss', 'sqlalchemy') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; {heavy}"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_shards_process_imports_no_more_than_it_needs() -> None:
    """A restart waits for its imports: no HTTP client, no models, no Faiss yet, nothing of the API or the ledger."""
    code = "import sys, muniment.cluster.actor_classes; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    libraries = ("httpx", "torch", "onnxruntime", "alembic", "fastapi", "faiss", "ray.serve")
    ours = ("muniment.cluster.endpoints", "muniment.cluster.ledger", "muniment.actors.dedupe_ledger")
    assert not {name for name in loaded if name.startswith(libraries + ours)}
