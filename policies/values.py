"""When two values are the same value: normalisation by JSON type, and comparators that a field's policy may name.

A value becomes a *value key*: a string that is equal exactly where the values are equal. It serves as an index key.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from muniment.policies.model import Scalar, fold, nfc

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?")


class Comparator(StrEnum):
    """How a field's values compare.

    ``text``: NFC, trimmed, case-folded. ``exact``: NFC, otherwise as written, and 1, 1.0, "1" and true all differ.
    ``number``: also numeric text as a number. ``instant``: text as a moment in time (RFC 3339, with its offset).
    """

    TEXT = "text"
    EXACT = "exact"
    NUMBER = "number"
    INSTANT = "instant"


def sentence(subject: str | None, field: str | None, value: Scalar) -> str:
    """The text of a value that was given without one, as JSON would write it: ``Aurora: active = true``."""
    return f"{subject}: {field} = {value if isinstance(value, str) else json.dumps(value)}"


def value_key(value: Scalar, comparator: Comparator | None = None) -> str:
    """The string in which equal values are equal.

    Without a comparator: text that is a complete RFC 3339 moment as an instant, other text case-folded, numbers as
    numbers, and a boolean only as itself (true is not 1). What a comparator cannot read falls back to this.
    """
    if isinstance(value, bool):
        text = "true" if value else "false"
        return f"text:{text}" if comparator is Comparator.TEXT else f"bool:{text}"
    if comparator is Comparator.EXACT:
        return f"{type(value).__name__}:{nfc(value) if isinstance(value, str) else _number(value)}"
    if comparator is Comparator.TEXT:
        return f"text:{fold(_as_text(value))}"
    if isinstance(value, (int, float)):
        return _number_key(_number(value))
    stripped = value.strip()
    if comparator is Comparator.NUMBER and _NUMBER.fullmatch(stripped):
        number = _decimal(stripped)
        if number is not None:
            return _number_key(number)
    instant = _instant(stripped)
    return f"instant:{instant.isoformat()}" if instant is not None else f"text:{fold(value)}"


def same_value(left: Scalar, right: Scalar, comparator: Comparator | None = None) -> bool:
    """Whether the two are one value for this comparator."""
    return value_key(left, comparator) == value_key(right, comparator)


def _as_text(value: str | int | float) -> str:
    if isinstance(value, str):
        return value
    return format(_number(int(value) if isinstance(value, float) and value.is_integer() else value), "f")


def _number(value: int | float) -> Decimal:
    # The shortest decimal that is this float, so that 0.1 is 0.1; an integer of any length exactly.
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _number_key(number: Decimal) -> str:
    # Decimal.normalize() would round to the context's precision; the digits are compared as they are.
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return "number:0"
    return f"number:{'-' if sign else ''}{significant}e{int(exponent) + len(text) - len(significant)}"


def _instant(text: str) -> datetime | None:
    if not _INSTANT.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
