"""The int8 builds: what they may change, that they are whole, and that they are made again when they are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muniment.actors import onnx_models
from muniment.actors.cross_encoder import load_cross_encoder
from muniment.actors.embedding import SentenceTransformerEmbedder, bundled_model_path, space_name
from muniment.actors.onnx_models import MODEL_FILE, OnnxEmbedder, OnnxReranker, build, builds
from muniment.policies.errors import ModelUnavailable

LOG = Path(__file__).parents[1] / "data" / "BGL_2k.log"
TEXTS = [
    *(line.strip() for line in LOG.read_text(encoding="utf-8").splitlines()[::50]),
    "Thanks! I'll let you know. Have a good one!",
    "The delivery address of Acme is now 4 Mill Lane; until March it was 9 Quay Street.",
    "A fatura de março ainda não foi paga; o prazo termina na sexta-feira.",
    "Sofia: My bakery opened its doors last Saturday! " * 12,
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with builds of both bundled models."""
    folder = tmp_path_factory.mktemp("models")
    builds([("embedder", "bundled"), ("reranker", "bundled")], folder)
    return folder


def test_vectors_stay_close_to_those_of_torch_and_do_not_depend_on_their_batch(cache: Path) -> None:
    build_of = OnnxEmbedder(build("embedder", "bundled", cache))
    torch = SentenceTransformerEmbedder()
    assert (build_of.name, build_of.dimension) == (torch.name, torch.dimension), "they share a space, and its name"
    found, expected = build_of.embed(TEXTS), torch.embed(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert (found * expected).sum(1).min() >= 0.98
    alone = np.concatenate([build_of.embed([text]) for text in TEXTS])
    assert (found * alone).sum(1).min() >= 0.9999
    assert build_of.embed([]).shape == (0, 384)


def test_the_nearest_neighbours_stay(cache: Path) -> None:
    texts = list(dict.fromkeys(line.split(" ", 9)[-1] for line in LOG.read_text(encoding="utf-8").splitlines()))[:150]
    small, torch = OnnxEmbedder(build("embedder", "bundled", cache)).embed(texts), SentenceTransformerEmbedder()
    exact = torch.embed(texts)
    orders = [np.argsort(-(vectors @ vectors.T), axis=1)[:, :11] for vectors in (small, exact)]
    shared = [len(set(a) & set(b)) / 11 for a, b in zip(*orders, strict=True)]
    assert np.mean(shared) >= 0.9


def test_the_reranker_keeps_the_order_of_torch(cache: Path) -> None:
    queries = ("Which node lost its power supply?", "Where do parcels for Acme go?", "data TLB error interrupt")
    pairs = [(query, text) for query in queries for text in TEXTS]
    found = OnnxReranker(build("reranker", "bundled", cache)).predict(pairs).reshape(len(queries), -1)
    expected = np.asarray(load_cross_encoder("bundled", "cpu").predict(pairs)).reshape(len(queries), -1)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] >= 0.99
    for ours, theirs in zip(found, expected, strict=True):
        assert int(ours.argmax()) == int(theirs.argmax())
        ranks = [values.argsort().argsort() for values in (ours, theirs)]
        assert np.corrcoef(*ranks)[0, 1] >= 0.95


def test_a_build_is_used_again_and_a_damaged_one_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = onnx_models._export_apart
    monkeypatch.setattr(onnx_models, "_export_apart", lambda *given: (made.append(given), real(*given)))
    folder = build("reranker", "bundled", cache)
    assert not made
    file = folder / MODEL_FILE
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert build("reranker", "bundled", cache) == folder
    assert len(made) == 1
    OnnxReranker(folder)
    assert not [path for path in cache.iterdir() if path.name.startswith(".making")]


def test_other_versions_or_weights_make_another_build(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bundled_model_path(), tmp_path / "mine")
    theirs = onnx_models._folder("embedder", str(tmp_path / "mine"), cache)
    with (tmp_path / "mine" / "model.safetensors").open("ab") as weights:
        weights.write(b"\0")
    onnx_models._key.cache_clear()
    assert onnx_models._folder("embedder", str(tmp_path / "mine"), cache) != theirs
    ours = onnx_models._folder("embedder", "bundled", cache)
    monkeypatch.setattr(onnx_models.metadata, "version", lambda name: "0")
    onnx_models._key.cache_clear()
    assert onnx_models._folder("embedder", "bundled", cache) != ours
    onnx_models._key.cache_clear()


def test_a_build_that_answers_otherwise_on_this_machine_is_refused(cache: Path, tmp_path: Path) -> None:
    for kind, opened in (("embedder", OnnxEmbedder), ("reranker", OnnxReranker)):
        folder = tmp_path / kind
        shutil.copytree(build(kind, "bundled", cache), folder)  # type: ignore[arg-type]
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["expected"] = manifest["expected"][::-1]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ModelUnavailable, match="otherwise"):
            opened(folder)


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no local folder"):
        build("embedder", "some-hub/model", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelUnavailable, match="cannot be exported"):
        build("embedder", str(tmp_path / "empty"), tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match="cannot be exported"):
        build("embedder", "bundled", tmp_path / "file")


def test_a_local_model_is_named_after_its_weights_wherever_it_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place / "model").mkdir(parents=True)
        (tmp_path / place / "model" / "model.safetensors").write_bytes(b"weights")
    here, there = (space_name(str(tmp_path / place / "model")) for place in ("here", "there"))
    assert here == there
    assert here.startswith("model@")
    (tmp_path / "there" / "model" / "model.safetensors").write_bytes(b"others")
    assert space_name(str(tmp_path / "there" / "model")) != here
