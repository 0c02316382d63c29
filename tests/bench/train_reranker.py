"""Builds the bundled cross-encoder: a LoRA adapter over the packaged all-MiniLM-L6-v2.

    python -m tests.bench.train_reranker --data PATH/train.json [--locomo PATH] --out actors/reranker

``--data`` is a JSON list of ``{"src", "q", "pos": [text], "neg": [text]}``. Every question is trained once, as a
softmax over one positive and the five negatives that the bi-encoder ranks highest. Generated questions that teach what
memories need are mixed into the second half of the given ones, so that both are learnt at the end. The logits of the
last steps, each taken before its questions were trained, give a scale and a shift that are folded into the classifier,
so that a logit is a log-odds; the order of the scores does not change.

Seeds are fixed and torch runs on one thread, so that one machine gives one adapter. ``--score-only`` scores the adapter
in ``--out``. ``--locomo`` (conversations of the LoCoMo shape) is only ever scored. The digest that is printed at the
end goes into ``actors/cross_encoder.py``.
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
from tests.bench.reranker_material import SEED, Question, dated, generated, given
from tests.bench.reranker_scores import BiEncoder, Row, console, progress, score_conversations, score_held_out

NEGATIVES: Final = 5
TRAIN_TOKENS: Final = 64
QUESTIONS_PER_STEP: Final = 4
LEARNING_RATE: Final = 5e-4
RANK: Final = 32
ALPHA: Final = 64
WARMUP: Final = 0.05
GIVEN: Final = 2_400
"""So many given questions are trained; a trial with all 3,573 gained nothing after these."""
UNMIXED: Final = 1_200
"""So many of them come before the generated ones are mixed in."""
PER_FAMILY: Final = 50
DATED: Final = 0.3
"""The part of the mixed questions whose texts have a time in front, as told turns of a conversation do."""
CALIBRATED_STEPS: Final = 200
HELD_OUT_PER_FAMILY: Final = 24
# The pooler was never trained with the bi-encoder, which does not use it: it is trained whole, like the classifier.
ADAPTED: Final = r".*encoder\.layer\.\d+\..*(query|key|value|dense)"
WHOLE: Final = ("pooler", "classifier")
_GROUP: Final = 8


def rows(questions: Sequence[Question], encoder: BiEncoder, rng: random.Random) -> list[Row]:
    """Each question with one of its positives and its hardest negatives by the bi-encoder, repeated where few."""
    encoder.learn(text for q in questions for text in (q.query, *q.negatives))
    found = []
    for question in questions:
        order = np.argsort(-encoder.similarities(question.query, question.negatives), kind="stable")
        texts = (rng.choice(question.positives), *(question.negatives[i] for i in np.resize(order, NEGATIVES)))
        found.append(Row(question.source, question.query, texts))
    return found


def curriculum(path: Path, per_family: int, encoder: BiEncoder) -> list[Row]:
    """All questions in the order in which they are trained."""
    rng = random.Random(SEED)
    known = rows(given(path), encoder, rng)
    rng.shuffle(known)
    mixed = known[UNMIXED:GIVEN] + rows(generated(per_family, held_out=False), encoder, rng)
    rng.shuffle(mixed)
    return known[:UNMIXED] + [_dated(row, rng) if rng.random() < DATED else row for row in mixed]


def _dated(row: Row, rng: random.Random) -> Row:
    return Row(row.source, row.query, tuple(dated(rng, text) for text in row.texts))


def logits_of(model: Any, tokenizer: Any, batch: Sequence[Row]) -> torch.Tensor:
    """Logits of a batch, a row per question and a column per text. Texts of one length go together: padding costs."""
    queries = [row.query for row in batch for _ in row.texts]
    texts = [text for row in batch for text in row.texts]
    coded = tokenizer(queries, texts, truncation=True, max_length=TRAIN_TOKENS)
    order = sorted(range(len(texts)), key=lambda i: len(coded["input_ids"][i]))
    parts = []
    for start in range(0, len(order), _GROUP):
        part = {name: [values[i] for i in order[start : start + _GROUP]] for name, values in coded.items()}
        parts.append(model(**tokenizer.pad(part, return_tensors="pt")).logits)
    logits = torch.cat(parts)[torch.argsort(torch.tensor(order))]
    return logits.view(len(batch), -1)


def train(training: Sequence[Row], out: Path, checkpoints: Path | None, every: int) -> None:
    """Trains the adapter, puts its scores on the scale of log-odds and writes it to ``out``."""
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(SEED)
    encoder = base_cross_encoder("cpu")
    base: Any = encoder[0].model
    torch.nn.init.normal_(base.classifier.weight, std=0.02)
    torch.nn.init.zeros_(base.classifier.bias)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=ALPHA, lora_dropout=0.0,
        target_modules=ADAPTED, modules_to_save=list(WHOLE),
    )  # fmt: skip
    model: Any = get_peft_model(base, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    console.print(f"{sum(p.numel() for p in trained):,} parameters to train, {len(training):,} questions")
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)
    batches = [training[i : i + QUESTIONS_PER_STEP] for i in range(0, len(training), QUESTIONS_PER_STEP)]
    warm = max(1, int(len(batches) * WARMUP))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (len(batches) - step) / (len(batches) - warm))
    )
    model.train()
    mean_loss = math.log(NEGATIVES + 1)
    unseen: list[torch.Tensor] = []
    with progress() as bar:
        task = bar.add_task("training", total=len(batches), note="")
        for step, batch in enumerate(batches, 1):
            logits = logits_of(model, encoder.tokenizer, batch)
            unseen.append(logits.detach())
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
    scale, shift = calibrate(torch.cat(unseen[-CALIBRATED_STEPS:]))
    classifier = model.base_model.model.classifier.modules_to_save["default"]
    with torch.no_grad():
        classifier.weight.mul_(scale)
        classifier.bias.mul_(scale).add_(shift)
    save(model, config, out)


def calibrate(logits: torch.Tensor) -> tuple[float, float]:
    """Scale (positive) and shift that make a logit the log-odds of being the answer; the first column has the
    answers."""
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
    console.print(f"calibrated on {len(logits)} questions: logit = {scale:.3f} · raw {offset:+.3f}")
    return scale, offset


def save(model: Any, config: Any, out: Path) -> None:
    """Writes the adapter, the pooler and the classifier in half precision, with a configuration that names no path."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().half().contiguous() for name, value in get_peft_model_state_dict(model).items()}
    save_file(dict(sorted(state.items())), out / "adapter_model.safetensors", metadata={"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    fields = config.to_dict() | {"base_model_name_or_path": BASE_NAME, "inference_mode": True, "revision": None}
    fields["modules_to_save"] = sorted(set(fields["modules_to_save"]))
    (out / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True, default=sorted) + "\n")


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
    bi_encoder = BiEncoder()
    if not args.score_only:
        training = curriculum(args.data, args.per_family, bi_encoder)
        console.print(", ".join(f"{n} {source}" for source, n in Counter(row.source for row in training).items()))
        started = time.monotonic()
        train(training, args.out, args.checkpoints, args.checkpoint_every)
        console.print(f"trained in {time.monotonic() - started:.0f} s")
    encoder = with_adapter(args.out, "cpu", str(args.out))
    held_out = rows(generated(HELD_OUT_PER_FAMILY, held_out=True), bi_encoder, random.Random(SEED))
    score_held_out(encoder, bi_encoder, held_out)
    if args.locomo:
        score_conversations(args.locomo, encoder, bi_encoder)
    adapter = (args.out / "adapter_model.safetensors").read_bytes()
    console.print(f"ADAPTER_SHA256 = {hashlib.sha256(adapter).hexdigest()!r} ({len(adapter):,} bytes)", soft_wrap=True)


if __name__ == "__main__":
    main()
