"""The services of memory and of conflicts over a real shard and store, for tests without Ray or a network."""

from __future__ import annotations

from typing import Any

from muniment.actors.store.policy_book import PolicyBook
from muniment.cluster.conflict_service import ConflictService
from muniment.cluster.memory_service import MemoryService
from muniment.cluster.record_service import RecordService
from muniment.policies.access import Principal, Role
from muniment.policies.model import SourceKind
from tests.stores import Stores
from tests.unit.test_memory_shard import Bench


class ServiceWorld(Bench):
    """A shard with its services, and who asks them."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        parts = (self.router, lambda _: self.shard, self.engine, PolicyBook(self.control), lambda: self.now)
        self.memory, self.conflicts_of = MemoryService(*parts), ConflictService(*parts)
        nobody: Any = None  # counts need the store alone
        self.records = RecordService([], self.engine, PolicyBook(self.control), nobody, nobody, nobody)

    @staticmethod
    def principal(actor: str = "root", *roles: str, **bound: Any) -> Principal:
        """Who may claim every kind of source, an admin unless told otherwise."""
        bound.setdefault("source_kinds", frozenset(SourceKind))
        granted = frozenset(map(Role, roles or ("admin",)))
        return Principal(company="acme", key_id="k", roles=granted, actor=actor, **bound)
