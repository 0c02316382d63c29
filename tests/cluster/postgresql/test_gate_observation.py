"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_gate_observation import *  # noqa: F403
