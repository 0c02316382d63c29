"""Do a company's indexes hold what its store says they hold?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muniment.actors.store.memory_store import Stored
from muniment.actors.tenant import Tenant
from muniment.policies.model import Tier


def differing(tenant: Tenant, stored: Sequence[Stored]) -> list[str]:
    """The ids of facts that a tier holds and the store does not, or the other way round, or otherwise than the store.

    ``stored``: what the store says is indexed, at the moment of the last change that ``tenant`` has applied.
    """
    wrong: set[str] = set()
    for tier in Tier:
        space = tenant.spaces[tier]
        wanted = {s.fact.id: s for s in stored if s.tier is tier}
        with space.positions.lock:
            held = {resident.fact.id: resident for resident in space.residents.values}
            wrong |= wanted.keys() ^ held.keys()
            wrong |= wanted.keys() ^ set(space.index.ids())
            for id in wanted.keys() & held.keys():
                row = np.frombuffer(wanted[id].vector, np.float32)
                same = held[id].fact == wanted[id].fact and held[id].vector == wanted[id].vector and id in space.index
                if not same or not np.allclose(space.index.vector(id), row / float(np.linalg.norm(row)), atol=1e-5):
                    wrong.add(id)
    return sorted(wrong)
