"""What gauges show of the stores, on PostgreSQL."""

from tests.unit.test_metrics import (  # noqa: F401
    seen,
    test_open_conflicts_are_counted_by_age_and_those_overdue_beside,
    test_what_is_held_is_read_from_the_store,
)
