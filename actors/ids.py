"""Identifiers that sort by time: what was made later is larger, and an index appends instead of scattering."""

from __future__ import annotations

import os
from datetime import datetime


def new_id(prefix: str, now: datetime) -> str:
    """``prefix_`` + 12 hex digits of milliseconds + 20 random hex digits (80 bits)."""
    return f"{prefix}_{int(now.timestamp() * 1000):012x}{os.urandom(10).hex()}"
