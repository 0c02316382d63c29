"""When requests are due, in seconds from the start, decided before anything is sent: an open loop.

A server that is slow does not slow the arrivals, as people who do not know of each other would not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator


def constant(rate: float, seconds: float) -> Iterator[float]:
    """One every ``1 / rate`` seconds."""
    for number in range(round(rate * seconds)):
        yield number / rate


def poisson(rate: float, seconds: float, chance: random.Random) -> Iterator[float]:
    """Independent of each other, ``rate`` a second on average."""
    due = chance.expovariate(rate)
    while due < seconds:
        yield due
        due += chance.expovariate(rate)


def bursts(
    rate: float, seconds: float, chance: random.Random, period: float = 10.0, on: float = 0.2
) -> Iterator[float]:
    """Poisson arrivals crowded into the first part (``on``) of each period: ``rate`` on average, ``rate / on`` then."""
    length = period * on
    for busy in poisson(rate / on, seconds * on, chance):
        yield busy // length * period + busy % length
