"""The models as ONNX Runtime runs them: int8, without torch, from a cache that is checked before it is used.

A build lies in a folder named after all that it was made from: the source's files and the versions of the programs that
made it, so that a change of either makes another one. Its manifest has the digest of each file, and what torch answered
to a few probes: a build that answers otherwise on this machine's processor is not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from muniment.actors.cross_encoder import ADAPTER_DIR, BUNDLED, base_directory
from muniment.actors.embedding import Vectors
from muniment.policies.errors import ModelUnavailable

Kind = Literal["embedder", "reranker"]
Floats = npt.NDArray[np.float32]

MODEL_FILE: Final = "model.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
LEAST_COSINE: Final = 0.97
"""Of a probe's vector to torch's; a word alone has about 0.98, a sentence 0.997."""
LEAST_CORRELATION: Final = 0.98
"""Of the probes' logits with torch's (Pearson)."""
_MANIFEST: Final = "manifest.json"
_RECIPE: Final = 1
"""Changes with ``onnx_export``."""
_MAKERS: Final = ("torch", "transformers", "sentence-transformers", "peft", "tokenizers", "onnx", "onnxruntime")
_TOKENS: Final = 512
"""Padded tokens of one run: more would leave the processor's cache, and gain nothing."""
_EXPORT_SECONDS: Final = 900


class OnnxEmbedder:
    """A bi-encoder build; see ``embedding.Embedder``. A text's vector does not depend on its batch."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._run = _Session(folder, threads)
        about = self._run.about
        self.name: str = about["name"]
        self.dimension: int = about["dimension"]
        self._prompt: str = about["prompt"]
        found = self.embed(probes()[0])
        least = float((found * np.array(about["expected"])).sum(1).min())
        if not least >= LEAST_COSINE:
            raise ModelUnavailable(f"the build of {self.name} answers otherwise here: cosine {least:.3f} to torch")

    def embed(self, texts: Sequence[str]) -> Vectors:
        """``(n, dimension)`` float32, L2-normalised. Text beyond the model's window is not seen."""
        rows = self._run([self._prompt + text for text in texts])
        return np.stack(rows) if rows else np.empty((0, self.dimension), np.float32)


class OnnxReranker:
    """A cross-encoder build; see ``model_worker.Reranker``."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._run = _Session(folder, threads)
        found = np.corrcoef(self.predict(probes()[1]), np.array(self._run.about["expected"]))[0, 1]
        if not found >= LEAST_CORRELATION:
            raise ModelUnavailable(f"the build of the reranker answers otherwise here: correlation {found:.3f}")

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """``(n,)`` logits, higher is more relevant, without bounds."""
        return np.array(self._run(list(pairs)), np.float32)


class _Session:
    """Tokenizes, sorts by length, runs what has about one length together; rows come back in their order."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self.about = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(self.about["max_tokens"], strategy="longest_first")

    def __call__(self, texts: Sequence[Any]) -> list[Any]:
        encoded = self._tokenizer.encode_batch(list(texts))
        rows: list[Any] = [None] * len(encoded)
        for places in _runs([len(one.ids) for one in encoded]):
            width = max(len(encoded[i].ids) for i in places)
            inputs = {name: np.zeros((len(places), width), np.int64) for name in self.about["inputs"]}
            inputs["input_ids"] += self.about["pad_id"]
            for row, i in enumerate(places):
                length = len(encoded[i].ids)
                inputs["input_ids"][row, :length] = encoded[i].ids
                inputs["attention_mask"][row, :length] = 1
                if "token_type_ids" in inputs:
                    inputs["token_type_ids"][row, :length] = encoded[i].type_ids
            for i, answer in zip(places, self._session.run(None, inputs)[0], strict=True):
                rows[i] = answer
        return rows


def _runs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Positions by length, in groups that hold at most ``_TOKENS`` with their padding."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[i] > _TOKENS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def probes() -> tuple[list[str], list[tuple[str, str]]]:
    """Texts and pairs by which a build is compared with torch."""
    texts = [
        "ok",
        "The delivery address of Acme is now 4 Mill Lane.",
        "ciod: failed to read message prefix on control stream (CioStream socket to 172.16.96.116:33569",
        "Sofia: My bakery opened its doors last Saturday! I still can't believe how many people came, and that the "
        "bread was gone by noon. Marta says that she will help me on Fridays from now on.",
        "A fatura de março ainda não foi paga; o prazo termina na sexta-feira.",
        "def add(a, b): return a + b",
    ]
    asked = ("Where does Acme want its parcels?", "When did Sofia open her bakery?", "Which invoice is unpaid?")
    return texts, [(query, text) for query in asked for text in texts]


# --- the cache


def build(kind: Kind, spec: str, cache_folder: Path) -> Path:
    """The folder of the checked build of the model that ``spec`` names (``bundled`` or a local folder); makes it first
    where it is missing or damaged, in a process of its own, so that this one need not load torch.

    Raises ``ModelUnavailable`` where it cannot be made.
    """
    return builds([(kind, spec)], cache_folder)[0]


def builds(wanted: Sequence[tuple[Kind, str]], cache_folder: Path) -> list[Path]:
    """Like ``build``, for several at the price of one start of torch."""
    if parts_missing(cache_folder, wanted):
        try:
            cache_folder.mkdir(parents=True, exist_ok=True)
            with _alone(cache_folder):
                if parts_missing(cache_folder, wanted):
                    _export_apart(cache_folder, wanted)
        except OSError as error:
            raise ModelUnavailable(f"the models cannot be exported to {cache_folder}: {error}") from error
    return [_folder(kind, spec, cache_folder) for kind, spec in wanted]


def parts_missing(cache_folder: Path, wanted: Sequence[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """Those of ``wanted`` that have no whole build in the cache. Raises ``ModelUnavailable`` for a source not there."""
    return [(kind, spec) for kind, spec in wanted if not _whole(_folder(kind, spec, cache_folder))]


def finish(folder: Path, kind: Kind, spec: str, cache_folder: Path, about: dict[str, Any]) -> Path:
    """Writes the manifest, tries the build out, and moves it to its place; the place."""
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps({**about, "files": files}), encoding="utf-8")
    opened: Callable[[Path], object] = OnnxEmbedder if kind == "embedder" else OnnxReranker
    opened(folder)
    place = _folder(kind, spec, cache_folder)
    if place.exists():
        shutil.rmtree(place)
    folder.rename(place)
    return place


def _export_apart(cache_folder: Path, wanted: Sequence[tuple[Kind, str]]) -> None:
    command = [sys.executable, "-m", "muniment.actors.onnx_export", str(cache_folder)]
    asked = [f"{kind}={spec}" for kind, spec in wanted]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [*command, *asked], capture_output=True, text=True, env=environment, timeout=_EXPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailable("exporting the models took too long") from error
    if done.returncode:
        last = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise ModelUnavailable(f"the models cannot be exported: {last}")


def _whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(_sha256(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _folder(kind: Kind, spec: str, cache_folder: Path) -> Path:
    return cache_folder / f"{kind}-{_key(kind, spec)}"


@cache
def _key(kind: Kind, spec: str) -> str:
    """Names a build by all that goes into it."""
    versions = [f"{name} {metadata.version(name)}" for name in _MAKERS]
    parts = [kind, str(_RECIPE), *versions]
    for source in _sources(kind, spec):
        parts += [f"{path.relative_to(source)} {_sha256(path)}" for path in _files(source)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _sources(kind: Kind, spec: str) -> list[Path]:
    base = base_directory()
    if spec == BUNDLED:
        return [base] if kind == "embedder" else [base, ADAPTER_DIR]
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise ModelUnavailable(f"{spec!r} is no local folder: a model of a hub runs with torch", model=spec)
    return [folder, base] if (folder / "adapter_config.json").is_file() else [folder]


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file() and path.suffix not in (".md", ".onnx"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes builds; the others wait, and find them made."""
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
