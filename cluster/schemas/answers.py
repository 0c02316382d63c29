"""Facts and sources as the API answers them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from muniment.actors.wire import fact_to_dict, source_to_dict, to_rfc3339
from muniment.policies.model import Fact, Source

_INTERNAL = ("company", "writer", "corroborates")


def source_out(source: Source) -> dict[str, Any]:
    """``Source`` of API.md, without what is empty."""
    return {**source_to_dict(source), "kind": source.kind.value}


def fact_out(fact: Fact, owner: str | None, evidence: Iterable[Source] = ()) -> dict[str, Any]:
    """``FactOut`` of API.md: plain JSON, times in RFC 3339, without what is empty (``evidence`` is always there)."""
    answer = {
        name: to_rfc3339(value) if isinstance(value, datetime) else value
        for name, value in fact_to_dict(fact).items()
        if name not in _INTERNAL
    }
    answer |= {"status": fact.status.value, "scope": fact.scope.value, "source": source_out(fact.source)}
    for name in ("entities", "tags"):
        if name in answer:
            answer[name] = list(answer[name])
    if owner is not None:
        answer["owner"] = owner
    answer["evidence"] = [source_out(source) for source in evidence]
    return answer
