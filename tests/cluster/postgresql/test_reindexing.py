"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_reindexing import *  # noqa: F403
