"""SQLite finds no room on its disk: writes are refused as a whole, reads go on, and it heals when there is room."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from muniment.actors.dedupe_ledger import DedupeLedger
from muniment.actors.ledger_ops import Confirm, Propose, Token
from muniment.actors.store import effect_store
from muniment.actors.store.engine import open_engine, sqlite_url
from muniment.policies.errors import StoreUnavailable
from muniment.policies.fingerprint import effect_key, parse_key_paths
from tests.ledger_thread import LedgerThread
from tests.stores import Stores
from tests.unit.test_memory_shard import Bench, contact

NoRoom = Callable[[], AbstractContextManager[None]]
_MOST_PAGES = 1_073_741_823


def of_pages(engine: sa.Engine) -> NoRoom:
    """The database may have no more pages than it has: SQLite answers as for a full disk, and ends the transaction."""
    pages = [_MOST_PAGES]
    event.listen(engine, "begin", lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages[0]}"))

    @contextmanager
    def no_room() -> Iterator[None]:
        pages[0] = 1
        yield
        pages[0] = _MOST_PAGES

    return no_room


def of_files(engine: sa.Engine) -> NoRoom:
    """No file of this process may grow beyond a page: writing itself fails, as where a quota ends or a disk breaks."""

    @contextmanager
    def no_room() -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return no_room


LIMITS = pytest.mark.parametrize("limit", [of_pages, of_files])


@LIMITS
def test_a_shard_without_room_stores_nothing_answers_on_and_heals(
    tmp_path: Path, limit: Callable[[sa.Engine], NoRoom]
) -> None:
    bench = Bench(Stores(tmp_path))
    no_room = limit(bench.engine)

    async def scenario() -> None:
        await bench.tell(contact("Carla"), {"text": "the door code is 7"})
        large = [{"text": f"nobody will remember this {n} " + "x" * 2_000} for n in range(20)]
        with no_room():
            for facts in (large, large, [contact("Dana"), *large]):
                with pytest.raises(StoreUnavailable):
                    await bench.tell(*facts)
            assert "the door code is 7" in await bench.texts("door code")
        await bench.tell({"text": "this will be remembered"})
        assert "this will be remembered" in await bench.texts("remembered")
        assert not any("nobody" in text for text in await bench.texts("nobody remember", top_k=50))
        (best,) = (await bench.ask("contact of Aurora", top_k=1))["results"]
        assert best["fact"]["value"] == "Carla"
        assert (await bench.shard.verify())["wrong"] == []

    asyncio.run(scenario())
    bench.close()


@LIMITS
def test_a_ledger_without_room_confirms_nothing_and_heals(tmp_path: Path, limit: Callable[[sa.Engine], NoRoom]) -> None:
    engine = open_engine(sqlite_url(tmp_path / "effects.db"))
    no_room = limit(engine)
    ledger = LedgerThread(lambda: DedupeLedger(engine, "ledger-0"))
    answers = ledger.answers

    def proposal(number: int, run: str = "r1") -> Propose:
        key = effect_key(
            company="c", area="a", agent="b", tool="mail", paths=parse_key_paths(["/n"]), arguments={"n": number}
        )
        return Propose(key, "c", "a", "b", "mail", run, "s", "key:1", f"d_{run}_{number}", lease=600_000_000)

    (first,) = answers(proposal(0))
    confirm = Confirm("c", *Token.parse(first.token), "key:1")
    with no_room():
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                answers(confirm, *(proposal(number, run="x" * 2_000) for number in range(1, 50)))
    (second,) = answers(proposal(0, "r2"))
    assert second.verdict == "pending", "it was not confirmed while there was no room"
    (confirmed,) = answers(confirm)
    assert confirmed.state == "confirmed"
    found = answers(*(proposal(number, "r2") for number in range(3)))
    assert [one.verdict for one in found] == ["duplicate", "allow", "allow"]
    ledger.close()
    with engine.connect() as connection:
        assert effect_store.decision_log.verify(connection)[1] is None
    engine.dispose()
