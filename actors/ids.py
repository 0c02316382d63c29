"""Identifiers that sort by time: what was made later is larger, and an index appends instead of scattering."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta


def new_id(prefix: str, now: datetime) -> str:
    """``prefix_`` + 14 hex digits of microseconds since the epoch + 18 random hex digits (72 bits)."""
    return f"{prefix}_{int(now.timestamp()) * 1_000_000 + now.microsecond:014x}{os.urandom(9).hex()}"


def time_of(id: str) -> datetime:
    """When an id was made, to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(id.partition("_")[2][:14], 16))
