"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_memory_shard import *  # noqa: F403
