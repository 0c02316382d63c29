"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_moving import *  # noqa: F403
