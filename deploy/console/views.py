"""What the pages show, made from the API's answers: plain values for the templates, nothing of markup."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Answer = dict[str, Any]

_CHIP = 42
_STRIP_WIDTH, _LANE, _LABEL = 1000, 26, 210
_MAX_LANES = 24


def moment(text: str | None) -> datetime | None:
    """A time of an answer."""
    return None if text is None else datetime.fromisoformat(text)


def stamp(at: datetime) -> str:
    """A time for a person, in UTC: the date alone where the time is midnight."""
    at = at.astimezone(UTC)
    midnight = (at.hour, at.minute, at.second) == (0, 0, 0)
    return f"{at:%Y-%m-%d}" if midnight else f"{at:%Y-%m-%d %H:%M} UTC"


def chip(value: Any, yes: str = "true", no: str = "false") -> str:
    """A value short enough for a button."""
    text = shown(value, yes, no)
    flat = " ".join(text.split())
    return flat if len(flat) <= _CHIP else flat[: _CHIP - 1] + "…"


def quoted(value: Any, yes: str = "true", no: str = "false") -> str:
    """A short value in quotation marks, whatever the direction of its script (Unicode isolates)."""
    return f"“\u2068{chip(value, yes, no)}\u2069”"


def shown(value: Any, yes: str = "true", no: str = "false") -> str:
    """A value as text."""
    if isinstance(value, bool):
        return yes if value else no
    return value if isinstance(value, str) else json.dumps(value)


def is_number(value: Any) -> bool:
    """Whether the value is a JSON number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Entry:
    """One fact on a slot's timeline. ``state``: a status, or ``evidence``, ``ahead`` or ``aside`` (it never held)."""

    fact: Answer
    state: str
    starts: datetime
    ends: datetime | None


@dataclass(frozen=True, slots=True)
class Bar:
    """One lane of the strip: where the value held, in the strip's own units."""

    label: str
    title: str
    state: str
    x: float
    y: float
    width: float
    open_end: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """The drawn periods, earliest first, and the instant now on the same axis."""

    width: int
    height: int
    label_width: int
    bars: tuple[Bar, ...]
    now: float
    first: datetime
    last: datetime


def timeline(answer: Answer, now: datetime) -> list[Entry]:
    """The slot's facts in the order of the world, latest first. ``answer``: of ``GET /v1/facts``."""
    history = {fact["id"]: fact for fact in answer["history"]}
    for name in ("current", "shared"):
        fact = answer.get(name)
        if fact is not None:
            history.setdefault(fact["id"], fact)
    held = {fact["id"] for fact in (answer.get("current"), answer.get("shared")) if fact}
    entries = [_entry(fact, history, held, now) for fact in history.values()]
    return sorted(entries, key=lambda e: (e.starts, e.fact["recorded_at"], e.fact["id"]), reverse=True)


def _entry(fact: Answer, history: dict[str, Answer], held: set[str], now: datetime) -> Entry:
    starts = _starts(fact)
    ends = moment(fact.get("expires_at"))
    successor = history.get(fact.get("superseded_by") or "")
    if successor is not None:
        taken = _starts(successor)
        ends = min(ends, taken) if ends is not None else taken
    state = fact["status"]
    if state == "superseded" and (ends is None or ends <= starts):
        return Entry(fact, "aside", starts, None)
    if state == "current" and fact["id"] not in held:
        state = "ahead" if starts > now else "evidence"
    return Entry(fact, state, starts, ends)


def _starts(fact: Answer) -> datetime:
    found = moment(fact.get("effective_at") or fact["recorded_at"])
    assert found is not None, "every fact has the time it was recorded"
    return found


def strip(entries: list[Entry], now: datetime) -> Strip | None:
    """The periods as bars on one axis, or None where there is nothing to compare."""
    drawn = sorted(entries[:_MAX_LANES], key=lambda e: e.starts)
    if len(drawn) < 2:
        return None
    first = drawn[0].starts
    last = max(now, *(e.ends or e.starts for e in drawn))
    span = max((last - first).total_seconds(), 1.0)
    room = _STRIP_WIDTH - _LABEL

    def place(at: datetime) -> float:
        return _LABEL + room * min(max((at - first).total_seconds() / span, 0.0), 1.0)

    bars = []
    for lane, entry in enumerate(drawn):
        open_end = entry.ends is None and entry.state in ("current", "disputed", "evidence", "ahead")
        begins = place(entry.starts)
        # What never held is a mark at its date.
        ends = place(last) if open_end else place(max(entry.ends or entry.starts, entry.starts))
        title = f"{stamp(entry.starts)} – {'' if entry.ends is None else stamp(entry.ends)}"
        width = round(max(ends - begins, 4.0), 1)
        begins = round(min(begins, _STRIP_WIDTH - width), 1)
        bars.append(Bar(chip(entry.fact["value"])[:24], title, entry.state, begins, lane * _LANE, width, open_end))
    return Strip(_STRIP_WIDTH, len(drawn) * _LANE, _LABEL, tuple(bars), round(place(now), 1), first, last)


def weighed(inputs: Any) -> list[tuple[str, Answer]]:
    """The facts that a logged decision weighed, each with its side; empty where the entry holds none of that shape."""
    if not isinstance(inputs, dict):
        return []
    sides: list[tuple[str, Any]] = [("challenger", inputs.get("challenger"))]
    sides += [(side, fact) for side in ("incumbent", "evidence") for fact in _facts(inputs.get(_LISTS[side]))]
    sides += [("fact", fact) for fact in _facts(inputs.get("facts"))]
    return [(side, fact) for side, fact in sides if _is_weighed(fact)]


_LISTS = {"incumbent": "incumbents", "evidence": "evidence"}


def _facts(found: Any) -> list[Any]:
    return found[:20] if isinstance(found, list) else []


def _is_weighed(fact: Any) -> bool:
    names = ("value", "source", "rank", "effective_at", "recorded_at")
    return isinstance(fact, dict) and all(name in fact for name in names) and isinstance(fact["source"], dict)


def pretty(inputs: Any) -> str:
    """Logged inputs for reading."""
    return json.dumps(inputs, ensure_ascii=False, indent=2, default=str)
