"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_control_store import *  # noqa: F403
