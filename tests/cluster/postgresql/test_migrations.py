"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_migrations import *  # noqa: F403
