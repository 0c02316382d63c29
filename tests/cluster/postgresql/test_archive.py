"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_archive import *  # noqa: F403
