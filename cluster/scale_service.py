"""The operator's verbs of size: how many Ray actors there are, and which companies have a place of their own."""

from __future__ import annotations

from typing import Any

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.reach import in_thread
from muniment.cluster.scaler import Scaler
from muniment.cluster.schemas import PlaceRequest, ScaleRequest
from muniment.policies.access import Permission, Principal, require
from muniment.policies.errors import NotFound, StateConflict
from muniment.policies.partitioning import Kind

Answer = dict[str, Any]


class ScaleService:
    """Says what is wanted; the service's ``scaler`` does it."""

    def __init__(self, scaler: Scaler, control: ControlStore) -> None:
        self.scaler = scaler
        self._control = control

    async def scale(self, principal: Principal, request: ScaleRequest) -> Answer:
        """Says how many there are to be from now on, also after a restart; how far it is. Repeating it changes
        nothing."""
        require(principal, Permission.OPERATE)
        asked: dict[Kind, int | None] = {
            "shard": request.shards,
            "ledger": request.ledgers,
            "worker": request.workers,
        }
        wanted = {kind: count for kind, count in asked.items() if count is not None}
        if max(wanted.get("shard", 1), wanted.get("ledger", 1)) > 1:
            self._require_shared_store()
        await in_thread(self._want, wanted, principal.actor)
        return await self.scaling(principal)

    def _want(self, wanted: dict[Kind, int], actor: str) -> None:
        before = self.scaler.roles()
        changed = {kind: count for kind, count in wanted.items() if before[kind].wanted != count}
        if changed:
            self._control.record("scale", "wanted", actor, {f"{kind}s": count for kind, count in changed.items()})
            self.scaler.want(changed)

    async def scaling(self, principal: Principal) -> Answer:
        """How far it is: for each kind what is wanted and what there is, and ``done``."""
        require(principal, Permission.OPERATE)
        return await in_thread(self.scaler.state)

    async def place(self, principal: Principal, company: str, request: PlaceRequest) -> Answer:
        """Says whether a company is never unloaded, and whether it has a shard of its own."""
        require(principal, Permission.OPERATE)
        if request.own_shard:
            self._require_shared_store()
        return await in_thread(self._place, company, request, principal.actor)

    def _place(self, company: str, request: PlaceRequest, actor: str) -> Answer:
        if not self._control.has_company(company):
            raise NotFound("there is no such company")
        asked = request.model_dump(exclude_none=True)
        self._control.record("scale", "placed", actor, {"company": company, **asked})
        placed = self.scaler.place(company, request.pinned, request.own_shard)
        return {"company": company, "pinned": company in placed.pinned, "own_shard": company in placed.to_be_apart}

    def _require_shared_store(self) -> None:
        if self._control.local:
            raise StateConflict("SQLite allows one shard and one ledger; store.url (PostgreSQL) allows more")

    async def erase_company(self, company: str) -> dict[str, int]:
        """An erased company has no place of its own."""
        roles = await in_thread(self.scaler.roles)
        if company in roles["shard"].map.pinned | roles["shard"].map.to_be_apart:
            await in_thread(self.scaler.place, company, False, False)
        return {}

    async def remaining_of(self, company: str) -> int:
        """No rows are kept."""
        return 0
