"""The tests of the same name, on PostgreSQL."""

from tests.unit.test_dedupe_ledger import *  # noqa: F403
