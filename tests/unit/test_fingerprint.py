"""Semantic keys: seed 001, RFC 6901, RFC 8785, rules 10 and 11."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.errors import InvalidInput, MissingKeyPath
from muniment.policies.fingerprint import (
    KEY_BYTES,
    KEY_VERSION,
    KeyPath,
    company_prefix,
    effect_key,
    key_partition,
    parse_key_path,
    parse_key_paths,
    route_partition,
)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = text | numbers | st.booleans()
nfc_names = text.map(lambda t: unicodedata.normalize("NFC", t))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(nfc_names, inner, max_size=4), max_leaves=8
)
SCOPE = {"company": "acme", "area": "ops", "agent": "triage", "tool": "github.create_issue"}


def key(arguments: dict[str, Any], *paths: str, **scope: str) -> bytes:
    return effect_key(**{**SCOPE, **scope}, paths=parse_key_paths(paths), arguments=arguments)


@pytest.mark.parametrize(
    ("written", "tokens", "pointer"),
    [
        ("/owner", ("owner",), "/owner"),
        ("owner", ("owner",), "/owner"),
        ("owner.name", ("owner", "name"), "/owner/name"),
        ("/a~1b/m~0n", ("a/b", "m~n"), "/a~1b/m~0n"),
        ("/~01", ("~1",), "/~01"),
        ("/", ("",), "/"),
        ("/items/0/id", ("items", "0", "id"), "/items/0/id"),
        ("e\u0301t\u00e9", ("\u00e9t\u00e9",), "/\u00e9t\u00e9"),
    ],
)
def test_paths_are_read_and_written(written: str, tokens: tuple[str, ...], pointer: str) -> None:
    path = parse_key_path(written)
    assert path == KeyPath(tokens)
    assert path.pointer == pointer
    assert parse_key_path(path.pointer) == path


@pytest.mark.parametrize("written", ["", "a..b", ".a", "a/b", "/a~2", "/a~", "/" + "x" * 600])
def test_a_wrong_path_is_named(written: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_key_paths(["/fine", written])
    assert caught.value.fields["errors"][0]["pointer"] == "/key_paths/1"


def test_paths_are_bounded_and_not_repeated() -> None:
    for wrong in ([], [f"/p{i}" for i in range(33)], ["/a", "a"]):
        with pytest.raises(InvalidInput):
            parse_key_paths(wrong)


@given(st.lists(text, min_size=1, max_size=5))
def test_any_tokens_survive_the_pointer(tokens: list[str]) -> None:
    path = KeyPath(tuple(unicodedata.normalize("NFC", token) for token in tokens))
    assert parse_key_path(path.pointer) == path


@given(st.dictionaries(nfc_names, values, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_names_is_no_part_of_a_key(arguments: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(name, shuffled(item)) for name, item in value.items()]
            random.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    paths = [KeyPath((name,)).pointer for name in arguments]
    backwards = list(reversed(paths))
    assert key(arguments, *paths) == key(shuffled(arguments), *backwards)


@given(values, values)
def test_keys_are_equal_exactly_where_values_are(a: Any, b: Any) -> None:
    def shape(value: Any) -> Any:
        """Equality of JSON values: by type, numbers by value, text by NFC."""
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, (int, float)):
            return ("number", float(value))
        if isinstance(value, str):
            return ("text", unicodedata.normalize("NFC", value))
        if isinstance(value, list):
            return ("list", tuple(shape(item) for item in value))
        return ("object", frozenset((name, shape(item)) for name, item in value.items()))

    assert (key({"v": a}, "/v") == key({"v": b}, "/v")) == (shape(a) == shape(b))
    assert key({"v": a}, "/v") == key(json.loads(json.dumps({"v": a})), "/v")


@given(st.dictionaries(nfc_names, values, min_size=1, max_size=4))
def test_a_key_is_the_hash_of_the_canonical_form(arguments: dict[str, Any]) -> None:
    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return unicodedata.normalize("NFC", value)
        if isinstance(value, dict):
            return {name: clean(item) for name, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    paths = [KeyPath((name,)).pointer for name in arguments]
    canonical = rfc8785.dumps({**SCOPE, "values": dict(zip(paths, map(clean, arguments.values()), strict=True))})
    assert key(arguments, *paths) == company_prefix("acme") + hashlib.sha256(canonical).digest()


def test_one_and_one_point_zero_and_the_text() -> None:
    assert key({"n": 1}, "/n") == key({"n": 1.0}, "/n")
    assert len({key({"n": n}, "/n") for n in (1, "1", True, [1], 1.5)}) == 5
    assert key({"n": 0.0}, "/n") == key({"n": -0.0}, "/n")
    assert key({"n": "e\u0301"}, "/n") == key({"n": "\u00e9"}, "/n")
    assert key({"e\u0301": 1}, "/\u00e9") == key({"\u00e9": 1}, "/e\u0301")


@given(st.dictionaries(text, values, max_size=4), text)
def test_what_lies_outside_the_paths_does_not_count(noise: dict[str, Any], trace_id: str) -> None:
    noisy = {**noise, "trace_id": trace_id, "owner": "o"}
    assert key(noisy, "/owner") == key({"owner": "o"}, "/owner")


@pytest.mark.parametrize("part", ["company", "area", "agent", "tool"])
@given(other=text)
def test_every_part_of_the_scope_counts(part: str, other: str) -> None:
    same = unicodedata.normalize("NFC", other) == SCOPE[part]
    assert (key({"a": 1}, "/a") == key({"a": 1}, "/a", **{part: other})) == same


def test_parts_cannot_run_into_each_other() -> None:
    assert key({"a": 1}, "/a", area="xy", agent="z") != key({"a": 1}, "/a", area="x", agent="yz")
    assert key({"a": "1", "b": "2"}, "/a", "/b") != key({"a": "2", "b": "1"}, "/a", "/b")
    assert key({"a": 1, "b": 1}, "/a") != key({"a": 1, "b": 1}, "/b")


@pytest.mark.parametrize(
    ("arguments", "path", "pointer"),
    [
        ({}, "/owner", "/arguments/owner"),
        ({"owner": None}, "/owner", "/arguments/owner"),
        ({"owner": {"name": None}}, "owner.name", "/arguments/owner/name"),
        ({"owner": "text"}, "owner.name", "/arguments/owner/name"),
        ({"items": [1]}, "/items/1", "/arguments/items/1"),
        ({"items": [1]}, "/items/-", "/arguments/items/-"),
        ({"items": [1, 2]}, "/items/01", "/arguments/items/01"),
        ({"a/b": None}, "/a~1b", "/arguments/a~1b"),
    ],
)
def test_an_absent_path_is_an_error(arguments: dict[str, Any], path: str, pointer: str) -> None:
    with pytest.raises(MissingKeyPath) as caught:
        key(arguments, path)
    assert caught.value.fields["errors"][0]["pointer"] == pointer


def test_empty_values_are_values() -> None:
    assert len({key({"v": v}, "/v") for v in ("", 0, False, [], {}, [None])}) == 6


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (2**53, "/arguments/v"),
        (-(2**53), "/arguments/v"),
        ([float("nan")], "/arguments/v/0"),
        ({"x": float("inf")}, "/arguments/v/x"),
        ("\ud800", "/arguments/v"),
        ("a\x00b", "/arguments/v"),
        ({"\ud800": 1}, "/arguments/v"),
        ({"e\u0301": 1, "\u00e9": 2}, "/arguments/v"),
        (b"bytes", "/arguments/v"),
        ({1: 2}, "/arguments/v"),
    ],
)
def test_what_has_no_canonical_form_is_refused(value: Any, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        key({"v": value}, "/v")
    assert caught.value.fields["errors"][0]["pointer"] == pointer


def test_deep_nesting_is_refused_and_an_ambiguous_name_too() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    with pytest.raises(InvalidInput):
        key({"v": deep}, "/v")
    with pytest.raises(InvalidInput):
        key({"e\u0301": 1, "\u00e9": 2}, "/\u00e9")
    with pytest.raises(InvalidInput):
        effect_key(**SCOPE, paths=(), arguments={})


def test_the_form_of_a_key() -> None:
    made = key({"a": 1}, "/a")
    assert len(made) == KEY_BYTES
    assert made[0] == KEY_VERSION
    assert made.startswith(company_prefix("acme"))
    assert not made.startswith(company_prefix("other"))
    # A stored key must be found again by every later version of this program.
    assert made.hex() == PINNED


PINNED = "01822b33ad87c148a0079965036d9cb11320084a69ed5b4f1f8a9a143a491dad7b3c4f6375551591a7"


def test_partitions_are_spread() -> None:
    partitions = [key_partition(key({"a": i}, "/a")) for i in range(4000)]
    assert set(partitions) == set(range(256))
    assert len({route_partition("acme", f"run-{i}") for i in range(4000)}) == 256
