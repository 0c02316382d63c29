"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_shard_policy import *  # noqa: F403
