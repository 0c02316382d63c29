"""Does the store hold together: chains of hashes, facts and what belongs to them, conflicts, effects, orphans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from muniment.actors.store import control_tables, effect_store
from muniment.actors.store import memory_tables as t
from muniment.actors.store.decision_log import DecisionLog
from muniment.actors.store.memory_store import fact_row
from muniment.actors.store.transfer import Engines, Progress, snapshots, untold
from muniment.actors.wire import fact_from_dict, unpack
from muniment.policies.errors import CorruptData, NotFound
from muniment.policies.fingerprint import company_prefix
from muniment.policies.model import Status

#: Problems that are told one by one; all are counted.
_SHOWN = 100


@dataclass(slots=True)
class Report:
    """What was looked at, and what is wrong: how often, and the first of it with its place."""

    checked: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)
    progress: Progress = untold

    def problem(self, kind: str, where: str) -> None:
        """Notes that something is wrong."""
        self.wrong[kind] += 1
        if len(self.problems) < _SHOWN:
            self.problems.append({"problem": kind, "where": where})

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "intact": not self.wrong,
            "checked": dict(self.checked),
            "wrong": dict(self.wrong),
            "problems": self.problems,
        }


def verify(engines: Engines, company: str | None = None, progress: Progress = untold) -> Report:
    """Walks all that is stored (of one company), as it was at one moment.

    Raises ``NotFound`` where nothing is stored of a company of this name.
    """
    report = Report(progress=progress)
    with snapshots(engines) as connections:
        logs = (
            ("memory", DecisionLog(t.decisions, t.decision_heads)),
            ("effects", effect_store.decision_log),
            ("control", DecisionLog(control_tables.control_decisions, control_tables.control_heads)),
        )
        for database, log in logs:
            count, broken = log.verify(connections[database], company)
            report.checked[f"{database} decisions"] = count
            progress(count)
            if broken is not None:
                report.problem("broken chain", f"{broken['stream']} {broken['seq']}")
        _facts(connections["memory"], company, report)
        _belongings(connections["memory"], company, report)
        _effects(connections["effects"], company, report)
        _companies(connections, company, report)
    if company is not None and not report.checked.total():
        raise NotFound("there is no such company")
    return report


def _read(connection: sa.Connection, query: sa.Select[Any], report: Report) -> Iterator[Any]:
    for part in connection.execute(query, execution_options={"yield_per": 1000}).partitions():
        yield from part
        report.progress(len(part))


def _facts(connection: sa.Connection, company: str | None, report: Report) -> None:
    f, v = t.facts, t.vectors
    dimension = connection.execute(sa.select(t.embedding_model.c.dimension)).scalar()
    query = sa.select(f, sa.func.length(v.c.vector).label("size")).outerjoin(v, v.c.fact_id == f.c.id).order_by(f.c.id)
    if company is not None:
        query = query.where(f.c.company == company)
    for row in _read(connection, query, report):
        report.checked["facts"] += 1
        try:
            fact = fact_from_dict(unpack(row.body))
        except (CorruptData, KeyError, TypeError, ValueError):
            report.problem("a fact cannot be read", row.id)
            continue
        if any(getattr(row, name) != value for name, value in fact_row(fact).items() if name != "body"):
            report.problem("a fact's columns say something else than the fact", row.id)
        indexed = fact.status is Status.CURRENT and fact.corroborates is None
        if row.tier is not None and not indexed:
            report.problem("a fact that is not current is in a tier", row.id)
        if fact.status is Status.DELETED:
            if row.size is not None or fact.text:
                report.problem("a deleted fact is still there", row.id)
        elif row.size is None:
            report.problem("a fact has no vector", row.id)
        elif row.size != 4 * (dimension or 0):
            report.problem("a vector is not of the model's dimension", row.id)


def _belongings(connection: sa.Connection, company: str | None, report: Report) -> None:
    """What names a fact that is not there. Deleted for good are only facts of no slot and erased users' facts."""
    f, c = t.facts.alias(), t.conflicts.c
    pairs: tuple[tuple[str, sa.Table, sa.ColumnElement[Any], Any], ...] = (
        ("a vector has no fact", t.vectors, t.vectors.c.fact_id, None),
        ("a derivation has no fact", t.derivations, t.derivations.c.child_id, None),
        ("something happened to a fact that is not there", t.fact_events, t.fact_events.c.fact_id, None),
        ("an open conflict is about a fact that is not there", t.conflicts, c.subject_id, c.status == "open"),
        ("an open conflict's challenger is not there", t.conflicts, c.challenger_id, c.status == "open"),
    )
    for kind, table, named, condition in pairs:
        lost = sa.select(named).where(
            named.is_not(None), ~sa.exists().where(f.c.id == named, f.c.company == table.c.company)
        )
        if condition is not None:
            lost = lost.where(condition)
        if company is not None:
            lost = lost.where(table.c.company == company)
        for row in _read(connection, lost, report):
            report.problem(kind, row[0])


def _effects(connection: sa.Connection, company: str | None, report: Report) -> None:
    k = effect_store.keys.c
    query = sa.select(k.key, k.company, k.state, k.run_id, k.ends_at, k.retire_at).order_by(k.key)
    if company is not None:
        query = query.where(k.company == company)
    for row in _read(connection, query, report):
        report.checked["effects"] += 1
        where = bytes(row.key).hex()
        if row.state not in ("reserved", "confirmed", "released"):
            report.problem("an effect is in no state that there is", where)
        if row.state == "reserved" and (row.ends_at is None or row.run_id is None):
            report.problem("a reservation has no end or no holder", where)
        if not bytes(row.key).startswith(company_prefix(row.company)):
            report.problem("an effect's key is not of its company", where)


def _companies(connections: dict[str, sa.Connection], company: str | None, report: Report) -> None:
    """Whatever is there belongs to a company that is."""
    known = set(connections["control"].execute(sa.select(control_tables.companies.c.company)).scalars())
    if company is not None:
        report.checked["companies"] = int(company in known)
        return
    report.checked["companies"] = len(known)
    for database, table in (("memory", t.facts), ("effects", effect_store.keys), ("memory", t.decisions)):
        for row in _read(connections[database], sa.select(table.c.company).distinct(), report):
            if row.company not in known:
                report.problem(f"{table.name} of a company that is not there", row.company)
