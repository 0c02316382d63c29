"""The wire and disk format: msgpack with a version in front, never pickle.

Datetimes travel as msgpack timestamps (aware, UTC, microseconds); enums as their strings; facts as flat dicts.
"""

from __future__ import annotations

import threading
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgpack

from muniment.policies.errors import CorruptData
from muniment.policies.model import Fact, Scope, Source, SourceKind, Status

FORMAT_VERSION = 1
_VERSION_BYTE = bytes([FORMAT_VERSION])


def _default(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no wire form")


class Packers(threading.local):
    """A packer for each thread: making one costs more than most packing."""

    def __init__(self, **options: Any) -> None:
        self._packer = msgpack.Packer(**options)

    def get(self) -> msgpack.Packer:
        """This thread's packer. What it could not pack leaves nothing in it."""
        return self._packer


_packers = Packers(datetime=True, default=_default, use_bin_type=True)


def pack(value: Any) -> bytes:
    """``value`` (dicts, lists, scalars, bytes, aware datetimes, enums) as versioned msgpack."""
    packed: bytes = _packers.get().pack(value)
    return _VERSION_BYTE + packed


def unpack(data: bytes) -> Any:
    """What ``pack`` packed; lists come back as lists, datetimes in UTC. Raises ``CorruptData``."""
    if data[:1] != _VERSION_BYTE:
        raise CorruptData(f"unknown format version {data[:1].hex() or 'none'}, this program reads {FORMAT_VERSION}")
    try:
        return msgpack.unpackb(memoryview(data)[1:], timestamp=3, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"not msgpack: {error}") from error


_SOURCE_FIELDS = tuple(f.name for f in fields(Source))
_FACT_FIELDS = tuple(f.name for f in fields(Fact))


def source_to_dict(source: Source) -> dict[str, Any]:
    """The source without what is empty."""
    values = ((name, getattr(source, name)) for name in _SOURCE_FIELDS)
    return {name: value for name, value in values if value not in (None, (), False)}


def source_from_dict(data: dict[str, Any]) -> Source:
    """The source that ``source_to_dict`` described."""
    data = dict(data, kind=SourceKind(data["kind"]))
    data["derived_from"] = tuple(data.get("derived_from", ()))
    return Source(**data)


def fact_to_dict(fact: Fact) -> dict[str, Any]:
    """The fact without what is empty; a value of ``False`` or 0 is not empty."""
    values = {name: getattr(fact, name) for name in _FACT_FIELDS}
    values["source"] = source_to_dict(fact.source)
    return {name: value for name, value in values.items() if value is not None and value not in ((), {})}


def fact_from_dict(data: dict[str, Any]) -> Fact:
    """The fact that ``fact_to_dict`` described."""
    data = dict(data)
    data["source"] = source_from_dict(data["source"])
    data["status"] = Status(data.get("status", Status.CURRENT))
    data["scope"] = Scope(data.get("scope", Scope.SHARED))
    for name in ("entities", "tags"):
        data[name] = tuple(data.get(name, ()))
    return Fact(**data)


def to_rfc3339(moment: datetime) -> str:
    """The moment as RFC 3339 in UTC with microseconds only where there are any, e.g. ``2026-01-02T03:04:05Z``."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
