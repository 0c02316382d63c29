"""What was found in a fact is kept beside it, used where it is what would be found now, and found anew elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors import kept_features
from muniment.actors.store import memory_tables as t
from muniment.policies import extraction
from muniment.policies.extraction import DEFAULT, Extraction
from muniment.policies.terms import LANGUAGES
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, Bench

LOG = Path(__file__).parents[1] / "data" / "BGL_2k.log"
SAMPLES = [
    "O pagamento da Aurora é em 30 dias; as condições não mudaram desde 2025-11-03.",
    "getUserName of user_id core.9651 paid 1,250.00 € (-5 %) to Ana da Silva, “Casa Verde”",
    "Ελληνικά κείμενα, текст по-русски, 日本語のテキスト, ภาษาไทย, العربية",
    "r2d2@example.org wrote: don't restart R17-M1-N0-C:J12-U11!",
]
#: What the version of the extraction finds in the log and in the samples.
KNOWN = {2: "1daa2456aca2c0d9"}


def found_now() -> str:
    digest = hashlib.sha256()
    for text in [*LOG.read_text(encoding="utf-8").splitlines()[::10], *SAMPLES]:
        entities, terms = DEFAULT.features(text)
        digest.update(repr((entities, sorted(terms.items()))).encode())
    return digest.hexdigest()[:16]


def test_a_change_of_what_is_found_is_another_version() -> None:
    """Where this fails, raise ``extraction.VERSION`` and note here what it finds: stores hold what older ones found."""
    assert found_now() == KNOWN[extraction.VERSION]


def test_other_settings_have_another_fingerprint() -> None:
    one = next(iter(LANGUAGES))
    made = [DEFAULT, Extraction(languages=(one,)), Extraction(patterns=("A[0-9]+",)), Extraction(patterns=("B",))]
    assert len({by.fingerprint for by in made}) == len(made)
    assert Extraction().fingerprint == DEFAULT.fingerprint


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    bench = Bench(stores)
    yield bench
    bench.close()


def kept(bench: Bench) -> dict[str, Any]:
    with bench.engine.connect() as connection:
        return {row.fact_id: row.features for row in connection.execute(sa.select(t.vectors))}


def settled(bench: Bench) -> None:
    """Until all that was queued for the store is there."""
    bench.shard._committer.submit(lambda connection: None).result()


@pytest.mark.parametrize("damage", [None, b"", b"short", b"\0" * 40, "another", "cut"])
def test_features_that_are_missing_damaged_or_of_other_settings_are_found_anew(bench: Bench, damage: Any) -> None:
    async def scenario() -> None:
        await bench.tell(
            {"text": "the kettle of Ana is blue"}, {"text": "printer R17-M1 is broken", "entities": ["HP"]}
        )
        before, answers = kept(bench), await bench.texts("kettle R17-M1", top_k=2)
        assert all(features is not None for features in before.values())
        bench.shard.close()
        another = Extraction(patterns=("kettle",))
        for id, features in before.items():
            spoilt = {"another": another.fingerprint + features[8:], "cut": features[:12]}.get(damage, damage)
            with bench.engine.begin() as connection:
                connection.execute(t.vectors.update().where(t.vectors.c.fact_id == id).values(features=spoilt))
        bench.start()
        assert await bench.texts("kettle R17-M1", top_k=2) == answers
        settled(bench)
        assert kept(bench) == before, "and kept again"

    asyncio.run(scenario())


def test_what_is_kept_is_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await bench.tell({"text": "the kettle of Ana is blue"})
        bench.shard.close()
        bench.start()
        monkeypatch.setattr(kept_features, "find", lambda *_: pytest.fail("found anew"))
        assert await bench.texts("kettle") == ["the kettle of Ana is blue"]

    asyncio.run(scenario())


def test_nothing_is_kept_of_a_fact_that_was_deleted(bench: Bench) -> None:
    async def scenario() -> None:
        (told,) = await bench.tell({"text": "the secret of Ana is blue"})
        await bench.shard.retire("acme", id=told["id"], status="deleted", reason="", actor=ANA, own_only=False)
        assert kept(bench) == {}

    asyncio.run(scenario())
