"""How long the fault tests run, and from which seed: ``FAULT_ROUNDS`` and ``FAULT_SEED`` in the environment."""

from __future__ import annotations

import os
import random


def rounds(usual: int) -> int:
    """How often a test goes through its faults."""
    return int(os.environ.get("FAULT_ROUNDS", "0")) or usual


def seed() -> int:
    """A new seed, printed, or the one to be repeated."""
    chosen = int(os.environ.get("FAULT_SEED", "0")) or random.randrange(1, 10**6)
    print(f"FAULT_SEED={chosen}", flush=True)
    return chosen
