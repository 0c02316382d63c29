"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_shard_conflicts import *  # noqa: F403
