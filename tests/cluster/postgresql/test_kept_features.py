"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_kept_features import *  # noqa: F403
