"""The bundled cross-encoder loads without a network and ranks plain pairs; what is not a reranker is refused."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muniment.actors import cross_encoder
from muniment.actors.cross_encoder import ADAPTER_DIR, ADAPTER_SHA256, BASE_NAME, base_directory, load_cross_encoder
from muniment.policies.errors import ModelUnavailable


@pytest.fixture(scope="module")
def bundled() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(socket.socket, "connect", _no_network)
        yield load_cross_encoder("bundled", "cpu")
    torch.set_num_threads(threads)


def _no_network(*_: object) -> None:
    raise AssertionError("the bundled model used the network")


@pytest.mark.parametrize(
    ("query", "answer", "others"),
    [
        (
            "Where does Marta work?",
            "Marta: I've been a nurse at the harbour hospital for two years.",
            ["Pedro: I've been a teacher in the village school for two years.", "Marta: Do you like your work?"],
        ),
        (
            "Who does not eat fish?",
            "Pedro does not eat fish.",
            ["Marta eats fish.", "Sofia eats fish every Friday."],
        ),
        (
            "What is the current delivery address of Acme?",
            "The delivery address of Acme is now 4 Mill Lane.",
            ["Until March the delivery address of Acme was 9 Quay Street.", "The tax number of Acme is now 512345678."],
        ),
        (
            "What happened on R17-M1-N0-C:J12-U11?",
            "ERROR R17-M1-N0-C:J12-U11: power supply lost",
            ["ERROR R71-M0-N0-C:J12-U11: power supply lost", "ERROR R17-M0-N4-C:J02-U01: power supply lost"],
        ),
        (
            "When did Sofia open her bakery?",
            "Sofia: My bakery opened its doors last Saturday!",
            ["Marta: A bakery? I'll come for bread.", "Sofia: I've always loved the smell of bread."],
        ),
    ],
)
def test_ranks_the_answer_first(bundled: Any, query: str, answer: str, others: list[str]) -> None:
    scores = bundled.predict([(query, text) for text in (answer, *others)])
    assert scores[0] > max(scores[1:]), scores


def test_scores_are_logits_of_one_scale(bundled: Any) -> None:
    pairs = [
        ("What is the tax number of Acme?", "The tax number of Acme is 512345678."),
        ("What is the tax number of Acme?", "It rained in Porto for a week."),
    ]
    together, alone = bundled.predict(pairs), [bundled.predict([pair])[0] for pair in pairs]
    assert together[0] > 0 > together[1]
    assert together[0] - together[1] > 1.0, "a sigmoid would keep them within 1"
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_weights_are_merged(bundled: Any) -> None:
    assert not [name for name, _ in bundled[0].model.named_parameters() if "lora" in name]
    assert all(parameter.dtype == torch.float32 for parameter in bundled[0].model.parameters())
    assert not bundled[0].model.training


def test_damaged_adapter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ADAPTER_DIR, tmp_path / "reranker")
    file = tmp_path / "reranker" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr(cross_encoder, "ADAPTER_DIR", tmp_path / "reranker")
    with pytest.raises(ModelUnavailable, match="damaged") as refused:
        load_cross_encoder("bundled", "cpu")
    assert refused.value.fields == {"model": "bundled"}
    file.unlink()
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        load_cross_encoder("bundled", "cpu")


def test_other_base_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_encoder, "BASE_SHA256", "0" * 64)
    with pytest.raises(ModelUnavailable, match="expected 000"):
        load_cross_encoder("bundled", "cpu")


def test_local_adapter_directory(bundled: Any, tmp_path: Path) -> None:
    shutil.copytree(ADAPTER_DIR, tmp_path / "mine")
    pair = [("Who has the keys?", "Marta has the keys.")]
    np.testing.assert_array_equal(
        load_cross_encoder(str(tmp_path / "mine"), "cpu").predict(pair), bundled.predict(pair)
    )
    (tmp_path / "mine" / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelUnavailable, match="does not load"):
        load_cross_encoder(str(tmp_path / "mine"), "cpu")


def test_what_is_no_reranker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="does not score pairs"):
        load_cross_encoder(str(base_directory()), "cpu")
    with pytest.raises(ModelUnavailable, match="no directory"):
        load_cross_encoder(str(tmp_path / "absent"), "cpu")
    with pytest.raises(ModelUnavailable, match="does not load"):
        load_cross_encoder(str(tmp_path), "cpu")


def test_whole_model_from_a_directory_keeps_its_scores(bundled: Any, tmp_path: Path) -> None:
    bundled.save_pretrained(str(tmp_path / "whole"))
    pair = [("Who has the keys?", "Marta has the keys.")]
    loaded = load_cross_encoder(str(tmp_path / "whole"), "cpu")
    np.testing.assert_allclose(loaded.predict(pair), bundled.predict(pair), atol=1e-5)


def test_files_name_the_public_base_and_no_path() -> None:
    config = json.loads((ADAPTER_DIR / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == BASE_NAME
    assert not [value for value in config.values() if isinstance(value, str) and value.startswith(("/", "~"))]
    card = (ADAPTER_DIR / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert ADAPTER_SHA256 in card, "the card describes another adapter"
    assert "CC BY-SA 4.0" in card
