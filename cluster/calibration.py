"""Calibrates the gate of one company of a running service; the service goes on answering meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muniment.actors.calibration import Question, questions_of_facts, questions_of_pairs
from muniment.actors.model_worker import Priority
from muniment.actors.store.control_store import Calibration, ControlStore
from muniment.actors.store.engine import available, open_engine
from muniment.actors.store.keys import OPERATOR_ID
from muniment.cluster import launcher
from muniment.cluster.actor_classes import shard_of, worker_pool
from muniment.cluster.settings import Settings
from muniment.policies.calibration import Observation, TradePoint, choose, trade
from muniment.policies.errors import InvalidInput, NotFound
from muniment.policies.routing import default_threshold

#: How many of the best answers may hold what was wanted.
TOP_K = 5
#: Queries that are embedded and asked in one call: the shard answers others between two of them.
_AT_ONCE = 32
_SEED = 42
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was found: the trade at each threshold, the one that was chosen, and the threshold that held before.

    ``left_out``: pairs whose fact is not in memory.
    """

    company: str
    model: str
    points: Sequence[TradePoint]
    chosen: TradePoint
    before: float
    queries: int
    left_out: int


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """(query, id or text of the fact that answers it), one JSON object a line. Raises ``InvalidInput``."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            query, fact = row["query"], row["fact"]
        except (ValueError, KeyError, TypeError):
            query = fact = None
        if not (isinstance(query, str) and query and isinstance(fact, str) and fact):
            raise InvalidInput(f'{path}, line {number}: must be {{"query": text, "fact": id or text}}')
        pairs.append((query, fact))
    return pairs


def calibrate(
    data_dir: Path,
    company: str,
    pairs: Sequence[tuple[str, str]] | None,
    queries: int,
    tolerance: float,
    store: bool,
    progress: Progress = lambda done, total: None,
) -> Calibrated:
    """Observes the company's tiers and chooses; unless ``store`` is false, that holds from the next recall on.

    ``pairs``: labelled queries; None makes ``queries`` of them from the company's own facts. ``tolerance``: the recall
    that may be lost. Raises ``Unavailable`` where no service runs, ``NotFound``, ``InvalidInput`` where there is too
    little to tell.
    """
    settings = launcher.published_settings(launcher.attach(data_dir).namespace)
    control = ControlStore(settings.store_url("control"))
    try:
        if not control.has_company(company):
            raise NotFound(f"there is no company {company!r}")
        questions = _questions(settings, company, pairs, queries)
        model, observed = asyncio.run(_observe(settings, company, questions, progress))
        points = trade(observed)
        chosen = choose(points, tolerance)
        before = control.calibrations(company).get(model)
        if store:
            found = Calibration(
                threshold=chosen.threshold,
                queries=len(observed),
                searches_l2=chosen.searches_l2,
                recall_lost=chosen.recall_lost,
            )
            control.calibrate(company, model, found, f"key:{OPERATOR_ID}")
    finally:
        control.close()
    return Calibrated(
        company,
        model,
        points,
        chosen,
        default_threshold(model) if before is None else before.threshold,
        len(observed),
        0 if pairs is None else len(pairs) - len(questions),
    )


def _questions(
    settings: Settings, company: str, pairs: Sequence[tuple[str, str]] | None, queries: int
) -> list[Question]:
    engine = open_engine(settings.store_url("memory"))
    try:
        with available(), engine.connect() as connection:
            if pairs is None:
                return questions_of_facts(connection, company, queries, _SEED)
            found = questions_of_pairs(connection, company, pairs)
            if not found:
                raise InvalidInput(f"of the {len(pairs)} pairs no fact is in memory")
            return found
    finally:
        engine.dispose()


async def _observe(
    settings: Settings, company: str, questions: Sequence[Question], progress: Progress
) -> tuple[str, list[Observation]]:
    workers: Any = worker_pool(settings)
    shard: Any = shard_of(settings)(company)
    model = (await workers.describe())["embedder"]
    profile = settings.recall.profiles()["default"].model_dump(mode="json")
    observed: list[Observation] = []
    progress(0, len(questions))
    for start in range(0, len(questions), _AT_ONCE):
        part = questions[start : start + _AT_ONCE]
        vectors = await workers.embed([question.query for question in part], Priority.INGEST)
        asked = [{"query": question.query, "wanted": question.wanted} for question in part]
        found = await shard.observe(company=company, questions=asked, vectors=vectors, profile=profile, top_k=TOP_K)
        observed += [Observation(**row) for row in found]
        progress(len(observed), len(questions))
    return model, observed
