"""Recall of evidence from long conversations (LoCoMo, Maharana et al., ACL 2024), or any file of that shape.

    python -m tests.bench.locomo --data conversations.jsonl --profile default,fast

One conversation a line: ``turns`` (``dia_id``, ``session_time``, ``speaker``, ``text``, ``caption``) and ``qa``
(``question``, ``category``, ``evidence``: turn ids). Every conversation has a memory of its own, with L1 500 and L2
5,000. A turn is told with its time and speaker in front, as chat memories do. Recall@k is the mean share of a
question's evidence among the best k; MRR looks at the first piece of evidence among the best 20.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tests.bench.memory import (
    ActorMemory,
    Asked,
    BenchFact,
    Models,
    ask,
    load_models,
    median_ms,
    profile_for,
    reciprocal_rank,
    run,
    shard_settings,
)
from tests.bench.options import add_common
from tests.bench.report import COLOURS, figure, save, table, write_json

L1, L2 = 500, 5_000
CUTS: Final = (5, 10, 20)
CATEGORIES: Final = {1: "several facts", 2: "time", 3: "inference", 4: "single fact", 5: "adversarial"}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the ids of the turns that answer it."""

    text: str
    category: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns by id, in order, and questions about them."""

    turns: dict[str, BenchFact]
    questions: list[Question]


def read(path: Path) -> list[Conversation]:
    """The conversations of ``path``; questions without evidence among the turns are left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [_conversation(row) for row in rows]


def _conversation(row: dict[str, Any]) -> Conversation:
    turns = {turn["dia_id"]: BenchFact(told(turn)) for turn in row["turns"]}
    questions = [
        Question(
            qa["question"], CATEGORIES.get(qa["category"], str(qa["category"])), frozenset(qa["evidence"]) & set(turns)
        )
        for qa in row["qa"]
    ]
    return Conversation(turns, [question for question in questions if question.evidence])


def told(turn: dict[str, Any]) -> str:
    caption = f" [{turn['caption']}]" if turn.get("caption") else ""
    time = f"({turn['session_time']}) " if turn.get("session_time") else ""
    return f"{time}{turn['speaker']}: {turn['text']}{caption}"


async def measure(models: Models, profile: str, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """One row of the result."""
    scored: list[tuple[Question, list[str], Asked]] = []
    for number, conversation in enumerate(conversations, 1):
        settings = shard_settings("full", profile, L1, L2, len(conversation.turns))
        async with ActorMemory.open(models, profile_for("full", profile), settings) as memory:
            ids = await memory.remember(list(conversation.turns.values()))
            turn_of = dict(zip(ids, conversation.turns, strict=True))
            texts = [question.text for question in conversation.questions]
            answers = await ask(memory, texts, max(CUTS), f"{profile}: conversation {number} of {len(conversations)}")
            for question, asked in zip(conversation.questions, answers, strict=True):
                scored.append((question, [turn_of[id] for id in asked.ids], asked))
    by_category: dict[str, list[dict[str, float]]] = defaultdict(list)
    for question, turns, _ in scored:
        by_category[question.category].append(_scores(question, turns))
    everything = [scores for group in by_category.values() for scores in group]
    return {
        "profile": profile,
        "questions": len(everything),
        **_mean(everything),
        "by_category": {name: {"questions": len(group), **_mean(group)} for name, group in sorted(by_category.items())},
        "latency_p50_ms": median_ms(asked for _, _, asked in scored),
    }


def _scores(question: Question, turns: Sequence[str]) -> dict[str, float]:
    found = {f"recall@{cut}": len(question.evidence & set(turns[:cut])) / len(question.evidence) for cut in CUTS}
    return {**found, "mrr": reciprocal_rank(turns, set(question.evidence))}


def _mean(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in scores) for name in scores[0]}


def plot(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Recall@10 by category and profile."""
    made, axes = figure()
    categories = ["all", *rows[0]["by_category"]]
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        values = [row["recall@10"], *(row["by_category"][name]["recall@10"] for name in categories[1:])]
        places = [i + (number - (len(rows) - 1) / 2) * width for i in range(len(categories))]
        bars = axes.bar(places, values, width * 0.95, color=COLOURS[row["profile"]], label=row["profile"])
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylim(0, 1.1)
    axes.set_ylabel("recall@10 of evidence (higher is better)")
    axes.set_title("Long conversations: evidence among the best ten", loc="left")
    axes.legend(frameon=False, ncols=len(rows))
    save(made, folder, "locomo")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.locomo", description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="conversations, one JSON object a line")
    add_common(parser, ["default"])
    options = parser.parse_args()
    conversations = read(options.data)
    if not any(conversation.questions for conversation in conversations):
        parser.error(f"{options.data}: no questions")

    async def everything() -> list[dict[str, Any]]:
        models = load_models(options.reranker, options.runtime)
        models.embedder.prepare(turn.text for conversation in conversations for turn in conversation.turns.values())
        return [await measure(models, profile, conversations) for profile in options.profile]

    rows = run(everything)
    shown = [
        {"profile": row["profile"], "category": name, "latency_p50_ms": None, **scores}
        for row in rows
        for name, scores in row["by_category"].items()
    ]
    totals = [{**row, "category": "all"} for row in rows]
    columns = ("profile", "category", "questions", *(f"recall@{cut}" for cut in CUTS), "mrr", "latency_p50_ms")
    table(f"{options.data.name}: {len(conversations)} conversations", [*shown, *totals], columns)
    write_json(options.out, {**{k: v for k, v in rows[0].items() if k != "profile"}, "rows": rows})
    if options.plots:
        plot(rows, options.plots)


if __name__ == "__main__":
    main()
