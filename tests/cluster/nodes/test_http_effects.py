"""The tests of the same name, on PostgreSQL and over several nodes."""

from tests.cluster.test_http_effects import *  # noqa: F403
