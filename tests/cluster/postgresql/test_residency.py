"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_residency import *  # noqa: F403
