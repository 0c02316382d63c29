"""The written policy: what it accepts, how it reads, which entry holds for a slot; and when two values are equal."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.errors import InvalidInput
from muniment.policies.model import Scope, Slot, SourceKind, fold
from muniment.policies.precedence_policy import (
    DEFAULT_RANKS,
    PrecedencePolicy,
    SlotRules,
    glob_matches,
    parse_policy,
    resolve,
)
from muniment.policies.values import Comparator, same_value, value_key


def slot(subject: str = "Acme", field: str = "address", user: str = "") -> Slot:
    return Slot("us", Scope.PERSONAL if user else Scope.SHARED, user, subject, field)


def rules(policy: dict[str, Any], *where: str) -> SlotRules:
    return resolve(parse_policy(policy), slot(*where))


def test_with_nothing_written_the_seed_holds() -> None:
    resolved = rules({})
    assert resolved == SlotRules(ranks=DEFAULT_RANKS, owner="unassigned")
    assert [level[0].value for level in resolved.ranks] == [kind.value for kind in SourceKind]


@pytest.mark.parametrize(
    "field",
    [
        *("payment_terms", "Bank Account", "IBAN", "unit_price", "access_level", "user.permissions", "contract_end"),
        *("consent", "date_of_birth", "passport_number", "CPF", "preço", "Dados bancários: conta_bancária", "senha"),
    ],
)
def test_money_permissions_legal_commitments_and_personal_data_are_sensitive(field: str) -> None:
    assert rules({}, "Acme", field).sensitive


@pytest.mark.parametrize(
    "field", ["address", "primary_contact", "working_hours", "deadline", "calendar", "city", "agenda"]
)
def test_everyday_fields_are_not(field: str) -> None:
    assert not rules({}, "Acme", field).sensitive


def test_a_written_list_takes_the_place_of_the_default_one_and_a_field_beats_both() -> None:
    assert not rules({"sensitive_fields": []}, "Acme", "iban").sensitive
    assert rules({"sensitive_fields": ["addr*"]}, "Acme", "address").sensitive
    assert not rules({"fields": {"iban": {"sensitive": False}}}, "Acme", "iban").sensitive
    assert rules({"fields": {"*": {"sensitive": True}}}, "Acme", "city").sensitive


POLICY = {
    "default_owner": "office",
    "fields": {
        "*": {"owner": "anybody", "review_after_days": 90},
        "pay*": {"owner": "finance", "sensitive": True, "comparator": "exact"},
        "pay*t": {"owner": "clerks"},
        "payment": {"owner": "ana", "ranks": [["counterparty"], ["system_of_record", "authorized_person"]]},
    },
    "slots": [
        {"subject": "*", "field": "payment", "proposers": ["group:sales"]},
        {"subject": "Acme*", "field": "pay*", "owner": "rui"},
        {"subject": "ACME", "field": "pay*", "proposers": ["self"]},
    ],
    "escalation": {"due_days": 3, "delegate": "board", "webhook": "https://example.com/hook"},
}


def test_the_most_specific_entry_that_has_a_property_gives_it() -> None:
    payment = rules(POLICY, "Acme", "payment")
    assert (payment.owner, payment.proposers) == ("rui", ("self",))
    assert (payment.sensitive, payment.comparator, payment.review_after_days) == (True, Comparator.EXACT, 90)
    assert payment.ranks[0] == (SourceKind.COUNTERPARTY,)
    assert rules(POLICY, "Zeta", "payment").owner == "ana"
    assert rules(POLICY, "Zeta", "payment").proposers == ("group:sales",)
    assert rules(POLICY, "Zeta", "payout").owner == "clerks"
    assert rules(POLICY, "Zeta", "payable").owner == "finance"
    assert rules({"default_owner": "office"}, "Zeta", "city").owner == "office"


def test_a_tie_between_globs_has_one_answer_whatever_their_order() -> None:
    entries = {"a?c*": {"owner": "one"}, "ab*d": {"owner": "two"}, "a*cd": {"owner": "three"}}
    forwards, backwards = dict(entries), dict(reversed(entries.items()))
    assert {rules({"fields": f}, "x", "abcd").owner for f in (forwards, backwards)} == {"three"}


def test_a_personal_fact_belongs_to_its_user() -> None:
    personal = rules(POLICY, "Acme", "payment", "eva")
    assert (personal.owner, personal.proposers, personal.delegate) == ("eva", (), None)


def test_due_dates() -> None:
    opened = datetime(2026, 1, 1, tzinfo=UTC)
    assert rules(POLICY).due_at(opened) == opened + timedelta(days=3)
    assert rules({}).due_at(opened) is None


@pytest.mark.parametrize(
    ("policy", "pointer", "message"),
    [
        ({"rank": []}, "/rank", "Extra inputs"),
        ({"ranks": []}, "/ranks", "at least 1"),
        ({"ranks": [["crm"]]}, "/ranks/0/0", "Input should be"),
        ({"ranks": [["counterparty"], ["counterparty"]]}, "/ranks", "counterparty stands more than once"),
        ({"fields": {"a/b": {"comparator": "fuzzy"}}}, "/fields/a~1b/comparator", "Input should be"),
        ({"fields": {"a": {"review_after_days": 0}}}, "/fields/a/review_after_days", "greater than or equal to 1"),
        ({"fields": {"a": {"review_after_days": True}}}, "/fields/a/review_after_days", "valid integer"),
        ({"fields": {"a": {"proposers": ["ana"]}}}, "/fields/a/proposers/0", "'user:ID'"),
        ({"fields": {"a": {"owner": "group:x"}}}, "/fields/a/owner", "without 'user:'"),
        ({"fields": {"a" * 201: {}}}, f"/fields/{'a' * 201}", "at most 200"),
        ({"fields": {"A": {}, "a ": {}}}, "", "fields: a stands more than once"),
        ({"slots": [{"subject": "x"}]}, "/slots/0/field", "Field required"),
        ({"slots": [{"subject": "x", "field": "y"}] * 2}, "", "stands more than once"),
        ({"default_owner": "  "}, "/default_owner", "must not be empty"),
        ({"sensitive_fields": ["x"] * 501}, "/sensitive_fields", "at most 500"),
        ({"escalation": {"webhook": "file:///etc"}}, "/escalation/webhook", "http or https"),
        ({"escalation": {"webhook": "http:///hook"}}, "/escalation/webhook", "of a host"),
        ({"escalation": {"webhook": "http://a..b/"}}, "/escalation/webhook", "of a host"),
        ({"escalation": {"webhook": "http://a:port/"}}, "/escalation/webhook", "of a host"),
        ([], "", "valid dictionary"),
    ],
)
def test_a_wrong_policy_names_its_field(policy: Any, pointer: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_policy(policy, "/policy")
    (error,) = caught.value.fields["errors"]
    assert error["pointer"] == "/policy" + pointer
    assert message in error["message"]


def test_the_policy_survives_json() -> None:
    policy = parse_policy(POLICY)
    assert PrecedencePolicy.model_validate_json(policy.model_dump_json()) == policy


GLOB = st.text("ab*?", max_size=8)


@given(GLOB, st.text("abc", max_size=10))
def test_globs_match_as_the_shell_does(glob: str, text: str) -> None:
    assert glob_matches(glob, text) == fnmatchcase(text, glob)


def test_a_hostile_glob_is_not_slow() -> None:
    began = time.process_time()
    assert not glob_matches("*a" * 100, "a" * 99 + "b" * 10_000)
    assert time.process_time() - began < 30  # A backtracking matcher would need longer than the universe has.


def test_globs_take_brackets_literally_and_fold() -> None:
    assert glob_matches("[AB]*", fold("[ab]c"))
    assert not glob_matches("[ab]", "a")


# --- Values ----------------------------------------------------------------------------------------------------------

EQUAL = [
    ("Dana", " dana ", None),
    ("STRASSE", "straße", None),
    ("e\u0301", "\u00e9", None),
    (1, 1.0, None),
    (10**30, 1e30, None),
    (0, -0.0, None),
    ("2026-01-01T10:00:00Z", "2026-01-01T11:00:00+01:00", None),
    ("2026-01-01T10:00Z", "2026-01-01 10:00:00.000+00:00", None),
    ("1.50", 1.5, Comparator.NUMBER),
    (" 1e3 ", 1000, Comparator.NUMBER),
    ("ten", "TEN", Comparator.NUMBER),
    (5, "5", Comparator.TEXT),
    (5.0, "5", Comparator.TEXT),
    (True, "true", Comparator.TEXT),
    ("e\u0301", "\u00e9", Comparator.EXACT),
]
DIFFERENT = [
    (True, 1, None),
    (False, 0, None),
    (False, 0, Comparator.NUMBER),
    ("1", 1, None),
    ("1.0", "1", None),
    ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00+01:00", None),
    ("2026-01-01T10:00:00", "2026-01-01T10:00:00Z", None),
    ("2026-01-01T10:00:00Z", "2026-01-01T11:00:00+01:00", Comparator.TEXT),
    ("Dana", "dana", Comparator.EXACT),
    (1, 1.0, Comparator.EXACT),
    (9007199254740993, 9007199254740992, None),
    ("0.1234567890123456789012345678901", "0.1234567890123456789012345678902", Comparator.NUMBER),
]


@pytest.mark.parametrize(("left", "right", "comparator"), EQUAL)
def test_equal_values(left: Any, right: Any, comparator: Comparator | None) -> None:
    assert same_value(left, right, comparator)


@pytest.mark.parametrize(("left", "right", "comparator"), DIFFERENT)
def test_different_values(left: Any, right: Any, comparator: Comparator | None) -> None:
    assert not same_value(left, right, comparator)


@given(st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_every_value_has_a_key_under_every_comparator(value: Any) -> None:
    for comparator in (None, *Comparator):
        key = value_key(value, comparator)
        assert same_value(value, value, comparator)
        assert re.match(r"[a-z]+:", key)


@given(st.integers(), st.integers())
def test_numbers_are_equal_exactly_when_they_are(left: int, right: int) -> None:
    assert same_value(left, right) == (left == right)
    assert same_value(str(left), right, Comparator.NUMBER) == (left == right)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-12:00", "2026-02-31T00:00:00Z", "1e9999999", "NaN", "٣"])
def test_what_no_comparator_can_read_stays_text(text: str) -> None:
    for comparator in (None, Comparator.NUMBER, Comparator.INSTANT):
        assert value_key(text, comparator) in (f"text:{fold(text)}", "number:3e0")
