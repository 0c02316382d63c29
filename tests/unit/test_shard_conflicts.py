"""What rulings, corrections, retirements and time leave behind in a slot: a test for each way that went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from muniment.actors.slot_reader import SlotReader
from muniment.actors.store import conflict_store, memory_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.policy_book import PolicyBook
from muniment.policies.errors import AlreadyRuled, StateConflict
from muniment.policies.model import Scope, Slot
from tests.stores import Stores
from tests.unit.test_memory_shard import ANA, BOT, CRM, MAIL, Bench, at, contact

HANDBOOK = {"kind": "approved_document", "id": "handbook"}
NOTE = {"kind": "agent_summary", "id": "note"}
SLOT = Slot("acme", Scope.SHARED, "", "Aurora", "contact")
#: A shard belongs to one event loop.
RUNNER = asyncio.Runner()


@pytest.fixture
def bench(stores: Stores) -> Iterator[Bench]:
    bench = Bench(stores)
    yield bench
    bench.close()


def tell(bench: Bench, *facts: dict[str, Any], actor: Any = ANA) -> list[Any]:
    results: list[Any] = RUNNER.run(bench.tell(*facts, actor=actor))
    return results


def values(bench: Bench, **more: Any) -> list[Any]:
    found = RUNNER.run(bench.ask("the contact of Aurora", **more))["results"]
    return [r["fact"].get("value") for r in found]


def held(bench: Bench, **moments: Any) -> Any:
    with bench.engine.connect() as connection:
        page = SlotReader(PolicyBook(bench.control)).page(
            connection, SLOT, moments.get("as_of"), moments.get("known_at"), bench.now
        )
    return page.current.value if page.current is not None else None


def retire(bench: Bench, id: str, status: str) -> Any:
    return RUNNER.run(bench.shard.retire("acme", id=id, status=status, reason="r", actor=ANA, own_only=False))


def rule(bench: Bench, conflict_id: str, **ruling: Any) -> Any:
    arguments = {"conflict_id": conflict_id, "actor": ANA, "rules_all": True}
    return RUNNER.run(bench.router.resolve("acme", ruling, ruling.get("text"), **arguments))


def correct(bench: Bench, id: str, value: str) -> Any:
    arguments = {"id": id, "value": value, "reason": "r", "actor": ANA, "own_only": False}
    return RUNNER.run(bench.router.correct("acme", f"it is {value}", **arguments))


def test_a_fact_that_was_kept_and_then_adopted_leaves_with_what_adopted_it(bench: Bench) -> None:
    bench.policy(fields={"contact": {"owner": "ana", "self_authority": True}})
    person = {"kind": "authorized_person", "id": "p"}
    results = tell(bench, contact("Kim", source=person), contact("Lee", source=NOTE), contact("Lee", source=HANDBOOK))
    assert [r["outcome"] for r in results] == ["stored", "kept", "replaced"]
    assert tell(bench, contact("Dana", source=MAIL))[0]["outcome"] == "replaced"
    assert values(bench) == ["Dana"]
    assert sorted(bench.statuses().values()) == ["current", "superseded", "superseded", "superseded"]


def test_a_batch_that_holds_and_then_admits_a_fact_leaves_it_in_the_history(bench: Bench) -> None:
    tell(bench, contact("Dana", source=MAIL), contact("Lee", source=MAIL), contact("Lee", source=CRM))
    assert values(bench) == ["Lee"]
    assert held(bench, as_of=at(0.1)) == "Lee"
    assert bench.conflicts() == []


def test_a_ruling_counts_in_the_history_from_when_it_was_given(bench: Bench) -> None:
    tell(bench, contact("Dana", -9))
    bench.now = at(1)
    (lee,) = tell(bench, contact("Lee", -9))
    bench.now = at(2)
    rule(bench, lee["conflict_id"], decision="accept_challenger")
    bench.now = at(3)
    assert held(bench, as_of=at(2)) == "Lee"
    assert values(bench, moments={"as_of": at(2)}) == ["Lee"]
    assert held(bench, known_at=at(1.5)) == "Dana"


def test_what_was_cut_short_is_still_what_was_believed_before(bench: Bench) -> None:
    tell(bench, contact("Dana", -9), contact("Dana", source=MAIL))
    (lee,) = tell(bench, contact("Lee"))
    bench.now = at(1)
    rule(bench, lee["conflict_id"], decision="both_valid", rescope={"effective_at": at(4)})
    assert (held(bench), held(bench, as_of=at(5)), held(bench, as_of=at(5), known_at=at(0.5))) == (
        "Dana",
        "Lee",
        "Dana",
    )
    bench.now = at(5)
    assert (held(bench), values(bench)) == ("Lee", ["Lee"])


def test_expiring_a_fact_ends_all_that_says_the_same_and_nothing_older_rises(bench: Bench) -> None:
    tell(bench, contact("Kim", -90))
    (dana, *_) = tell(
        bench, contact("Dana", -9), contact("Dana", source=MAIL), contact("Dana", -9), contact("Dana", -9)
    )
    bench.now = at(1)
    retire(bench, dana["id"], "expired")
    assert (held(bench), values(bench)) == (None, [])
    assert (held(bench, as_of=at(2)), held(bench, as_of=at(0.5))) == (None, "Dana")
    assert held(bench, as_of=at(2), known_at=at(0.5)) == "Dana"
    with pytest.raises(StateConflict):
        retire(bench, dana["id"], "expired")
    assert tell(bench, contact("Lee"))[0]["outcome"] == "stored"


def test_other_evidence_stands_for_a_fact_that_was_deleted_or_has_expired(bench: Bench) -> None:
    tell(bench, contact("Dana", -9, expires_at=at(2)), contact("Dana", source=MAIL))
    bench.now = at(3)
    assert (held(bench), values(bench)) == ("Dana", ["Dana"])
    with bench.engine.connect() as connection:
        (mail,) = connection.execute(sa.select(t.facts).where(t.facts.c.status == "current"))
    assert (mail.corroborates, mail.tier) == (None, "L1")
    (again,) = tell(bench, contact("Dana", source=CRM))
    assert again["outcome"] == "corroborated"
    retire(bench, mail.id, "deleted")
    assert (held(bench), values(bench)) == ("Dana", ["Dana"])


def test_deleted_evidence_does_not_come_back_with_a_ruling(bench: Bench) -> None:
    tell(bench, contact("Dana"))
    (lee, mail, note) = tell(bench, contact("Lee"), contact("Lee", source=MAIL), contact("Lee", source=NOTE))
    assert len({lee["conflict_id"], mail["conflict_id"]}) == 1
    retire(bench, mail["id"], "deleted")
    rule(bench, lee["conflict_id"], decision="accept_challenger")
    assert bench.statuses()[mail["id"]] == "deleted"
    assert values(bench) == ["Lee"]
    assert note["outcome"] == "kept"


def test_a_deleted_challenger_withdraws_its_conflict_and_what_said_the_same_opens_its_own(bench: Bench) -> None:
    bench.policy(fields={"contact": {"sensitive": True, "owner": "ana"}})
    tell(bench, contact("Dana"))
    (lee, mail) = tell(bench, contact("Lee"), contact("Lee", source=MAIL), actor=BOT)
    retire(bench, lee["id"], "deleted")
    (row,) = bench.conflicts()
    assert (row.challenger_id, row.id != lee["conflict_id"]) == (mail["id"], True)
    with pytest.raises(AlreadyRuled):
        rule(bench, lee["conflict_id"], decision="keep_incumbent")
    retire(bench, mail["id"], "deleted")
    assert bench.conflicts() == []


def test_a_conflict_without_its_incumbent_is_shown_beside_the_next_one(bench: Bench) -> None:
    bench.policy(fields={"contact": {"sensitive": True, "owner": "ana"}})
    (dana,) = tell(bench, contact("Dana"))
    (lee,) = tell(bench, contact("Lee"), actor=BOT)
    retire(bench, dana["id"], "deleted")
    assert (values(bench), held(bench), len(bench.conflicts())) == ([], None, 1)
    (kim,) = tell(bench, contact("Kim"))
    assert kim["outcome"] == "stored"
    (result,) = RUNNER.run(bench.ask("the contact of Aurora"))["results"]
    assert result["dispute"]["conflict_id"] == lee["conflict_id"]
    assert bench.conflicts()[0].subject_id == kim["id"]


def test_a_corrected_value_does_not_come_back_and_what_waits_goes_on_waiting(bench: Bench) -> None:
    (dana, *_) = tell(bench, contact("Dana"), contact("Dana", source=MAIL))
    (lee,) = tell(bench, contact("Lee"))
    bench.now = at(1)
    answer = correct(bench, dana["id"], "Dora")
    assert (held(bench), values(bench)) == ("Dora", ["Dora"])
    assert (held(bench, as_of=at(0.5)), held(bench, as_of=at(1))) == ("Dora", "Dora")
    assert held(bench, as_of=at(0.5), known_at=at(0.9)) == "Dana"
    assert [(row.id, row.subject_id) for row in bench.conflicts()] == [(lee["conflict_id"], answer["id"])]
    assert tell(bench, contact("Dana"))[0]["rule"] == "lost_ruling"
    assert held(bench) == "Dora"
    with pytest.raises(StateConflict):
        correct(bench, dana["id"], "Dara")
    correct(bench, answer["id"], "Lee")
    assert (held(bench), bench.conflicts()) == ("Lee", [])


def test_one_source_that_repeats_itself_is_one_piece_of_evidence(bench: Bench) -> None:
    for _ in range(4):
        tell(bench, contact("Dana"), contact("Dana", source=MAIL))
    (result,) = RUNNER.run(bench.ask("the contact of Aurora"))["results"]
    assert sorted(source["kind"] for source in result["evidence"]) == ["counterparty", "system_of_record"]
    for _ in range(4):
        (lee,) = tell(bench, contact("Lee"))
        assert lee["outcome"] == "held"
    assert sorted(bench.statuses().values()).count("disputed") == 1
    assert len(bench.conflicts()) == 1


def test_a_challenger_that_belongs_elsewhere_is_decided_there_and_does_not_come_back(bench: Bench) -> None:
    tell(bench, contact("Dana"), contact("Moe", field="deputy"))
    (lee,) = tell(bench, contact("Lee"))
    answer = rule(bench, lee["conflict_id"], decision="both_valid", rescope={"field": "deputy"})
    assert answer["current"]["field"] == "deputy"
    (row,) = bench.conflicts()
    assert (row.field, row.challenger_id) == ("deputy", lee["id"])
    assert bench.statuses()[lee["id"]] == "disputed"
    assert tell(bench, contact("Lee"))[0]["rule"] == "lost_ruling"
    assert held(bench) == "Dana"


def test_evidence_brings_an_evicted_fact_back_into_memory(stores: Stores) -> None:
    bench = Bench(stores, l1_capacity=2, l2_capacity=2)
    tell(bench, contact("Dana", importance=0.0))
    for number in range(12):
        tell(bench, {"text": f"filler {number}"})
    assert values(bench, top_k=1) != ["Dana"]
    tell(bench, contact("Dana", source=MAIL))
    assert values(bench, top_k=1) == ["Dana"]
    bench.close()


def test_a_refused_write_leaves_what_is_loaded_alone(bench: Bench) -> None:
    tell(bench, contact("Dana"))
    (lee,) = tell(bench, contact("Lee"))
    rule(bench, lee["conflict_id"], decision="keep_incumbent")
    loaded = bench.shard._tenants.by_company["acme"]
    with pytest.raises(AlreadyRuled):
        rule(bench, lee["conflict_id"], decision="keep_incumbent")
    assert bench.shard._tenants.by_company["acme"] is loaded


def test_a_clock_that_was_set_back_does_not_reorder_what_is_recorded(bench: Bench) -> None:
    (dana,) = tell(bench, contact("Dana"))
    bench.shard.close()
    bench.now = at(-5)
    bench.start()
    (other,) = tell(bench, {"text": "later"})
    assert other["id"] > dana["id"]
    assert values(bench) == ["Dana", None]


def test_erasing_a_user_has_what_was_made_of_their_facts_reviewed(bench: Bench) -> None:
    (mine,) = tell(bench, {"text": "ana is on leave", "scope": "personal", "user": "ana"})
    (shared,) = tell(bench, {"text": "somebody is on leave", "source": {**NOTE, "derived_from": [mine["id"]]}})
    RUNNER.run(bench.shard.erase_user("acme", "ana", ANA))
    (row,) = bench.conflicts()
    assert (row.kind, row.subject_id) == ("review", shared["id"])


def test_nothing_of_an_erased_user_stays_in_the_log(bench: Bench) -> None:
    mine = {"scope": "personal", "user": "ana"}
    tell(bench, contact("Xenia", **mine))
    (zoe,) = tell(bench, contact("Zoe", **mine))
    rule(bench, zoe["conflict_id"], decision="accept_challenger")
    RUNNER.run(bench.shard.erase_user("acme", "ana", ANA))
    with bench.engine.connect() as connection:
        for table in t.TABLES:
            stored = b"".join(bytes(v) for row in connection.execute(sa.select(table)) for v in row if type(v) is bytes)
            assert b"Xenia" not in stored
            assert b"Zoe" not in stored


def opened(bench: Bench) -> list[tuple[str, str, str | None]]:
    """Kind, rule and challenger of what is open."""
    with bench.engine.connect() as connection:
        found = conflict_store.open_conflicts(connection, "acme")
    return [(conflict.kind.value, conflict.rule.value, conflict.challenger_id) for conflict in found]


def holds(bench: Bench, expected: dict[float, str]) -> None:
    """The slot holds these values on these days, with nothing for a reader to find."""
    for day, value in expected.items():
        bench.now = at(day)
        assert (day, held(bench), values(bench), opened(bench)) == (day, value, [value], [])


def test_what_was_only_kept_beside_a_deleted_challenger_is_a_notice(bench: Bench) -> None:
    tell(bench, contact("Dana", -9))
    (lee, note, old) = tell(bench, contact("Lee"), contact("Lee", source=NOTE), contact("Lee", -20, source=NOTE))
    assert [r["outcome"] for r in (lee, note, old)] == ["held", "kept", "kept"]
    assert opened(bench) == [("conflict", "undated_tie", lee["id"])]
    retire(bench, lee["id"], "deleted")
    assert opened(bench) == [("notice", "lower_rank", note["id"])]
    retire(bench, note["id"], "deleted")
    assert opened(bench) == []


def brought_in(bench: Bench, id: str, **dates: Any) -> None:
    """The fact with other dates that nobody decided about, as an import would leave it."""
    with bench.engine.begin() as connection:
        fact = memory_store.get_facts(connection, "acme", [id])[id]
        memory_store.update_facts(connection, [replace(fact, **dates)])
    bench.shard.close()
    bench.start()


def test_a_conflict_ends_with_the_period_of_its_challenger(bench: Bench) -> None:
    tell(bench, contact("Dana", -3, expires_at=at(50)))
    (lee,) = tell(bench, contact("Lee", 60, expires_at=at(70)))
    brought_in(bench, lee["id"], effective_at=at(-5), expires_at=at(10))
    assert values(bench) == ["Dana"]
    assert opened(bench) == [("conflict", "found_on_reading", lee["id"])]
    bench.now = at(11)
    tell(bench, contact("Dana", source=MAIL))
    assert (values(bench), opened(bench)) == (["Dana"], [])


def test_evidence_follows_a_fact_that_becomes_evidence(bench: Bench) -> None:
    (dana,) = tell(bench, contact("Dana", -3, expires_at=at(50)))
    (lee, mail) = tell(bench, contact("Lee", 60), contact("Lee", 61, source=MAIL))
    brought_in(bench, lee["id"], effective_at=at(-5))
    assert values(bench) == ["Dana"]
    answer = correct(bench, dana["id"], "Lee")
    with bench.engine.connect() as connection:
        facts = memory_store.get_facts(connection, "acme", [lee["id"], mail["id"]])
    assert {fact.corroborates for fact in facts.values()} == {answer["id"]}
    assert (values(bench), opened(bench)) == (["Lee"], [])


def test_a_corrected_fact_still_takes_over_on_its_day(bench: Bench) -> None:
    tell(bench, contact("Dana", -9))
    (lee,) = tell(bench, contact("Lee", 5))
    assert lee["outcome"] == "replaced"
    bench.now = at(1)
    correct(bench, lee["id"], "Leo")
    assert values(bench) == ["Dana"]
    bench.now = at(6)
    assert (held(bench), values(bench), opened(bench)) == ("Leo", ["Leo"], [])


def test_evidence_that_outlives_its_fact_gives_way_to_what_holds_then(bench: Bench) -> None:
    tell(bench, contact("Lee", -1, expires_at=at(4)), contact("Lee", source=MAIL))
    (kim,) = tell(bench, contact("Kim"))
    assert kim["outcome"] == "held"
    rule(bench, kim["conflict_id"], decision="both_valid", rescope={"effective_at": at(5)})
    holds(bench, {1: "Lee", 4.5: "Lee", 6: "Kim"})


def test_an_owners_value_holds_until_what_begins_later_takes_over(bench: Bench) -> None:
    tell(bench, contact("Dana", -1, expires_at=at(5)))
    tell(bench, contact("Lee", 5))
    (kim,) = tell(bench, contact("Kim", -1, expires_at=at(5)))
    assert kim["outcome"] == "held"
    rule(bench, kim["conflict_id"], decision="new_value", value="Moe", text="it is Moe")
    holds(bench, {1: "Moe", 6: "Lee"})


def test_a_conflict_without_its_incumbent_is_about_what_comes_into_force(bench: Bench) -> None:
    bench.policy(fields={"contact": {"sensitive": True, "owner": "ana"}})
    (dana, kim) = tell(bench, contact("Dana", -1, expires_at=at(5)), contact("Kim", 5))
    (lee,) = tell(bench, contact("Lee"), actor=BOT)
    assert lee["outcome"] == "held"
    retire(bench, dana["id"], "deleted")
    bench.now = at(6)
    (result,) = RUNNER.run(bench.ask("the contact of Aurora"))["results"]
    assert (result["fact"]["id"], result["dispute"]["conflict_id"]) == (kim["id"], lee["conflict_id"])


def test_evidence_that_outlives_its_fact_loses_with_it_to_an_accepted_value(bench: Bench) -> None:
    bench.policy(fields={"contact": {"owner": "ana", "self_authority": True}})
    tell(bench, contact("Lee", -1, expires_at=at(4)), contact("Lee", source=MAIL))
    (kim,) = tell(bench, contact("Kim", 5, source=MAIL), actor=BOT)
    assert kim["outcome"] == "held"
    rule(bench, kim["conflict_id"], decision="accept_challenger")
    holds(bench, {1: "Lee", 4.5: "Lee", 6: "Kim"})


def test_a_found_value_and_a_notice_of_it_are_one_entry(bench: Bench) -> None:
    tell(bench, contact("Dana", -3, expires_at=at(50)))
    (mail, note) = tell(bench, contact("Lee", 60, source=MAIL), contact("Lee", source=NOTE))
    assert opened(bench) == [("notice", "lower_rank", note["id"])]
    brought_in(bench, mail["id"], effective_at=at(-5))
    assert values(bench) == ["Dana"]
    assert opened(bench) == [("conflict", "found_on_reading", mail["id"])]
    assert bench.conflicts("withdrawn")[0].challenger_id == note["id"]


def test_values_that_a_changed_comparator_makes_equal_wait_in_one_conflict(bench: Bench) -> None:
    bench.policy(fields={"contact": {"comparator": "exact"}})
    tell(bench, contact("Dana"))
    (lee, other) = tell(bench, contact("Lee"), contact("LEE"))
    assert len({lee["conflict_id"], other["conflict_id"]}) == 2
    bench.policy(fields={"contact": {}})
    tell(bench, contact("Dana", source=MAIL))
    (row,) = bench.conflicts()
    assert row.id == lee["conflict_id"]


def test_a_notice_whose_value_waits_too_is_given_again_without_what_waited(bench: Bench) -> None:
    tell(bench, contact("Dana"))
    (note, lee) = tell(bench, contact("Lee", source=NOTE), contact("Lee"))
    assert opened(bench) == [("conflict", "undated_tie", lee["id"])]
    retire(bench, lee["id"], "deleted")
    assert opened(bench) == [("notice", "lower_rank", note["id"])]


def test_what_follows_a_deleted_fact_follows_the_one_before_it(bench: Bench) -> None:
    (_, lee, _) = tell(bench, contact("Dana", -9), contact("Lee", 5), contact("Moe", 8))
    retire(bench, lee["id"], "deleted")
    holds(bench, {1: "Dana", 6: "Dana", 9: "Moe"})


def test_what_follows_a_fact_that_turned_out_too_weak_follows_the_one_before_it(bench: Bench) -> None:
    tell(bench, contact("Dana", -9, source=NOTE), contact("Lee", 5, source=NOTE), contact("Moe", 8))
    tell(bench, contact("Dana", source=HANDBOOK, expires_at=at(6)))
    holds(bench, {1: "Dana", 6: "Dana", 9: "Moe"})


def test_strong_evidence_of_a_fact_that_turned_out_too_weak_takes_over_on_its_own_day(bench: Bench) -> None:
    tell(bench, contact("Lee", 5, source=NOTE), contact("Lee", 8), contact("Dana", -9, source=NOTE))
    tell(bench, contact("Dana", -1))
    holds(bench, {1: "Dana", 6: "Dana", 9: "Lee"})


def test_strong_evidence_that_stands_alone_takes_over_from_all_that_said_the_other_value(bench: Bench) -> None:
    (_, _, dana) = tell(bench, contact("Lee", 5, source=NOTE), contact("Lee", 8), contact("Dana", -9, source=NOTE))
    tell(bench, contact("Dana", -5, source={**NOTE, "id": "other"}), contact("Dana", -1))
    retire(bench, dana["id"], "deleted")
    holds(bench, {1: "Dana", 6: "Dana", 9: "Lee"})


def test_a_kept_value_is_followed_by_what_was_to_follow_it(bench: Bench) -> None:
    tell(bench, contact("Dana", -9), contact("Lee", 5), contact("Moe", 8))
    (kim,) = tell(bench, contact("Kim", -9, expires_at=at(6)))
    assert kim["outcome"] == "held"
    rule(bench, kim["conflict_id"], decision="keep_incumbent")
    holds(bench, {1: "Dana", 6: "Lee", 9: "Moe"})


def test_an_accepted_value_follows_what_holds_on_its_day(bench: Bench) -> None:
    bench.policy(fields={"contact": {"owner": "ana"}})
    tell(bench, contact("Dana", -9), contact("Lee", 5))
    (kim,) = tell(bench, contact("Kim", 8), actor=BOT)
    assert kim["outcome"] == "held"
    rule(bench, kim["conflict_id"], decision="accept_challenger")
    holds(bench, {1: "Dana", 6: "Lee", 9: "Kim"})


def test_the_value_that_is_kept_is_the_one_that_the_conflict_is_about(bench: Bench) -> None:
    bench.policy(fields={"contact": {"owner": "ana", "self_authority": True}})
    tell(bench, contact("Lee", -1, expires_at=at(4)), contact("Lee", -1, source=MAIL), contact("Moe", 6))
    (kim,) = tell(bench, contact("Kim", 5, source=MAIL), actor=BOT)
    assert kim["outcome"] == "held"
    answer = rule(bench, kim["conflict_id"], decision="keep_incumbent")
    assert answer["current"]["value"] == "Lee"
    holds(bench, {1: "Lee", 5: "Lee", 7: "Moe"})


def test_what_was_past_its_review_loses_an_undated_tie_in_as_of_too(bench: Bench) -> None:
    tell(bench, contact("Dana", review_at=at(1)))
    bench.now = at(2)
    (lee,) = tell(bench, contact("Lee", -3))
    assert (lee["outcome"], lee["rule"]) == ("replaced", "past_review_loses_tie")
    assert (held(bench), held(bench, as_of=at(2)), values(bench, moments={"as_of": at(2)})) == ("Lee", "Lee", ["Lee"])
    assert held(bench, as_of=at(2), known_at=at(1)) == "Dana"


def test_what_was_refused_does_not_outlive_the_fact_that_made_it_evidence(bench: Bench) -> None:
    web = {"kind": "unattributed", "id": "web", "external": True}
    tell(bench, contact("Dana", -9), contact("Lee", source=web), contact("Lee", 3, source=NOTE))
    (lee,) = tell(bench, contact("Lee", -1, expires_at=at(2)))
    assert lee["outcome"] == "replaced"
    holds(bench, {1: "Lee"})
    for day in (2.5, 4):
        bench.now = at(day)
        assert (held(bench), values(bench), held(bench, as_of=at(day))) == (None, [], None)
    assert held(bench, as_of=at(1)) == "Lee"
    assert tell(bench, contact("Kim", source=NOTE))[0]["outcome"] == "stored"


def test_what_was_held_does_not_outlive_the_fact_that_made_it_evidence(bench: Bench) -> None:
    tell(bench, contact("Dana", source=NOTE))
    (waiting,) = tell(bench, contact("Lee", source={**NOTE, "id": "other"}))
    assert waiting["outcome"] == "held"
    tell(bench, contact("Lee", -1, source=HANDBOOK, expires_at=at(2)))
    holds(bench, {1: "Lee"})
    bench.now = at(3)
    assert (held(bench), values(bench), held(bench, as_of=at(3)), opened(bench)) == (None, [], None, [])


@pytest.mark.parametrize(("sensitive", "teller", "asked"), [(True, BOT, True), (True, ANA, False), (False, BOT, False)])
@pytest.mark.parametrize("goes", ["by time", "deleted", "by time, seen by a write"])
def test_evidence_of_others_that_holds_alone_is_the_owners_to_review_where_the_field_is_sensitive(
    bench: Bench, sensitive: bool, teller: Any, asked: bool, goes: str
) -> None:
    bench.policy(fields={"contact": {"owner": "ana", "sensitive": sensitive}})
    (dana,) = tell(bench, contact("Dana", -9, expires_at=at(2)))
    (note, _) = tell(
        bench, contact("Dana", source={"kind": "unattributed"}), contact("Dana", source=NOTE), actor=teller
    )
    assert note["outcome"] == "corroborated"
    bench.now = at(1) if goes == "deleted" else at(3)
    if goes == "deleted":
        retire(bench, dana["id"], "deleted")
    elif goes == "by time":
        assert values(bench) == ["Dana"]  # it is asked about before it is handed out
    else:
        tell(bench, contact("Lee", -10, source=NOTE), actor=BOT)
    assert held(bench) == "Dana"
    reviews = [(row.subject_id, row.kind) for row in bench.conflicts() if row.kind == "review"]
    assert reviews == ([(note["id"], "review")] if asked else [])
