from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.errors import InvalidInput
from muniment.policies.terms import (
    MAX_TERM_CHARACTERS,
    MAX_TERMS,
    check_languages,
    fact_terms,
    fold_accents,
    language_of,
    query_terms,
    terms,
)


def test_a_shorter_name_is_found_inside_a_longer_one() -> None:
    fact = set(fact_terms("- R17-M1-N0-C:J12-U11 RAS KERNEL INFO"))
    assert set(query_terms("what about R17-M1?")) - {"what", "about"} <= fact
    assert "r17-m0" not in fact
    assert set(fact_terms("core.9651")) == {"core", "9651", "core-9651"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user_id", ["user", "id", "user-id"]),
        ("getUserName", ["getusernam", "get", "user", "name", "get-user", "user-name", "get-user-name"]),
        ("HTTPServer", ["httpserver", "http", "server", "http-server"]),
        ("URLs", ["url"]),
        ("0x3A34", ["0x3a34"]),
        ("0xDEADBEEF", ["0xdeadbeef"]),
        ("1,000", ["1", "000", "1-000", "1000"]),
        ("Caroline's", ["carolin"]),
        ("東京", ["東", "京", "東京"]),
        ("हिन्दी", ["हिन्दी"]),
        ("so 😀!", ["so", "😀"]),
        ("", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text, "en") == expected


@pytest.mark.parametrize(
    "words",
    [
        "reunião reuniões reuniao reunioes REUNIÕES",
        "organização organizações organizar",
        "ação ações acao",
        "cidadão cidadãos",
        "contrato contratos",
    ],
)
def test_portuguese_forms_of_one_word_meet(words: str) -> None:
    assert len(set(terms(words, "pt"))) == 1


def test_english_forms_of_one_word_meet() -> None:
    assert len(set(terms("painting paintings painted paint", "en"))) == 1


def test_accents_are_folded_and_letters_are_not() -> None:
    assert fold_accents("Ångström Ναί Ёлка café") == "angstrom ναι елка cafe"
    assert fold_accents("हिन्दी") == "हिन्दी"
    assert fold_accents("ﬁn ①") == "fin 1"


def test_stop_words_leave_queries_but_not_alone() -> None:
    assert query_terms("who is the owner of the R2") == ["owner", "r2"]
    assert query_terms("who are you") == ["who", "are", "you"]


def test_an_unknown_language_is_named() -> None:
    assert check_languages(["pt"]) == ("pt",)
    with pytest.raises(InvalidInput, match="klingon"):
        check_languages(["en", "klingon"])
    with pytest.raises(InvalidInput, match="at least one"):
        check_languages([])


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("A reunião com a Aurora foi adiada para terça", "pt"),
        ("Reuniões adiadas", "pt"),
        ("O contrato da empresa", "pt"),
        ("The meeting with Aurora was moved", "en"),
        ("R17-M1 parity error", "en"),
        ("", "en"),
    ],
)
def test_a_text_tells_its_language(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize(("language", "text"), [("ru", "Договоры подписаны"), ("el", "Οι συμφωνίες"), ("ar", "العقود")])
def test_a_script_tells_the_language_where_one_alone_is_written_in_it(language: str, text: str) -> None:
    assert language_of(text, ("en", language)) == language


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("0xDEADBEEF", "0xdeadbeef"),
        ("0XFF00", "0xFF00"),
        ("iPhone15Pro", "IPHONE15PRO"),
        ("camelCaseName", "camelcasename"),
    ],
)
def test_a_name_is_found_however_it_is_written(name: str, written: str) -> None:
    others = set(fact_terms("0xCAFEBABE overflowed, MacBookAir"))
    assert set(query_terms(written)) & set(fact_terms(name))
    assert not set(query_terms(name)) & others


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("reunião", "As reuniões de terça foram adiadas"),
        ("reuniões", "Reunião adiada"),
        ("reunioes", "A reunião foi adiada"),
        ("contratos", "O contrato da empresa venceu"),
        ("paintings", "She has painted since May"),
        ("quais organizações?", "A organização do evento"),
    ],
)
def test_a_query_meets_a_fact_in_either_language(query: str, fact: str) -> None:
    assert set(query_terms(query)) & set(fact_terms(fact))


@given(st.text(max_size=200), st.sampled_from(["en", "pt", "ru"]))
def test_terms_are_bounded_and_the_same_in_both_normal_forms(text: str, language: str) -> None:
    found = terms(text, language)
    assert all(0 < len(term) <= MAX_TERM_CHARACTERS for term in found)
    assert found == terms(unicodedata.normalize("NFD", text), language)
    assert set(query_terms(text, [language])) <= set(found)


@given(st.text(alphabet="abcABC-_.1 é", max_size=100))
def test_case_does_not_matter_except_in_camel_case(text: str) -> None:
    assert terms(text.lower(), "en") == terms(text.lower().upper(), "en")


@pytest.mark.parametrize("unit", ["a", "a-", "aB", "_", "é́", "東", "1,", "a b ", "😀"])
def test_hostile_text_of_32_kib(unit: str) -> None:
    found = fact_terms(unit * (32 * 1024 // len(unit.encode())))
    assert len(found) <= MAX_TERMS
