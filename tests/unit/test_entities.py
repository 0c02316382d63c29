from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.entities import (
    MAX_ENTITIES,
    MAX_ENTITY_CHARACTERS,
    check_pattern,
    count_shared,
    extract_entities,
    is_mentioned,
    matching,
    normalise_entity,
)
from muniment.policies.terms import fold_accents

NOISE = st.text(alphabet=st.sampled_from("aA1 -_.:/@\"“”'0x€%\né東"), max_size=200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("error on R17-M1-N0-C:J12-U11 again", {"r17-m1-n0-c:j12-u11"}),
        ("the dump is core.9651, code 0x3A34.", {"core.9651", "0x3a34"}),
        (
            "ask db.internal.example or ana@example.org about user_id",
            {"db.internal.example", "ana@example.org", "user_id"},
        ),
        ("moved from 2026-01-02 to 12/03/2026 at 14:30", {"2026-01-02", "12/03/2026", "14:30"}),
        ("it cost €5, that is 15% of 1,000", {"5", "15", "1,000"}),
        ("we met Ana Souza and the OOM Killer", {"ana souza", "oom killer"}),
        ("ontem João da Silva falou do Banco do Brasil", {"joao da silva", "banco do brasil"}),
        ("вчера Анна Каренина была в Москве", {"анна каренина", "москве"}),
        ("χθες ο Γιώργος μίλησε", {"γιωργοσ"}),
        ("見た「東京タワー」と «Война и мир» and “the long way”", {"東京タワー", "воина и мир", "the long way"}),
        ("we flew to São Paulo, and Sao Paulo is MÜNCHEN GmbH's", {"sao paulo", "munchen gmbh"}),
        ("panic event 4, of 30 kg", {"4", "30"}),
        ("we saw Caroline's house", {"caroline"}),
        ("Caroline: hello there", {"caroline"}),
        ("Well, this is a well-known long-term plan. And/or so.", set()),
        ("Did Maria call?", {"maria"}),
        ("", set()),
    ],
)
def test_what_is_an_entity(text: str, expected: set[str]) -> None:
    assert set(extract_entities(text)) == expected


def test_a_companys_own_patterns_add_to_the_general_ones() -> None:
    patterns = [check_pattern(r"(?i)pedido \d+"), check_pattern("zz[a-z]+")]
    assert extract_entities("o pedido 7 e zzabc", patterns) == ("7", "pedido 7", "zzabc")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("(a", "RE2"),
        ("a*", "empty text"),
        ("", "empty text"),
        ("a" * 257, "256"),
        (r"(a)\1", "RE2"),
        ("(?=a)b", "RE2"),
        ("(a{1000}){1000}", "RE2"),
        ("a.{500}b", "4006 steps"),
        (r"(\w{1,60}){1,10}z", "steps"),
    ],
)
def test_a_bad_pattern_is_refused(bad: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_pattern(bad)


def test_own_patterns_are_looked_for_in_the_beginning_of_a_text() -> None:
    assert "zz1" in extract_entities("zz1 " + "a " * 4000, ["zz1"])
    assert extract_entities("a " * 4000 + "q q", ["q q"]) == ()


@given(NOISE)
def test_entities_are_sorted_bounded_and_in_normal_form(text: str) -> None:
    found = extract_entities(text)
    assert list(found) == sorted(set(found))
    assert len(found) <= MAX_ENTITIES
    assert all(name and name == normalise_entity(name) and len(name) <= MAX_ENTITY_CHARACTERS for name in found)


@given(st.text(max_size=200))
def test_both_normal_forms_give_the_same(text: str) -> None:
    assert extract_entities(unicodedata.normalize("NFD", text)) == extract_entities(unicodedata.normalize("NFC", text))


@given(NOISE)
def test_every_entity_stands_in_its_text(text: str) -> None:
    folded = " ".join(fold_accents(text).split())
    assert all(name in folded for name in extract_entities(text))


@pytest.mark.parametrize(
    "unit", ["a", "a-", '"', "A ", "Aa ", "“a", "A-", "0x", "A de ", "aB", "_", "1", "1,", "é́", "東", ". A"]
)
def test_hostile_text_of_32_kib_is_read_in_bounded_memory(unit: str) -> None:
    text = unit * (32 * 1024 // len(unit.encode()))
    assert len(extract_entities(text, ["a(.*b)?", "(a|aa)+c", "(a?){100}b"])) <= MAX_ENTITIES


def test_a_part_of_a_name_is_shared_and_mentioned_only_at_its_borders() -> None:
    asked = ("r17-m1", "ana", "souza", "r1", "m1-n", "given")
    assert count_shared(asked, [(frozenset({"given"}), "ana souza at r17-m1-n0"), (frozenset(), "none")]) == [4, 0]
    assert is_mentioned("r17-m1", ("r17-m1-n0",), "")
    assert is_mentioned("ana", (), "today ana came")
    assert not is_mentioned("ana", ("anabel",), "bananas, anagram")
    assert is_mentioned("ana", (), "banana, ana")


def test_matching_takes_whole_entities_only() -> None:
    assert matching(("subsystem-1", "a subsystem-1", "0x3a34", "0x3a345"), r"subsystem-\d+|0x[0-9a-f]{4}") == (
        "subsystem-1",
        "0x3a34",
    )
