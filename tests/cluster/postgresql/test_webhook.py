"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_webhook import *  # noqa: F403
