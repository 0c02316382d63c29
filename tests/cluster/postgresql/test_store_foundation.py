"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_store_foundation import *  # noqa: F403
