"""The tests of the same name, on PostgreSQL and over several nodes."""

from tests.cluster.test_client import *  # noqa: F403
