"""The knee of a sweep, the slope of a series with its uncertainty, and when a service is itself again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.load.analysis import knee, recovered_after, slope


def point(offered: float, answered: float, p99_ms: float) -> dict[str, Any]:
    return {"offered_per_s": offered, "answered_per_s": answered, "p99_ms": p99_ms}


def test_the_knee_is_the_last_load_that_was_carried() -> None:
    points = [point(40, 30, 5_000), point(10, 10, 50), point(20, 19.8, 200), point(30, 30, 1_500)]
    assert knee(points, within_ms=1_000) == points[2]
    assert knee(points[:1], within_ms=1_000) is None
    assert knee([], within_ms=1_000) is None


def test_a_load_above_one_that_was_not_carried_is_no_knee() -> None:
    assert knee([point(10, 10, 50), point(20, 10, 50), point(30, 30, 50)], 1_000) == point(10, 10, 50)


def test_a_slope_is_found_within_its_uncertainty_and_flat_noise_is_flat() -> None:
    chance = random.Random(3)
    seconds = [float(n) for n in range(600)]
    noise = [chance.gauss(0, 5) for _ in seconds]
    rising = slope(seconds, [100 + 6 * s / 60 + n for s, n in zip(seconds, noise, strict=True)])
    flat = slope(seconds, [100 + n for n in noise])
    assert rising is not None
    assert flat is not None
    assert rising.per_minute == pytest.approx(6, abs=rising.uncertainty)
    assert rising.uncertainty < 1
    assert abs(flat.per_minute) <= 1.5 * flat.uncertainty
    assert slope([], []) is None
    assert slope(seconds[:30], noise[:30]) is None


def test_recovery_is_the_start_of_several_good_seconds() -> None:
    seconds = list(range(10))
    slow = [10, 10, 900, 900, 900, 50, 900, 20, 20, 20]
    assert recovered_after(seconds, slow, overload_ended=4, limit_ms=100) == 3
    assert recovered_after(seconds, slow, overload_ended=4, limit_ms=5) is None
