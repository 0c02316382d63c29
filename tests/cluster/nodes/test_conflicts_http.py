"""The tests of the same name, on PostgreSQL and over several nodes."""

from tests.cluster.test_conflicts_http import *  # noqa: F403
