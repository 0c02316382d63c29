"""Builds the bundled cross-encoder: a LoRA adapter over the packaged all-MiniLM-L6-v2.

    python -m tests.bench.train_reranker --data PATH/train.json [--locomo PATH] --out actors/reranker

``--data`` is a JSON list of ``{"src", "q", "pos": [text], "neg": [text]}``. To it is added generated material that
teaches what memories need: one detail changed, negation, another entity, an older version, identifiers in logs. Every
question is trained once, as a softmax over one positive and the five negatives that the bi-encoder ranks highest.
Afterwards a scale and a shift, fitted on questions that were held out, are folded into the classifier, so that a logit
is a log-odds; the order of the scores does not change.

Seeds are fixed and torch runs on one thread, so that one machine gives one adapter; another processor's bfloat16 may
differ in the last digits. ``--score-only`` scores the adapter in ``--out``. ``--locomo`` (conversations of the LoCoMo
shape) is only ever scored. The digest that is printed at the end goes into ``actors/cross_encoder.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from muniment.actors.cross_encoder import BASE_NAME, base_cross_encoder, with_adapter
from tests.bench.reranker_material import NEGATIVES, SEED, Question, generated, given
from tests.bench.reranker_scores import BiEncoder, Row, console, progress, score_conversations, score_held_out

QUESTIONS_PER_STEP: Final = 4
TRAIN_TOKENS: Final = 64
LEARNING_RATE: Final = 5e-4
RANK: Final = 32
ALPHA: Final = 64
WARMUP: Final = 0.05
PER_FAMILY: Final = 90
HELD_OUT_QUESTIONS: Final = 96
HELD_OUT_PER_FAMILY: Final = 24


def rows(questions: Sequence[Question], encoder: BiEncoder, rng: random.Random) -> list[Row]:
    """Each question with one of its positives and its hardest negatives by the bi-encoder."""
    encoder.learn(text for q in questions for text in (q.query, *q.negatives))
    found = []
    for question in questions:
        order = np.argsort(-encoder.similarities(question.query, question.negatives), kind="stable")[:NEGATIVES]
        texts = (rng.choice(question.positives), *(question.negatives[i] for i in order))
        found.append(Row(question.source, question.query, texts))
    return found


def logits_of(model: Any, tokenizer: Any, batch: Sequence[Row]) -> torch.Tensor:
    """Logits of a batch, a row per question and a column per text."""
    features = tokenizer(
        [row.query for row in batch for _ in row.texts],
        [text for row in batch for text in row.texts],
        truncation=True, max_length=TRAIN_TOKENS, padding=True, return_tensors="pt",
    )  # fmt: skip
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: torch.Tensor = model(**features).logits
    return logits.float().view(len(batch), -1)


def train(train_rows: list[Row], held_out: list[Row], out: Path, checkpoints: Path | None, every: int) -> None:
    """Trains the adapter, puts its scores on the scale of log-odds and writes it to ``out``."""
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(SEED)
    encoder = base_cross_encoder("cpu")
    base: Any = encoder[0].model
    torch.nn.init.normal_(base.classifier.weight, std=0.02)
    torch.nn.init.zeros_(base.classifier.bias)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear"
    )  # fmt: skip
    model: Any = get_peft_model(base, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    console.print(f"{sum(p.numel() for p in trained):,} parameters to train, {len(train_rows):,} questions")
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)
    order = list(train_rows)
    random.Random(SEED).shuffle(order)
    batches = [order[i : i + QUESTIONS_PER_STEP] for i in range(0, len(order), QUESTIONS_PER_STEP)]
    warm = max(1, int(len(batches) * WARMUP))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.02, (len(batches) - step) / (len(batches) - warm)))
    )
    model.train()
    mean_loss = math.log(NEGATIVES + 1)
    with progress() as bar:
        task = bar.add_task("training", total=len(batches), note="")
        for step, batch in enumerate(batches, 1):
            logits = logits_of(model, encoder.tokenizer, batch)
            loss: Any = cross_entropy(logits, torch.zeros(len(batch), dtype=torch.long))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            mean_loss += 0.02 * (loss.item() - mean_loss)
            bar.update(task, advance=1, note=f"loss {mean_loss:.3f}")
            if step % every == 0:
                console.print(f"step {step}: loss {mean_loss:.3f}")
                if checkpoints is not None:
                    save(model, config, checkpoints / f"step-{step}")
    scale, shift = calibrate(model, encoder.tokenizer, held_out)
    classifier = model.base_model.model.classifier.modules_to_save["default"]
    with torch.no_grad():
        classifier.weight.mul_(scale)
        classifier.bias.mul_(scale).add_(shift)
    save(model, config, out)


@torch.no_grad()
def _held_out_logits(model: Any, tokenizer: Any, held_out: Sequence[Row]) -> torch.Tensor:
    model.eval()
    parts = [held_out[i : i + 8] for i in range(0, len(held_out), 8)]
    return torch.cat([logits_of(model, tokenizer, part) for part in parts])


def calibrate(model: Any, tokenizer: Any, held_out: Sequence[Row]) -> tuple[float, float]:
    """Scale (positive) and shift that make a logit the log-odds of being the answer, on questions never trained."""
    logits = _held_out_logits(model, tokenizer, held_out)
    labels = torch.zeros_like(logits)
    labels[:, 0] = 1.0
    log_scale, shift = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([log_scale, shift], max_iter=200)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Any = binary_cross_entropy_with_logits(logits * log_scale.exp() + shift, labels)
        loss.backward()
        return float(loss)

    optimizer.step(closure)
    scale, offset = log_scale.exp().item(), shift.item()
    console.print(f"calibrated on {len(held_out)} held-out questions: logit = {scale:.3f} · raw {offset:+.3f}")
    return scale, offset


def save(model: Any, config: Any, out: Path) -> None:
    """Writes the adapter and the classifier in half precision, with a configuration that names no path."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().half().contiguous() for name, value in get_peft_model_state_dict(model).items()}
    save_file(dict(sorted(state.items())), out / "adapter_model.safetensors", metadata={"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    fields = config.to_dict() | {"base_model_name_or_path": BASE_NAME, "inference_mode": True, "revision": None}
    fields |= {key: sorted(set(fields[key])) for key in ("target_modules", "modules_to_save")}
    (out / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="train.json")
    parser.add_argument("--out", type=Path, required=True, help="the adapter's directory")
    parser.add_argument("--locomo", type=Path, help="conversations to score, never trained on")
    parser.add_argument("--per-family", type=int, default=PER_FAMILY, help="generated questions of each family")
    parser.add_argument("--checkpoints", type=Path, help="directory for adapters on the way")
    parser.add_argument("--checkpoint-every", type=int, default=200, help="steps")
    parser.add_argument("--score-only", action="store_true", help="score the adapter in --out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(SEED)
    questions = given(args.data)
    rng.shuffle(questions)
    kept, trained = questions[:HELD_OUT_QUESTIONS], questions[HELD_OUT_QUESTIONS:]
    bi_encoder = BiEncoder()
    held_out = rows(kept + generated(HELD_OUT_PER_FAMILY, held_out=True), bi_encoder, random.Random(SEED))
    started = time.monotonic()
    if not args.score_only:
        material = trained + generated(args.per_family, held_out=False)
        console.print(", ".join(f"{n} {source}" for source, n in Counter(q.source for q in material).items()))
        training = rows(material, bi_encoder, random.Random(SEED))
        train(training, held_out, args.out, args.checkpoints, args.checkpoint_every)
        console.print(f"trained in {time.monotonic() - started:.0f} s")
    encoder = with_adapter(args.out, "cpu", str(args.out))
    score_held_out(encoder, bi_encoder, held_out)
    if args.locomo:
        score_conversations(args.locomo, encoder, bi_encoder)
    adapter = (args.out / "adapter_model.safetensors").read_bytes()
    console.print(f"ADAPTER_SHA256 = {hashlib.sha256(adapter).hexdigest()!r} ({len(adapter):,} bytes)", soft_wrap=True)


if __name__ == "__main__":
    main()
