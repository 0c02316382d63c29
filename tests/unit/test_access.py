from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.policies.access import (
    TABLE,
    Extent,
    Grant,
    Permission,
    Principal,
    Role,
    confine,
    extent,
    owns,
    permitted_source_kind,
    principal_of,
    require,
    require_company,
    require_same_company,
    within_scope,
)
from muniment.policies.errors import Forbidden, InvalidInput, Unauthenticated
from muniment.policies.model import SourceKind
from muniment.policies.precedence_policy import UNASSIGNED

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def grant(*roles: Role, **given_fields: object) -> Grant:
    fields = {"key_id": "k_1", "company": "acme", "roles": frozenset(roles), **given_fields}
    return Grant(**fields)  # type: ignore[arg-type]


def principal(*roles: Role, **given_fields: object) -> Principal:
    return principal_of(grant(*roles, **given_fields), NOW)


def test_the_table_is_complete_and_only_an_operator_operates():
    assert set(TABLE) == set(product(Permission, Role))
    assert [role for role in Role if TABLE[Permission.OPERATE, role]] == [Role.OPERATOR]
    assert all(TABLE[permission, Role.OPERATOR] is Extent.ALL for permission in Permission)


@pytest.mark.parametrize(
    ("role", "may"),
    [
        (Role.AGENT, {"remember", "recall", "effects", "read_trails"}),
        (
            Role.OWNER,
            {
                "remember", "recall", "effects", "list_conflicts", "rule_conflicts", "read_decisions", "read_trails",
                "correct_facts",
            },
        ),
        (Role.CURATOR, {"curate", "read_decisions", "read_trails", "read_stats"}),
        (Role.AUDITOR, {"read_decisions", "read_trails", "read_stats"}),
        (
            Role.ADMIN,
            {
                "remember", "recall", "effects", "list_conflicts", "curate", "read_decisions", "read_trails",
                "read_stats", "correct_facts", "administer_company",
            },
        ),
        (Role.OPERATOR, {permission.value for permission in Permission}),
    ],
)  # fmt: skip
def test_each_role_may_what_the_contract_says_and_nothing_else(role, may):
    assert {permission.value for permission in Permission if extent(principal(role), permission)} == may


def test_own_is_not_all():
    assert require(principal(Role.OWNER), Permission.CORRECT_FACTS) is Extent.OWN
    assert require(principal(Role.AGENT), Permission.READ_TRAILS) is Extent.OWN
    assert require(principal(Role.OWNER, Role.ADMIN), Permission.CORRECT_FACTS) is Extent.ALL
    with pytest.raises(Forbidden, match="rule_conflicts"):
        require(principal(Role.ADMIN), Permission.RULE_CONFLICTS)


@given(st.frozensets(st.sampled_from(Role)), st.frozensets(st.sampled_from(Role)), st.sampled_from(Permission))
def test_a_key_may_what_any_of_its_roles_may(some, others, permission):
    both = extent(principal(*(some | others)), permission)
    assert both == max(extent(principal(*some), permission), extent(principal(*others), permission))


def test_the_actor_is_the_bound_user_else_x_user_else_the_key():
    bound = grant(Role.AGENT, user="ana")
    assert principal_of(bound, NOW).actor == "ana"
    assert principal_of(bound, NOW, x_user="ana").user == "ana"
    free = grant(Role.AGENT)
    assert principal_of(free, NOW, x_user="lee").actor == "lee"
    alone = principal_of(free, NOW)
    assert (alone.actor, alone.user) == ("key:k_1", None)
    with pytest.raises(Forbidden):
        principal_of(bound, NOW, x_user="lee")


def test_user_and_company_compare_in_nfc():
    bound = grant(Role.AGENT, user="Jos\u00e9", company="caf\u00e9")
    acting = principal_of(bound, NOW, x_user="Jose\u0301", x_company="cafe\u0301")
    assert (acting.actor, acting.company) == ("Jos\u00e9", "caf\u00e9")


@pytest.mark.parametrize("user", ["", "  ", "key:k_2", "KEY:k_2"])
def test_a_user_cannot_be_blank_nor_pass_for_a_key(user):
    with pytest.raises(InvalidInput) as caught:
        principal_of(grant(Role.AGENT), NOW, x_user=user)
    assert caught.value.fields["errors"][0]["pointer"] == "/X-User"


def test_an_expired_key_is_nobody():
    assert principal_of(grant(Role.AGENT, expires_at=NOW + timedelta(microseconds=1)), NOW).key_id == "k_1"
    with pytest.raises(Unauthenticated):
        principal_of(grant(Role.AGENT, expires_at=NOW), NOW)


def test_the_company_comes_from_the_key_and_an_operator_names_one():
    acme = grant(Role.ADMIN)
    assert principal_of(acme, NOW, x_company="acme").company == "acme"
    with pytest.raises(Forbidden):
        principal_of(acme, NOW, x_company="other")
    operator = grant(Role.OPERATOR, company=None)
    assert require_company(principal_of(operator, NOW, x_company="other")) == "other"
    with pytest.raises(InvalidInput):
        require_company(principal_of(operator, NOW))
    with pytest.raises(Forbidden):
        require_same_company(principal_of(acme, NOW), "other")
    require_same_company(principal_of(operator, NOW), "other")
    require_same_company(principal_of(operator, NOW, x_company="acme"), "other")


def test_source_kinds_come_from_the_key_else_from_its_roles():
    by_agent = principal(Role.AGENT)
    assert {kind.value for kind in by_agent.source_kinds} == {"counterparty", "agent_summary", "unattributed"}
    assert permitted_source_kind(principal(Role.AGENT, Role.OWNER), SourceKind.AUTHORIZED_PERSON)
    assert not permitted_source_kind(principal(Role.OWNER), SourceKind.SYSTEM_OF_RECORD)
    assert principal(Role.CURATOR).source_kinds == principal(Role.ADMIN).source_kinds == frozenset(SourceKind)
    own = principal(Role.ADMIN, source_kinds=frozenset({SourceKind.COUNTERPARTY}))
    assert own.source_kinds == {SourceKind.COUNTERPARTY}
    assert principal(Role.ADMIN, source_kinds=frozenset()).source_kinds == frozenset()


def test_an_owner_is_the_actor_or_a_group_and_unassigned_is_every_owner_key():
    ana = principal(Role.OWNER, user="ana", groups=frozenset({"finance"}))
    assert owns(ana, "ana")
    assert owns(ana, "finance")
    assert owns(ana, UNASSIGNED)
    assert not owns(ana, "lee")
    assert not owns(principal(Role.AGENT, user="ana"), UNASSIGNED)


def test_a_bound_key_is_confined():
    assert confine(None, "sales", "/area") == "sales"
    assert confine("sales", None, "/area") == "sales"
    assert confine("sales", "sales", "/area") == "sales"
    with pytest.raises(Forbidden, match="another area"):
        confine("sales", "finance", "/filters/area")


def test_the_labels_of_a_bound_key_compare_as_in_filters():
    assert confine("Vertrieb Süd", " vertrieb su\u0308d", "/area") == "Vertrieb Süd"
    bound = principal(Role.AGENT, area="sales", agent="Mailer")
    assert within_scope(bound, "Sales", "mailer ")
    for area, agent in (("Sales", None), (None, "mailer"), ("salesx", "mailer"), ("", "mailer")):
        assert not within_scope(bound, area, agent)
