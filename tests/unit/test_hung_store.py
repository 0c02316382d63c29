"""A store that is there and does not answer: whoever needs it learns so, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from muniment.actors.store import reach
from muniment.actors.store.reach import in_thread
from muniment.cluster.effect_service import StoredClassifications
from muniment.policies.errors import StoreUnavailable

SECONDS_TO_WAIT = 30


class HungControl:
    """A control store on a server that hangs."""

    local = False

    def __init__(self) -> None:
        self.awake = threading.Event()

    def classification(self, company: str, tool: str) -> Any:
        assert self.awake.wait(SECONDS_TO_WAIT)


@pytest.fixture
def control() -> Iterator[HungControl]:
    made = HungControl()
    yield made
    made.awake.set()


def test_a_proposal_keeps_nobody_else_waiting_while_the_store_hangs(
    control: HungControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PATIENCE_SECONDS", 0.05)
    classification_of = StoredClassifications(control)  # type: ignore[arg-type]

    async def scenario() -> int:
        asked = asyncio.create_task(classification_of("acme", "mail"))
        turns = 0
        while not asked.done():
            turns += 1
            await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await asked
        with pytest.raises(StoreUnavailable):  # at once: it has just been asked
            await classification_of("acme", "mail")
        control.awake.set()
        return turns

    assert asyncio.run(scenario()) > 1


def test_what_is_read_in_a_thread_is_not_waited_for_for_ever(
    control: HungControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "ANSWER_SECONDS", 0.05)

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable):
            await in_thread(control.classification, "acme", "mail")
        control.awake.set()

    asyncio.run(scenario())
    assert asyncio.run(in_thread(lambda: "read")) == "read"
