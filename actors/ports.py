"""What the parts ask of each other: each is met by the plain body, and by a handle to the Ray actor around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Record = dict[str, Any]


class Workers(Protocol):
    """One model worker or a pool of them; see ``model_worker.ModelWorker``."""

    async def embed(self, texts: Sequence[str], priority: int) -> bytes: ...

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]: ...

    async def describe(self) -> Record: ...


class Shard(Protocol):
    """The memory shard of a company; see ``memory_shard.MemoryShard``."""

    async def remember(self, **arguments: Any) -> Record: ...

    async def recall(self, **arguments: Any) -> Record: ...
