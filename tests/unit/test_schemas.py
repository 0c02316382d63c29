from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.cluster import schemas
from muniment.cluster.schemas import (
    AuditRequest,
    ClassificationRequest,
    CompanyRequest,
    FactIn,
    ImportKeysRequest,
    KeyRequest,
    MemoriesQuery,
    PlaceRequest,
    ProposeRequest,
    RecallRequest,
    RememberRequest,
    ReservationRequest,
    ResolutionRequest,
    ScaleRequest,
    SourceIn,
    fact_out,
    parse,
    parse_query,
)
from muniment.cluster.schemas.base import MAX_ERRORS, Request
from muniment.cluster.settings import LimitSettings
from muniment.policies.access import Role
from muniment.policies.errors import InvalidInput
from muniment.policies.model import Scope, Source, SourceKind, Status

FACT: dict[str, Any] = {"text": "the invoice contact is Dana", "source": {"kind": "system_of_record", "id": "crm"}}
PROPOSAL: dict[str, Any] = {
    "area": "sales", "agent": "closer", "tool": "mail.send", "arguments": {"to": "lee"}, "run_id": "r1", "step_id": "s1"
}  # fmt: skip


def faults(model: type[Request], data: Any, **limits: int) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        parse(model, data, LimitSettings(**limits))
    return [(error["pointer"], error["message"]) for error in caught.value.fields["errors"]]


def fact_faults(**changed: Any) -> list[tuple[str, str]]:
    return faults(RememberRequest, {"facts": [{**FACT, **changed}]})


@pytest.mark.parametrize(
    ("changed", "pointer", "message"),
    [
        ({"text": ""}, "/text", "must not be empty"),
        ({"text": " \n"}, "/text", "must not be empty"),
        ({"text": "x" * 40 * 1024}, "/text", "is 40960 bytes of UTF-8, the limit is 32768"),
        ({"text": "\u00e9" * 16385}, "/text", "is 32770 bytes"),
        ({"text": "a\x00b"}, "/text", "NUL"),
        ({"text": "\ud800"}, "/text", "lone surrogate"),
        ({"text": None}, "/text", "must be a string"),
        ({"text": b"x"}, "/text", "must be a string"),
        ({"importance": float("nan")}, "/importance", "finite"),
        ({"importance": float("inf")}, "/importance", "finite"),
        ({"importance": 1.01}, "/importance", "less than or equal to 1"),
        ({"importance": True}, "/importance", "must be a number"),
        ({"importance": "0.5"}, "/importance", "must be a number"),
        ({"effective_at": "2026-01-02T03:04:05"}, "/effective_at", "no UTC offset"),
        ({"effective_at": datetime(2026, 1, 2)}, "/effective_at", "no UTC offset"),  # noqa: DTZ001
        ({"review_at": 1767323045}, "/review_at", "RFC 3339"),
        ({"review_at": "1767323045"}, "/review_at", "RFC 3339"),
        ({"review_at": "2026-02-30T00:00:00Z"}, "/review_at", "exists"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "/expires_at", "out of range"),
        (
            {"effective_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:00:00Z"},
            "/expires_at",
            "later than effective_at",
        ),
        ({"subject": "acme"}, "/field", "come together"),
        ({"subject": "acme", "field": "contact"}, "/value", "come together"),
        ({"subject": "acme", "field": "contact", "value": None}, "/value", "come together"),
        ({"value": 0}, "/subject", "come together"),
        ({"subject": "a", "field": "b", "value": [1]}, "/value", "a string, a number or a boolean"),
        ({"subject": "a", "field": "b", "value": float("-inf")}, "/value", "finite"),
        ({"subject": "a", "field": "b", "value": 2**64}, "/value", "64 bits"),
        ({"subject": "a" * 513, "field": "b", "value": 1}, "/subject", "at most 512 characters"),
        ({"user": "ana"}, "/user", "only a personal fact"),
        ({"scope": "private"}, "/scope", "'shared' or 'personal'"),
        ({"colour": 1}, "/colour", "not a known field"),
        ({"a/b~c": 1}, "/a~1b~0c", "not a known field"),
        ({"source": {"kind": "crm"}}, "/source/kind", "must be 'system_of_record'"),
        ({"source": {"kind": "counterparty", "external": 1}}, "/source/external", "true or false"),
        ({"source": []}, "/source", "must be an object"),
        ({"tags": ["a", ""]}, "/tags/1", "must not be empty"),
        ({"tags": ["a"] * 65}, "/tags", "at most 64 items"),
        ({"tags": "a"}, "/tags", "must be a list"),
        ({"metadata": {"a": [0, {"b": float("nan")}]}}, "/metadata/a/1/b", "finite"),
        ({"metadata": {"a": "\udfff"}}, "/metadata/a", "surrogate"),
        ({"metadata": {"\x00": 1}}, "/metadata", "NUL"),
        ({"metadata": {"a": "x" * 16384}}, "/metadata", "the limit is 16384"),
        ({"metadata": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {}}}}}}}}}}, "/metadata/a/a/a/a/a/a/a/a", "8"),
        ({"metadata": {"a": 2**64}}, "/metadata/a", "64 bits"),
        ({"metadata": {"a": object()}}, "/metadata/a", "must be"),
    ],
)
def test_a_wrong_fact_is_named_by_its_pointer(changed, pointer, message):
    found = fact_faults(**changed)
    assert [place for place, _ in found] == ["/facts/0" + pointer]
    assert message in found[0][1]


def test_the_700th_fact_is_named():
    facts = [dict(FACT) for _ in range(1000)]
    facts[699] = {**FACT, "text": ""}
    assert faults(RememberRequest, {"facts": facts}) == [("/facts/699/text", "must not be empty")]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [([], ""), ("x", ""), (None, ""), ({}, "/facts"), ({"facts": []}, "/facts"), ({"facts": [FACT] * 1001}, "/facts"),
     ({"facts": {}}, "/facts"), ({"facts": ["x"]}, "/facts/0"),
     ({"facts": [FACT], "idempotency_key": ""}, "/idempotency_key"), ({"facts": [0] * 100_000}, "/facts")],
)  # fmt: skip
def test_a_wrong_batch_is_named_by_its_pointer(body, pointer):
    assert faults(RememberRequest, body)[0][0] == pointer


def test_no_answer_names_more_errors_than_anybody_reads():
    assert len(faults(RememberRequest, {"facts": [{}] * 1000})) == MAX_ERRORS
    many = {f"field{n}": n for n in range(10_000)}
    assert faults(RememberRequest, {"facts": [{**FACT, **many}]}) == [
        ("/facts/0", "has 10002 fields, of which at most 16 are known")
    ]
    assert len(faults(RememberRequest, {"facts": [FACT], "x" * 100_000: 1})[0][0]) < 400


def test_limits_are_settings():
    assert faults(RememberRequest, {"facts": [FACT]}, text_bytes=4)[0][0] == "/facts/0/text"
    assert faults(RememberRequest, {"facts": [FACT] * 2}, batch_facts=1)[0][0] == "/facts"
    assert faults(ProposeRequest, PROPOSAL, arguments_bytes=4)[0][0] == "/arguments"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=200))
def test_any_text_is_accepted_and_becomes_nfc(text):
    if not text.strip():
        assert fact_faults(text=text) == [("/facts/0/text", "must not be empty")]
        return
    for form in ("NFC", "NFD"):
        parsed = parse(FactIn, {**FACT, "text": unicodedata.normalize(form, text)})
        assert parsed.text == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05.25+03:00", datetime(2026, 1, 2, 0, 4, 5, 250000, tzinfo=UTC)),
        ("1969-12-31T23:59:59.999999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ],
)
def test_times_are_utc_inside(written, read):
    moment = parse(FactIn, {**FACT, "effective_at": written}).effective_at
    assert moment == read
    assert moment.utcoffset().total_seconds() == 0


@pytest.mark.parametrize("value", ["Dana", "", 0, 1.5, False, True, -(2**63), 2**64 - 1])
def test_every_json_scalar_is_a_value(value):
    parsed = parse(FactIn, {**FACT, "subject": "a", "field": "b", "value": value})
    assert parsed.value == value
    assert type(parsed.value) is type(value)


def test_a_fact_survives_the_way_in_and_out():
    sent = {
        **FACT,
        "subject": "acme", "field": "contact", "value": False, "area": "sales", "agent": "closer",
        "effective_at": "2026-01-02T03:04:05.5Z", "expires_at": "2027-01-02T03:04:05Z",
        "entities": ["Dana"], "tags": ["crm"], "metadata": {"ticket": 7}, "importance": 0.5,
    }  # fmt: skip
    now = datetime(2026, 3, 4, tzinfo=UTC)
    fact = parse(FactIn, sent).to_domain(
        id="f_1", company="globex", writer="ana", recorded_at=now, default_importance=0.1
    )
    assert (fact.importance, fact.source.kind, fact.status) == (0.5, SourceKind.SYSTEM_OF_RECORD, Status.CURRENT)
    told = fact_out(fact, "ana", [Source(kind=SourceKind.COUNTERPARTY, party="acme", external=True)])
    assert told == {
        **sent,
        "id": "f_1",
        "status": "current",
        "scope": "shared",
        "owner": "ana",
        "recorded_at": "2026-03-04T00:00:00Z",
        "evidence": [{"kind": "counterparty", "party": "acme", "external": True}],
    } | {"effective_at": "2026-01-02T03:04:05.500000Z"}
    assert json.loads(json.dumps(told)) == told


def test_what_a_fact_does_not_say():
    fact = parse(FactIn, {**FACT, "scope": "personal", "user": "ana"}).to_domain(
        id="f_1", company="globex", writer="k", recorded_at=datetime(2026, 1, 1, tzinfo=UTC), default_importance=0.25
    )
    assert (fact.importance, fact.scope, fact.user) == (0.25, Scope.PERSONAL, "ana")
    assert set(fact_out(fact, None)) == {
        "id", "text", "source", "recorded_at", "importance", "status", "scope", "user", "evidence"
    }  # fmt: skip


def test_parse_takes_models_as_well_as_dicts():
    source = SourceIn(kind=SourceKind.COUNTERPARTY, derived_from=("f_1",))
    assert parse(RememberRequest, {"facts": [{"text": "x", "source": source}]}).facts[0].source.to_domain() == Source(
        kind=SourceKind.COUNTERPARTY, derived_from=("f_1",)
    )


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [({"query": " "}, "/query"), ({"filters": {"min_importance": "0.5"}}, "/filters/min_importance"),
      ({"top_k": 0}, "/top_k"), ({"top_k": 201}, "/top_k"), ({"top_k": 2.0}, "/top_k"),
     ({"top_k": True}, "/top_k"), ({"min_score": float("nan")}, "/min_score"), ({"profile": "slow"}, "/profile"),
     ({"filters": {"colour": 1}}, "/filters/colour"), ({"filters": {"source_kinds": ["x"]}}, "/filters/source_kinds/0"),
     ({"filters": None}, "/filters"), ({"as_of": "2026-01-01T00:00:00"}, "/as_of"), ({"explain": "yes"}, "/explain")],
)  # fmt: skip
def test_a_wrong_question(changed, pointer):
    assert [place for place, _ in faults(RecallRequest, {"query": "who?", **changed})] == [pointer]


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [({"window": {"seconds": 0}}, "/window/seconds"), ({"window": {"seconds": float("inf")}}, "/window/seconds"),
     ({"window": {}}, "/window"), ({"window": {"seconds": 1, "permanent": True}}, "/window"),
     ({"window": "on"}, "/window"),
     ({"window": {"permanent": False}}, "/window/permanent"), ({"window": None}, "/window"), ({"window": 5}, "/window"),
     ({"key_paths": []}, "/key_paths"), ({"key_paths": ["a/b"]}, "/key_paths/0"),
     ({"key_paths": ["/a", "b..c"]}, "/key_paths/1"),
     ({"key_paths": ["/a~2"]}, "/key_paths/0"), ({"key_paths": [""]}, "/key_paths/0"),
     ({"key_paths": ["/a", "a"]}, "/key_paths"),
     ({"lease_seconds": 0.5}, "/lease_seconds"), ({"max_duplicates_per_run": 0}, "/max_duplicates_per_run"),
     ({"blocked": 1}, "/blocked")],
)  # fmt: skip
def test_a_wrong_classification(changed, pointer):
    body = {"key_paths": ["/a"], "window": {"seconds": 60}, **changed}
    assert [place for place, _ in faults(ClassificationRequest, body)] == [pointer]


def test_key_paths_have_a_shorthand_and_an_unkeyed_tool_needs_none():
    parsed = parse(ClassificationRequest, {"key_paths": ["owner.name", "/a~1b", "x~y"], "window": {"permanent": True}})
    assert parsed.key_paths == ("/owner/name", "/a~1b", "/x~0y")
    assert parse(ClassificationRequest, {"key_paths": [], "window": "off"}).window == "off"


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [({"arguments": []}, "/arguments"), ({"arguments": {"a": "x" * 262_144}}, "/arguments"),
     ({"wait_ms": 30_001}, "/wait_ms"),
     ({"arguments": {"a": {"b": float("nan")}}}, "/arguments/a/b"), ({"wait_ms": -1}, "/wait_ms"),
     ({"run_id": ""}, "/run_id"),
     ({"tainted": 0}, "/tainted")],
)  # fmt: skip
def test_a_wrong_proposal(changed, pointer):
    assert [place for place, _ in faults(ProposeRequest, {**PROPOSAL, **changed})] == [pointer]


def test_arguments_nest_as_deep_as_a_body_may_and_no_deeper():
    nested: dict[str, Any] = {}
    for _ in range(62):
        nested = {"a": nested}
    assert parse(ProposeRequest, {**PROPOSAL, "arguments": nested}).arguments == nested
    for _ in range(5000):
        nested = {"a": nested}
    assert faults(ProposeRequest, {**PROPOSAL, "arguments": nested})[0][1] == "is nested deeper than 63"


@pytest.mark.parametrize(
    ("model", "body", "pointer"),
    [
        (ResolutionRequest, {"decision": "both_valid"}, "/rescope"),
        (ResolutionRequest, {"decision": "both_valid", "rescope": {}}, "/rescope"),
        (ResolutionRequest, {"decision": "new_value"}, "/value"),
        (ResolutionRequest, {"decision": "dismiss", "value": 1}, "/value"),
        (ResolutionRequest, {"decision": "average"}, "/decision"),
        (KeyRequest, {"roles": []}, "/roles"),
        (KeyRequest, {"roles": ["king"]}, "/roles/0"),
        (KeyRequest, {"roles": ["agent"], "user": "key:k_1"}, "/user"),
        (KeyRequest, {"roles": ["agent"], "sources": ["rumour"]}, "/sources/0"),
        (CompanyRequest, {"company": "a/b"}, "/company"),
        (CompanyRequest, {"company": " a"}, "/company"),
        (CompanyRequest, {"company": "\u00e9" * 65}, "/company"),
        (CompanyRequest, {"company": "a\nb"}, "/company"),
        (CompanyRequest, {"company": ".."}, "/company"),
        (ReservationRequest, {"token": ""}, "/token"),
        (ImportKeysRequest, {"effects": []}, "/effects"),
        (ImportKeysRequest, {"effects": [{"area": "a"}] * 1001}, "/effects"),
        (AuditRequest, {"limit": 201}, "/limit"),
        (AuditRequest, {"limit": "5"}, "/limit"),
        (ScaleRequest, {"shards": True}, "/shards"),
        (ScaleRequest, {"workers": "3"}, "/workers"),
        (PlaceRequest, {"pinned": "yes"}, "/pinned"),
    ],
)
def test_other_wrong_requests(model, body, pointer):
    assert faults(model, body)[0][0] == pointer


def test_a_query_string_repeats_lists_only():
    parsed = parse_query(MemoriesQuery, [("tags", "a"), ("tags", "b"), ("limit", "3"), ("min_importance", "0.5")])
    assert (parsed.tags, parsed.limit, parsed.min_importance) == (("a", "b"), 3, 0.5)
    for pairs, pointer in [
        ([("limit", "3"), ("limit", "4")], "/limit"),
        ([("limit", "201")], "/limit"),
        ([("limit", "1.5")], "/limit"),
        ([("min_importance", "nan")], "/min_importance"),
        ([("colour", "red")], "/colour"),
        ([("status", "gone")], "/status"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            parse_query(MemoriesQuery, pairs)
        assert caught.value.fields["errors"][0]["pointer"] == pointer


def test_keys_have_roles():
    parsed = parse(KeyRequest, {"company": "acme", "roles": ["agent", "owner"], "groups": ["finance"]})
    assert parsed.roles == (Role.AGENT, Role.OWNER)
    assert parsed.sources is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
MODELS = [getattr(schemas, name) for name in schemas.__all__ if isinstance(getattr(schemas, name), type)]
REQUESTS = [model for model in MODELS if issubclass(model, Request)]


@given(st.data(), st.sampled_from(REQUESTS))
def test_anything_at_all_is_parsed_or_named(data, model):
    known = dict.fromkeys(model.model_fields, JSON)
    body = data.draw(JSON | st.fixed_dictionaries({}, optional=known))
    named: list[dict[str, str]] = []
    try:
        parse(model, body)
    except InvalidInput as error:
        named = error.fields["errors"]
    assert all(error["pointer"] == "" or error["pointer"].startswith("/") for error in named)
    json.dumps(named, allow_nan=False, ensure_ascii=False).encode()
