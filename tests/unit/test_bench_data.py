"""What the recall benchmarks ask and how they count; no model runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from muniment.policies.routing import PROFILES
from tests.bench import locomo, logs, saturation
from tests.bench.memory import profile_for, reciprocal_rank, shard_settings

LINES = [
    "- 1 R01-M0-N0 RAS KERNEL FATAL stop",
    "- 2 R01-M0-N1 RAS KERNEL INFO core.12",
    "- 3 R02-M1-N1 RAS KERNEL INFO core.13",
    "- nothing to name",
]


def test_generated_facts_follow_the_papers_parameters() -> None:
    facts, queries = saturation.generate(2_000, 42)
    assert (facts, queries) == saturation.generate(2_000, 42)
    assert facts != saturation.generate(2_000, 43)[0]
    for i, (fact, query) in enumerate(zip(facts, queries, strict=True), 1):
        assert f"0x{i:04X}" in fact.text
        assert f"Subsystem-{i % 1000}" in query
        assert f"0x{i:04X}" not in query
        assert (fact.importance == 0.95) == (i % 10 == 0 or "Kernel Panic" in fact.text)
    assert 0.2 < sum(fact.importance == 0.95 for fact in facts) / len(facts) < 0.3


def test_the_limit_is_what_the_query_text_allows() -> None:
    unique = logs.LogQuery(2, "", ("core.13", "r02-m1"))
    shared = logs.LogQuery(0, "", ("r01-m0",))
    assert logs.limit_of([unique], LINES) == 1
    assert logs.limit_of([shared], LINES) == pytest.approx((1 + 1 / 2) / 2)
    assert logs.limit_of([unique, shared], LINES) == pytest.approx((1 + 0.75) / 2)


@pytest.mark.parametrize("form", logs.FORMATS)
def test_queries_name_one_or_two_entities_of_their_line(form: str) -> None:
    queries = logs.make_queries(LINES, form, 10, 1)
    assert {query.position for query in queries} == {0, 1, 2}
    for query in queries:
        assert 1 <= len(query.entities) <= 2
        assert all(entity in query.text and entity in LINES[query.position].lower() for entity in query.entities)
    assert queries == logs.make_queries(LINES, form, 10, 1)


def test_conversations_are_read_and_scored(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(
        '{"turns": [{"dia_id": "D1:1", "session_time": "noon", "speaker": "Ana", "text": "hi", "caption": "a cat"},'
        ' {"dia_id": "D1:2", "speaker": "Bo", "text": "bye"}],'
        ' "qa": [{"question": "who?", "category": 4, "evidence": ["D1:1", "D9:9"]},'
        ' {"question": "none?", "category": 1, "evidence": []}]}\n',
        encoding="utf-8",
    )
    (conversation,) = locomo.read(path)
    assert [turn.text for turn in conversation.turns.values()] == ["(noon) Ana: hi [a cat]", "Bo: bye"]
    (question,) = conversation.questions
    assert (question.category, question.evidence) == ("single fact", {"D1:1"})
    assert reciprocal_rank(["D1:2", "D1:1"], set(question.evidence)) == 0.5
    assert reciprocal_rank(["D1:2"], set(question.evidence)) == 0


def test_modes_change_what_they_say_and_nothing_else() -> None:
    assert profile_for("full", "paper") == PROFILES["paper"]
    assert profile_for("no_ce", "default") == profile_for("full", "default").model_copy(update={"rerank": False})
    assert shard_settings("oracle", "paper", 500, 5_000, 15_000).l1_capacity == 15_000
    modes = {mode: shard_settings(mode, "default", 500, 5_000, 1).retention.mode.value for mode in ("full", "lru")}
    assert modes == {"full": "importance", "lru": "lru"}
