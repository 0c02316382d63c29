"""How well a cross-encoder ranks: questions held out of the generated material, and evidence in conversations."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from muniment.actors.cross_encoder import base_directory
from tests.bench.locomo import told

CANDIDATES: Final = 40
ADVERSARIAL: Final = 5

console = Console()


@dataclass(frozen=True)
class Row:
    """One question as it is trained: the positive first, then the hardest negatives."""

    source: str
    query: str
    texts: tuple[str, ...]


class BiEncoder:
    """The packaged bi-encoder, with every text encoded once."""

    def __init__(self) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(base_directory()), device="cpu")
        self._known: dict[str, np.ndarray] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Encodes what is new among ``texts``."""
        new = sorted(set(texts) - self._known.keys(), key=lambda text: (len(text), text))
        with progress() as bar:
            task = bar.add_task("bi-encoder", total=len(new), note="")
            for start in range(0, len(new), 64):
                part = new[start : start + 64]
                self._known.update(zip(part, self._model.encode(part, normalize_embeddings=True), strict=True))
                bar.advance(task, len(part))

    def similarities(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Cosines of ``query`` with ``texts``, all of them learnt before."""
        return np.asarray(np.stack([self._known[text] for text in texts]) @ self._known[query])


def progress() -> Progress:
    """A progress bar; its tasks have a ``note``."""
    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note)
    return Progress(*columns, console=console)


def score_held_out(encoder: Any, bi_encoder: BiEncoder, held_out: Sequence[Row]) -> None:
    """How often the positive is ranked first of six, by kind of question, for the bi-encoder and the reranker."""
    bi_encoder.learn(text for row in held_out for text in (row.query, *row.texts))
    scores = encoder.predict([(row.query, text) for row in held_out for text in row.texts]).reshape(len(held_out), -1)
    first: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row, score in zip(held_out, scores, strict=True):
        dense = bi_encoder.similarities(row.query, row.texts)
        first[row.source].append((bool(dense[0] > dense[1:].max()), bool(score[0] > score[1:].max())))
    table = Table(
        "held-out questions", "number", "bi-encoder first", "reranker first", title="answer ranked first of six"
    )
    for source, hits in first.items():
        dense_rate, rate = np.mean(hits, axis=0)
        table.add_row(source, str(len(hits)), f"{dense_rate:.3f}", f"{rate:.3f}")
    console.print(table)
    positive, negative = scores[:, 0], scores[:, 1:]
    console.print(
        f"logits of answers: median {np.median(positive):+.2f}, of near misses: median {np.median(negative):+.2f}; "
        f"above 0: {np.mean(positive > 0):.3f} of answers, {np.mean(negative > 0):.3f} of near misses"
    )


@dataclass(frozen=True)
class _Job:
    """A question, the ids and texts of what fusion found best, best first, and the ids of its evidence."""

    query: str
    ids: list[str]
    texts: list[str]
    evidence: set[str]


def score_conversations(path: Path, encoder: Any, bi_encoder: BiEncoder) -> None:
    """Reranks the best 40 of reciprocal rank fusion (bi-encoder and BM25); prints recall of the evidence and MRR.

    Two sets of questions that are not adversarial: every third of the first three conversations, every second of the
    others. Two forms of text: ``speaker: words``, and as ``tests.bench.locomo`` tells it to the service.
    """
    conversations = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    forms: dict[str, Callable[[dict[str, Any]], str]] = {
        "speaker: words": lambda turn: f"{turn['speaker']}: {turn['text']}",
        "as told": told,
    }
    sets = {
        "every third of conversations 1-3": (conversations[:3], 3),
        "every second of the others": (conversations[3:], 2),
    }
    table = Table("questions", "number", "text", "ranking", "recall@5", "recall@10", "MRR", title=path.name)
    for label, (chosen, step) in sets.items():
        for name, form in forms.items():
            jobs = [job for one in chosen for job in _fused(one, step, form, bi_encoder)]
            plain = [job.ids for job in jobs]
            for ranking, found in (("fusion", plain), ("reranked", _reranked(jobs, encoder))):
                numbers = (f"{value:.3f}" for value in _quality(jobs, found))
                table.add_row(label, str(len(jobs)), name, ranking, *numbers)
    console.print(table)


def _fused(
    conversation: dict[str, Any], step: int, form: Callable[[dict[str, Any]], str], bi_encoder: BiEncoder
) -> Iterator[_Job]:
    turns = {turn["dia_id"]: form(turn) for turn in conversation["turns"]}
    ids, texts = list(turns), list(turns.values())
    asked = [q for q in conversation["qa"] if q["category"] != ADVERSARIAL][::step]
    bi_encoder.learn([*texts, *(q["question"] for q in asked)])
    documents = [Counter(words(text)) for text in texts]
    frequency = Counter(word for counts in documents for word in counts)
    for q in asked:
        fused = np.zeros(len(texts))
        for scores in (bi_encoder.similarities(q["question"], texts), bm25(q["question"], documents, frequency)):
            fused[np.argsort(-scores, kind="stable")] += 1 / (60 + np.arange(1, len(texts) + 1))
        best = np.argsort(-fused, kind="stable")[:CANDIDATES]
        evidence = set(q["evidence"]) & turns.keys()
        if evidence:
            yield _Job(q["question"], [ids[i] for i in best], [texts[i] for i in best], evidence)


def _reranked(jobs: Sequence[_Job], encoder: Any) -> list[list[str]]:
    found = []
    with progress() as bar:
        task = bar.add_task("reranking", total=len(jobs), note="")
        for start in range(0, len(jobs), 24):
            part = jobs[start : start + 24]
            pairs = [(job.query, text) for job in part for text in job.texts]
            scores = encoder.predict(pairs, batch_size=64).reshape(len(part), -1)
            for job, score in zip(part, scores, strict=True):
                found.append([job.ids[i] for i in np.argsort(-score, kind="stable")])
            bar.advance(task, len(part))
    return found


def _quality(jobs: Sequence[_Job], found: Sequence[list[str]]) -> list[float]:
    """Recall@5, recall@10, MRR."""
    pairs = [(job.evidence, ids) for job, ids in zip(jobs, found, strict=True)]
    recalls = [float(np.mean([len(wanted & set(ids[:k])) / len(wanted) for wanted, ids in pairs])) for k in (5, 10)]
    ranks = [max((1 / (ids.index(id) + 1) for id in wanted if id in ids), default=0.0) for wanted, ids in pairs]
    return [*recalls, float(np.mean(ranks))]


def words(text: str) -> list[str]:
    """The words of ``text``, in lower case."""
    return re.findall(r"\w+", text.lower())


def bm25(
    query: str, documents: Sequence[Counter[str]], frequency: Counter[str], k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """BM25 of ``query`` for every document, given as its word counts; ``frequency``: documents per word."""
    lengths = np.array([sum(counts.values()) for counts in documents], dtype=float)
    norm = k1 * (1 - b + b * lengths / lengths.mean())
    total = np.zeros(len(documents))
    for word in sorted(set(words(query)) & frequency.keys()):
        idf = math.log(1 + (len(documents) - frequency[word] + 0.5) / (frequency[word] + 0.5))
        count = np.array([counts[word] for counts in documents], dtype=float)
        total += idf * count * (k1 + 1) / (count + norm)
    return total
