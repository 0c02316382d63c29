from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.deploy.bodies import parse_json
from muniment.policies.errors import MalformedBody


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b"\xff\xfe", b'{"facts": "\xc3"}', b"[" * 100_000, b'{"a":' * 100_000,
        b"[" * 65 + b"]" * 65, b'{"a": 1, "a": 2}', b'{"facts": [{"text": "a", "text": "b"}]}', b"{} {}", b"\x00",
        b'"' + b'\\"' * 500_000, b'["' + b"\\", "{}".encode("utf-16"), b'{"a": 01}', b"'a'", b'{"a": .5}',
        b'{"a": "\n"}', b'["\\x"]', b"\xef\xbb\xbf{}",
    ],
)  # fmt: skip
def test_what_is_not_json(body):
    with pytest.raises(MalformedBody):
        parse_json(body)


def test_the_error_says_where():
    with pytest.raises(MalformedBody, match="line 2, column 3"):
        parse_json(b'{"a": 1,\n  b}')
    with pytest.raises(MalformedBody, match="byte 2"):
        parse_json(b'["\xff"]')
    with pytest.raises(MalformedBody, match="'text' twice"):
        parse_json(b'{"text": 1, "text": 1}')


def test_nesting_is_counted_outside_of_strings():
    for text in ("[" * 100, '"' + "{" * 100, "\\" + "[" * 100 + "\\", '\\"' * 100 + "[[["):
        body = [[], {"a": text, text: [text]}] * 40
        assert parse_json(json.dumps(body).encode()) == body
    assert parse_json(b"[" * 64 + b"]" * 64) is not None


def test_numbers():
    assert math.isnan(parse_json(b"NaN"))
    assert parse_json(b"[1e999, -Infinity]") == [math.inf, -math.inf]
    assert parse_json(b"18446744073709551616") == 2**64


@pytest.mark.parametrize("digits", ["1" + "0" * 30, "-" + "9" * 30, "9" * 5000])
def test_an_integer_too_long_for_any_field_stays_an_integer_too_large(digits):
    """As a float it would be a number that nobody wrote, and a field that takes floats would keep it."""
    found = parse_json(digits.encode())
    assert type(found) is int
    assert abs(found) > 2**64
    assert (found < 0) is digits.startswith("-")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@given(VALUES, st.booleans())
def test_json_is_read_as_it_was_written(value, ascii_only):
    def readable(found: Any) -> Any:
        return json.loads(json.dumps(found))

    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        body = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can say
        body = json.dumps(value).encode()
    assert parse_json(body) == readable(value)


@given(st.binary(max_size=300) | st.text('[]{}"\\,:1 ', max_size=300).map(str.encode))
def test_any_bytes_are_read_or_refused(body):
    try:
        expected = json.loads(body.decode())
    except (UnicodeDecodeError, ValueError, RecursionError):
        with pytest.raises(MalformedBody):
            parse_json(body)
        return
    try:
        found = parse_json(body)
    except MalformedBody as error:
        assert "nested" in error.detail or "twice" in error.detail  # noqa: PT017
    else:
        assert found == expected or found != found
