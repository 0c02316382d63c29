"""Coalescing: what joins a batch, its bounds, errors, callers that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from muniment.cluster.coalescer import Coalescer
from muniment.policies.errors import NotFound, Overloaded, Unavailable


class Line:
    """Keeps the batches; each ``send`` waits until it is let through."""

    def __init__(self, **options: Any) -> None:
        self.batches: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.coalescer: Coalescer[Any] = Coalescer(self.send, **options)

    async def send(self, items: list[bytes]) -> Sequence[Any]:
        self.batches.append(items)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [NotFound(item.decode()) if item == b"bad" else item.upper() for item in items]

    async def started(self, batches: int) -> None:
        while len(self.batches) < batches:
            await asyncio.sleep(0)


def test_what_comes_while_a_batch_is_under_way_goes_into_the_next() -> None:
    async def main() -> None:
        line = Line()
        first = [asyncio.ensure_future(line.coalescer.submit(item)) for item in (b"a", b"b")]
        await line.started(1)
        later = [asyncio.ensure_future(line.coalescer.submit(item)) for item in (b"c", b"d", b"e")]
        await asyncio.sleep(0)
        assert line.batches == [[b"a", b"b"]]
        line.gate.set()
        assert await asyncio.gather(*first, *later) == [b"A", b"B", b"C", b"D", b"E"]
        assert line.batches == [[b"a", b"b"], [b"c", b"d", b"e"]]
        assert await line.coalescer.submit(b"f") == b"F"

    asyncio.run(main())


def test_batches_are_bounded_in_number_and_size_and_a_giant_goes_alone() -> None:
    async def main() -> None:
        line = Line(max_items=3, max_bytes=10)
        line.gate.set()
        items = [b"1", b"2", b"3", b"4", b"x" * 7, b"y" * 30, b"z"]
        await asyncio.gather(*(line.coalescer.submit(item) for item in items))
        assert line.batches == [[b"1", b"2", b"3"], [b"4", b"x" * 7], [b"y" * 30], [b"z"]]

    asyncio.run(main())


def test_an_error_of_one_item_is_its_own_and_one_of_the_batch_is_everybodys() -> None:
    async def main() -> None:
        line = Line()
        line.gate.set()
        good, bad = await asyncio.gather(
            line.coalescer.submit(b"good"), line.coalescer.submit(b"bad"), return_exceptions=True
        )
        assert good == b"GOOD"
        assert isinstance(bad, NotFound)
        line.error = Unavailable("down")
        answers = await asyncio.gather(line.coalescer.submit(b"x"), line.coalescer.submit(b"y"), return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        line.error = None
        assert await line.coalescer.submit(b"z") == b"Z"

    asyncio.run(main())


def test_a_cancelled_caller_takes_its_item_back_or_leaves_an_orphan() -> None:
    async def main() -> None:
        orphans: list[tuple[bytes, Any]] = []
        line = Line(on_orphan=lambda item, result: orphans.append((item, result)))
        under_way = asyncio.ensure_future(line.coalescer.submit(b"under way"))
        await line.started(1)
        waits, stays = (asyncio.ensure_future(line.coalescer.submit(item)) for item in (b"waits", b"stays"))
        await asyncio.sleep(0)
        under_way.cancel()
        waits.cancel()
        await asyncio.sleep(0)
        line.gate.set()
        assert await stays == b"STAYS"
        assert line.batches == [[b"under way"], [b"stays"]]
        assert orphans == [(b"under way", b"UNDER WAY")]

    asyncio.run(main())


def test_a_full_queue_refuses() -> None:
    async def main() -> None:
        line = Line(max_waiting=2)
        tasks = [asyncio.ensure_future(line.coalescer.submit(b"x"))]
        await line.started(1)
        tasks += [asyncio.ensure_future(line.coalescer.submit(b"x")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await line.coalescer.submit(b"x")
        line.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_many_items_are_shared_by_the_batches_that_may_be_under_way_and_few_are_not() -> None:
    async def main() -> None:
        line = Line(max_under_way=2)
        many = [asyncio.ensure_future(line.coalescer.submit(b"%d" % number)) for number in range(50)]
        await line.started(2)
        later = [asyncio.ensure_future(line.coalescer.submit(b"later"))]
        await asyncio.sleep(0)
        assert [len(batch) for batch in line.batches] == [25, 25]
        line.gate.set()
        await asyncio.gather(*many, *later)
        few = [line.coalescer.submit(b"few") for _ in range(16)]
        await asyncio.gather(*few)
        assert [len(batch) for batch in line.batches] == [25, 25, 1, 16]

    asyncio.run(main())


def test_the_next_batch_leaves_before_those_who_got_an_answer_go_on() -> None:
    async def main() -> None:
        line = Line()
        happened: list[str] = []

        async def ask(item: bytes) -> None:
            await line.coalescer.submit(item)
            happened.append(f"answer of {item.decode()}, {len(line.batches)} left")

        asked = [asyncio.ensure_future(ask(b"a"))]
        await line.started(1)
        asked.append(asyncio.ensure_future(ask(b"b")))
        await asyncio.sleep(0)
        line.gate.set()
        await asyncio.gather(*asked)
        assert happened[0] == "answer of a, 2 left"

    asyncio.run(main())
