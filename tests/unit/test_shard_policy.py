"""A shard under its companies' memory policies: what is read how, what leaves, and which threshold holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest

from muniment.actors.store.control_store import Calibration
from muniment.policies.errors import StoreUnavailable
from muniment.policies.routing import ALWAYS, MINILM_THRESHOLD, default_threshold
from tests.stores import Stores
from tests.unit.test_memory_shard import Bench


class Desk(Bench):
    """A shard with small tiers, and one event loop for all that is asked of it."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores, l1_capacity=4, l2_capacity=8)
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        super().close()
        self._runner.close()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Desk]:
    made = Desk(stores)
    yield made
    made.close()


def write(bench: Desk, company: str = "acme", **body: Any) -> None:
    bench.control.put_memory_policy(company, body, "curator")


def gate(bench: Desk, query: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = bench.run(bench.ask(query, **more))["route"]["gate"]
    return answer


def lexical(bench: Desk, query: str) -> dict[str, float]:
    """What the words of the best facts weigh."""
    results = bench.run(bench.ask(query))["results"]
    return {r["fact"]["text"]: r["terms"]["lexical"] for r in results}


def test_a_plural_is_found_by_the_singular_in_the_companys_language(bench: Desk) -> None:
    texts = ["As reuniões de terça foram adiadas", "O almoço de terça foi bom"]
    bench.run(bench.tell(*({"text": text} for text in texts)))
    assert lexical(bench, "reunião")[texts[0]] > 0
    assert lexical(bench, "REUNIAO")[texts[0]] > 0  # accents are folded
    write(bench, languages=["en"])
    assert lexical(bench, "reunião")[texts[0]] == 0  # English knows no -ões, and the index was made anew
    write(bench, languages=["pt"])
    assert lexical(bench, "reunião")[texts[0]] > 0
    assert lexical(bench, "almoco")[texts[1]] > 0


def test_a_shorter_compound_name_is_found_inside_a_longer_one(bench: Desk) -> None:
    texts = ["RAS KERNEL INFO R17-M1-N0-C:J12-U11 corrected", "RAS KERNEL INFO R17-M0-N0-C:J12-U11 corrected"]
    bench.run(bench.tell(*({"text": text} for text in texts)))
    answer = bench.run(bench.ask("what about R17-M1?"))
    assert answer["results"][0]["fact"]["text"] == texts[0]
    assert answer["route"]["gate"]["uncovered"] == []
    assert gate(bench, "what about R17-M2?")["uncovered"] == ["r17-m2"]


def test_query_and_fact_know_the_companys_own_entities(bench: Desk) -> None:
    bench.run(bench.tell({"text": "pedido azul saiu"}, {"text": "pedido verde espera"}))
    bench.run(bench.tell({"text": "pedido azul saiu"}, company="other"))
    assert gate(bench, "onde anda pedido azul")["query_entities"] == []
    write(bench, entities={"order": "pedido [a-z]+"})
    for _ in range(2):  # the router learns at the first one how the shard reads
        seen = gate(bench, "onde anda pedido azul")
        assert (seen["query_entities"], seen["uncovered"]) == (["pedido azul"], [])
    assert gate(bench, "onde anda pedido preto")["uncovered"] == ["pedido preto"]
    assert gate(bench, "onde anda pedido azul", company="other")["query_entities"] == []
    write(bench)
    assert gate(bench, "onde anda pedido azul")["query_entities"] == []


def test_coverage_looks_at_what_would_be_answered_not_at_the_first_alone(bench: Desk) -> None:
    """The second best speaks of what the query names: with it among the answers L1 is enough."""
    texts = ["alpha beta gamma delta", "Xy-9 stands among many other words of no use to anybody"]
    bench.run(bench.tell(*({"text": text} for text in texts)))
    query = "alpha beta gamma delta Xy-9"
    assert bench.run(bench.texts(query, top_k=2)) == texts
    wide, narrow = gate(bench, query, top_k=2), gate(bench, query, top_k=1)
    assert (wide["query_entities"], wide["uncovered"]) == (["xy-9"], [])
    assert narrow["uncovered"] == ["xy-9"]


def test_usage_is_kept_when_texts_are_read_anew(bench: Desk) -> None:
    bench.run(bench.tell({"text": "pedido azul saiu"}))
    bench.run(bench.ask("pedido azul"))
    write(bench, languages=["pt"])
    bench.run(bench.ask("pedido azul"))
    tenant = bench.shard._tenants.by_company["acme"]
    assert [resident.usage for resident in tenant.residents.values()] == [2]


@pytest.mark.parametrize(("mode", "essential_left"), [("importance", 12), ("paper", 8), ("lru", 8)])
def test_what_leaves_a_full_archive_is_the_companys_choice(bench: Desk, mode: str, essential_left: int) -> None:
    bench.run(bench.tell({"text": "loaded before the policy is written", "importance": 0.1}))
    write(bench, retention=mode)
    for n in range(40):
        bench.run(bench.tell({"text": f"fact {n}", "importance": 0.9}))
    sizes = bench.shard._tenants.by_company["acme"].sizes()
    assert sizes["L1"] <= 4
    assert (sizes["L2"] > 8) == (essential_left > 8)


def test_the_threshold_is_the_companys_from_the_next_recall_on(bench: Desk) -> None:
    bench.run(bench.tell({"text": "one fact"}))
    assert gate(bench, "one fact")["threshold"] == ALWAYS  # nobody knows the model of these tests
    found = Calibration(threshold=0.25, queries=1, searches_l2=1, recall_lost=0)
    bench.control.calibrate("acme", "words", found, "key:operator")
    bench.control.calibrate(
        "acme", "another model", Calibration(threshold=0.9, queries=1, searches_l2=1, recall_lost=0), "k"
    )
    assert gate(bench, "one fact")["threshold"] == 0.25
    bench.run(bench.tell({"text": "one fact"}, company="other"))
    assert gate(bench, "one fact", company="other")["threshold"] == ALWAYS
    assert default_threshold("all-MiniLM-L6-v2") == MINILM_THRESHOLD


def test_while_the_control_store_is_away_the_known_policy_goes_on_holding(
    bench: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bench, entities={"order": "pedido [a-z]+"})
    bench.run(bench.tell({"text": "pedido azul saiu"}))
    assert gate(bench, "pedido azul")["query_entities"] == ["pedido azul"]

    def away(_: str) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(bench.control, "in_force", away)
    answer = bench.run(bench.ask("pedido azul"))
    assert answer["route"]["gate"]["query_entities"] == ["pedido azul"]
    assert answer["route"]["degraded"] == "store_unreachable"


def test_an_answer_of_the_past_is_read_by_the_policy_too(bench: Desk) -> None:
    write(bench, entities={"order": "pedido [a-z]+"})
    bench.run(bench.tell({"text": "pedido azul saiu", "subject": "pedido", "field": "estado", "value": "saiu"}))
    answer = bench.run(bench.ask("pedido azul", moments={"as_of": bench.now + timedelta(days=1)}))
    assert answer["route"]["gate"]["query_entities"] == ["pedido azul"]
    assert answer["results"][0]["terms"]["entities"] > 0
