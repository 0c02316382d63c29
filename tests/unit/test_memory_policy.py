"""A company's memory policy: what may be written, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from muniment.policies.entities import MAX_PATTERNS
from muniment.policies.extraction import DEFAULT
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.retention import MAX_RULES, ImportancePolicy, RetentionMode
from muniment.policies.terms import LANGUAGES, stem


def test_the_empty_policy_is_the_default() -> None:
    policy = MemoryPolicy()
    assert policy.extraction == DEFAULT
    assert policy.importance == ImportancePolicy()
    assert policy.retention is None


def test_it_says_how_texts_are_read() -> None:
    body = {"entities": {"order": r"(?i)pedido \d+", "batch": "lote [A-Z]+"}, "languages": ["pt"], "retention": "lru"}
    policy = MemoryPolicy.model_validate(body)
    assert policy.retention is RetentionMode.LRU
    assert MemoryPolicy.model_validate(policy.model_dump(mode="json")) == policy
    other_names = MemoryPolicy.model_validate({"entities": {"a": "lote [A-Z]+", "b": r"(?i)pedido \d+"}})
    assert other_names.extraction.patterns == policy.extraction.patterns
    found = policy.extraction.features("As reuniões do pedido 77 e do lote ABC")
    assert {"pedido 77", "lote abc"} <= set(found.entities)
    entities, terms = policy.extraction.of_query("que reunião do pedido 77?")
    assert "pedido 77" in entities
    assert stem("reunião", "pt") in found.terms.keys() & set(terms)


@pytest.mark.parametrize(
    "wrong",
    [
        {"entities": {"x": "(a"}},
        {"entities": {"x": "a.{500}b"}},
        {"entities": {"": "a"}},
        {"entities": {f"e{i}": f"a{i}" for i in range(MAX_PATTERNS + 1)}},
        {"languages": []},
        {"languages": ["english"]},
        {"languages": ["en", "en"]},
        {"languages": ["en", "pt", "de", "fr", "es"]},
        {"retention": "never"},
        {"importance": {"default": 1.5}},
        {"importance": {"default": float("nan")}},
        {"importance": {"rules": [{"importance": 0.5}]}},
        {"importance": {"rules": [{"importance": 0.5, "pattern": "x*"}]}},
        {"importance": {"rules": [{"importance": 0.5, "field": "a"}] * (MAX_RULES + 1)}},
        {"surprise": 1},
    ],
)
def test_what_may_not_be_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MemoryPolicy.model_validate(wrong)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_a_stemmer(language: str) -> None:
    assert stem("words", language)
