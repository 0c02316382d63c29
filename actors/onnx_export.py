"""Makes the ONNX Runtime builds of the bi-encoder and the cross-encoder: traced with torch from the same weights, int8.

Weights are 8 bits with a scale per output; activations are 8 bits with a scale per *token*, taken while it runs. The
usual scale per batch would make a text's vector depend on what shares its batch, and costs accuracy (cosine to float32
down to 0.97, here above 0.99). This module imports torch; ``python -m muniment.actors.onnx_export`` runs it apart.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from muniment.actors.cross_encoder import load_cross_encoder
from muniment.actors.embedding import SentenceTransformerEmbedder
from muniment.actors.onnx_models import MODEL_FILE, TOKENIZER_FILE, Kind, finish, parts_missing, probes
from muniment.policies.errors import ModelUnavailable

_OPSET: Final = 17
_LEAST_QUANTISED: Final = 65_536
"""Smaller tables stay as they are."""


class _EmbedderGraph(torch.nn.Module):
    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self._model = model
        self._names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        features = self._model(dict(zip(self._names, inputs, strict=True)))
        return torch.nn.functional.normalize(features["sentence_embedding"], p=2, dim=1)


class _RerankerGraph(torch.nn.Module):
    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self._model = model
        self._names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model(**dict(zip(self._names, inputs, strict=True))).logits
        return logits[:, 0]


def export(kind: Kind, spec: str, cache: Path) -> Path:
    """Builds the model that ``spec`` names and puts it into ``cache``, complete or not at all; the folder it is in.

    Raises ``ModelUnavailable`` where the model is not there, cannot be traced, or answers otherwise than torch does.
    """
    texts, pairs = probes()
    if kind == "embedder":
        loaded = SentenceTransformerEmbedder(spec, "cpu")
        model: Any = loaded.model
        name, dimension = loaded.name, loaded.dimension
        expected = loaded.embed(texts)
        transformer, limit = model[0].model, int(model.max_seq_length)
        prompt = model.prompts.get(model.default_prompt_name or "", "")
    else:
        model = load_cross_encoder(spec, "cpu")
        name, dimension, prompt = spec, 0, ""
        expected = np.asarray(model.predict(pairs), np.float32)
        transformer, limit = model[0].model, int(model.max_length or 512)
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        raise ModelUnavailable(f"the model {spec!r} has no tokenizer that runs without torch", model=spec)
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in model.tokenizer.model_input_names]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as draft:
        folder = Path(draft) / "model"
        folder.mkdir()
        graph = _EmbedderGraph(model, names) if kind == "embedder" else _RerankerGraph(transformer, names)
        _trace(graph, transformer, names, folder / MODEL_FILE, spec)
        _quantise(folder / MODEL_FILE)
        (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
        about = {
            "kind": kind,
            "name": name,
            "dimension": dimension,
            "inputs": names,
            "max_tokens": limit,
            "prompt": prompt,
            "pad_id": int(model.tokenizer.pad_token_id or 0),
            "expected": np.asarray(expected, np.float64).round(6).tolist(),
        }
        return finish(folder, kind, spec, cache, about)


def _trace(graph: torch.nn.Module, transformer: Any, names: list[str], file: Path, spec: str) -> None:
    transformer.set_attn_implementation("eager")
    example = {"input_ids": torch.full((2, 7), 3), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    example["token_type_ids"] = torch.zeros(2, 7, dtype=torch.long)
    axes: dict[str, dict[int, str]] = {name: {0: "batch", 1: "tokens"} for name in names}
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph.eval(),
                tuple(example[name] for name in names),
                str(file),
                dynamo=False,
                input_names=names,
                output_names=["output"],
                dynamic_axes={**axes, "output": {0: "batch"}},
                opset_version=_OPSET,
            )
    except Exception as error:
        raise ModelUnavailable(f"the model {spec!r} cannot be exported: {error}", model=spec) from error


def _quantise(file: Path) -> None:
    """Makes every product with a weight matrix, and every table of embeddings, one of 8-bit integers."""
    model = onnx.load(str(file))
    graph = model.graph
    weights = {one.name: one for one in graph.initializer}
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(127.0, np.float32), "q_most"),
            numpy_helper.from_array(np.array(1e-12, np.float32), "q_least"),
            # Casting cuts off, so this rounds, and moves -127…127 to 1…255.
            numpy_helper.from_array(np.array(128.5, np.float32), "q_middle"),
            numpy_helper.from_array(np.array(128, np.uint8), "q_zero"),
        ]
    )
    nodes: list[Any] = []
    rows: dict[str, str] = {}
    used: set[str] = set()
    for node in graph.node:
        matrix = weights.get(node.input[1 if node.op_type == "MatMul" else 0]) if node.input else None
        large = matrix is not None and len(matrix.dims) == 2 and int(np.prod(matrix.dims)) >= _LEAST_QUANTISED
        if not large or node.op_type not in ("MatMul", "Gather"):
            nodes.append(node)
            used.update(node.input)
        elif node.op_type == "MatMul":
            nodes += _product(node, _stored(graph, matrix, axis=0), rows)
        else:
            nodes += _lookup(node, _stored(graph, matrix, axis=1))
    del graph.node[:]
    graph.node.extend(nodes)
    for name, weight in weights.items():
        if f"{name}_int8" in {one.name for one in graph.initializer} and name not in used:
            graph.initializer.remove(weight)
    onnx.save(model, str(file))


def _stored(graph: Any, matrix: Any, axis: int) -> str:
    """Adds the matrix as int8 and its scales along ``axis``, once; the name they start with."""
    name = str(matrix.name)
    if f"{name}_int8" not in {one.name for one in graph.initializer}:
        values = numpy_helper.to_array(matrix).astype(np.float32)
        scale = np.maximum(np.abs(values).max(axis, keepdims=True) / 127, np.float32(1e-12))
        whole = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
        kept = scale[0] if axis == 0 else scale
        graph.initializer.append(numpy_helper.from_array(whole, f"{name}_int8"))
        graph.initializer.append(numpy_helper.from_array(kept.astype(np.float32), f"{name}_scale"))
    return name


def _product(node: Any, weight: str, rows: dict[str, str]) -> list[Any]:
    source, result, made = node.input[0], node.output[0], []
    row = rows.get(source)
    if row is None:  # query, key and value share one input
        row = rows[source] = f"{source}_row"
        made = [
            helper.make_node("Abs", [source], [f"{row}_abs"]),
            helper.make_node("ReduceMax", [f"{row}_abs"], [f"{row}_max"], keepdims=1, axes=[-1]),
            helper.make_node("Max", [f"{row}_max", "q_least"], [f"{row}_top"]),
            helper.make_node("Div", [f"{row}_top", "q_most"], [f"{row}_scale"]),
            helper.make_node("Div", [source, f"{row}_scale"], [f"{row}_real"]),
            helper.make_node("Add", [f"{row}_real", "q_middle"], [f"{row}_moved"]),
            helper.make_node("Cast", [f"{row}_moved"], [f"{row}_int8"], to=TensorProto.UINT8),
        ]
    # One scale after the other: their product would be taken for a scale per batch, and fused into one.
    return [
        *made,
        helper.make_node("MatMulInteger", [f"{row}_int8", f"{weight}_int8", "q_zero"], [f"{result}_int32"]),
        helper.make_node("Cast", [f"{result}_int32"], [f"{result}_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{result}_float", f"{weight}_scale"], [f"{result}_scaled"]),
        helper.make_node("Mul", [f"{result}_scaled", f"{row}_scale"], [result]),
    ]


def _lookup(node: Any, table: str) -> list[Any]:
    places, result = node.input[1], node.output[0]
    return [
        helper.make_node("Gather", [f"{table}_int8", places], [f"{result}_int8"]),
        helper.make_node("Cast", [f"{result}_int8"], [f"{result}_float"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{table}_scale", places], [f"{result}_scale"]),
        helper.make_node("Mul", [f"{result}_float", f"{result}_scale"], [result]),
    ]


def main() -> None:
    """Exports what is missing: ``CACHE KIND=SPEC…``. Prints one line of JSON: the folder of each, or the error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    cache, *asked = sys.argv[1:]
    try:
        for kind, spec in parts_missing(Path(cache), [(a.split("=", 1)[0], a.split("=", 1)[1]) for a in asked]):
            export(kind, spec, Path(cache))
    except ModelUnavailable as error:
        print(json.dumps({"error": error.detail}))
        sys.exit(1)


if __name__ == "__main__":
    main()
