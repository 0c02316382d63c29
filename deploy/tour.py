"""The tour: what the service does, shown on a real log through the public HTTP API, for a company of its own.

The log is stored once: a later tour finds it again. Only the effect is a new one each time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from muniment.cluster import Client

COMPANY = "tour"
_BATCH = 100
_TIMEOUT_SECONDS = 180.0
_ALARMING = re.compile(r"fatal|error|panic|fail", re.IGNORECASE)
_QUESTIONS = (
    "Lustre mount FAILED at boot",
    "Which program could ciod not load, with Exec format error?",
    "What was wrong with R24-M0-N0-I:J18-U01?",
)
_SUBJECT, _FIELD = "Aurora Ltda", "contact"
_TOLD: tuple[dict[str, Any], ...] = (
    {
        "text": "Dana Reis is the main contact at Aurora Ltda.",
        "value": "Dana Reis",
        "source": {"kind": "system_of_record", "id": "crm:account/4711", "author": "crm-sync"},
        "effective_at": "2026-01-12T09:00:00Z",
    },
    {
        "text": "Lee Park looks after the project at Aurora Ltda now.",
        "value": "Lee Park",
        "source": {"kind": "agent_summary", "id": "inbox:8842", "author": "assistant"},
        "effective_at": "2026-02-02T14:30:00Z",
    },
)
_TOOL = "ticketing.create_issue"


@dataclass(frozen=True, slots=True)
class _Guide:
    """Who walks: one client that remembers, asks and acts, one that curates and may read decisions."""

    agent: Client
    curator: Client
    console: Console

    def say(self, line: str, style: str = "") -> None:
        """Prints a line as it is, however long."""
        self.console.print(Text(line, style=style), soft_wrap=True)


def walk(url: str, operator_key: str, log: Path, console: Console) -> None:
    """Walks the whole tour against the service at ``url``."""
    with _clients(url, operator_key) as (agent, curator):
        guide = _Guide(agent, curator, console)
        _store(guide, log)
        _recall(guide)
        _contradict(guide)
        _act_twice(guide)


@contextmanager
def _clients(url: str, operator_key: str) -> Iterator[tuple[Client, Client]]:
    """Two clients with keys that end with the tour."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    with Client(url, key=operator_key, company=COMPANY) as operator:
        operator.create_company(COMPANY)
        wanted = (
            {"roles": ["agent"], "sources": ["system_of_record", "agent_summary"]},
            {"roles": ["curator"]},
        )
        made = [operator.create_key(company=COMPANY, expires_at=soon, **options) for options in wanted]
        try:
            with (
                Client(url, key=made[0]["key"], timeout_seconds=_TIMEOUT_SECONDS) as agent,
                Client(url, key=made[1]["key"], timeout_seconds=_TIMEOUT_SECONDS) as curator,
            ):
                yield agent, curator
        finally:
            for key in made:
                operator.revoke_key(key["id"])


def fact_of(line: str, source_id: str, tag: str) -> dict[str, Any] | None:
    """The fact that one line of a BlueGene/L log tells, or None for a line of another format.

    A line is: alert label, seconds since 1970, date, place, local time with microseconds, place, kind, component,
    severity, message. Importance is 0.95 for what is alarming (fatal, error, panic, fail), else 0.5.
    """
    parts = line.split(maxsplit=9)
    if len(parts) < 10 or not parts[1].isdigit():
        return None
    label, seconds, _, place, local = parts[:5]
    text = " ".join(parts[5:])
    fraction = local.rpartition(".")[2]
    microseconds = int(fraction) if len(fraction) == 6 and fraction.isdigit() else 0
    at = datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=microseconds)
    return {
        "text": text,
        "source": {"kind": "system_of_record", "id": source_id},
        "effective_at": at.isoformat(),
        "importance": 0.95 if _ALARMING.search(text) else 0.5,
        "tags": [tag],
        "metadata": {"place": place, "severity": parts[8]} | ({} if label == "-" else {"alert": label}),
    }


def _store(guide: _Guide, log: Path) -> None:
    guide.console.rule("1. Store a real log", align="left")
    content = log.read_bytes()
    tag = f"log:{hashlib.sha256(content).hexdigest()[:12]}"
    lines = content.decode(errors="replace").splitlines()
    numbered = ((f"{log.name}:{number}", line) for number, line in enumerate(lines, 1))
    facts = [fact for source_id, line in numbered if (fact := fact_of(line, source_id, tag)) is not None]
    there = _stored_ids(guide.agent, tag)
    missing = [fact for fact in facts if fact["source"]["id"] not in there]
    if missing:
        _tell(guide, missing)
    alarming = sum(fact["importance"] > 0.5 for fact in facts)
    guide.say(
        f"{len(facts)} of {len(lines)} lines are facts, {alarming} of them important (0.95); "
        f"{len(there)} were here already, {len(missing)} are new."
    )


def _stored_ids(client: Client, tag: str) -> set[str]:
    """The source ids of the facts that carry ``tag``."""
    found: set[str] = set()
    cursor = None
    while True:
        page = client.memories(tags=[tag], limit=200, cursor=cursor)
        found.update(fact["source"]["id"] for fact in page["memories"])
        cursor = page.get("next")
        if cursor is None:
            return found


def _tell(guide: _Guide, facts: list[dict[str, Any]]) -> None:
    columns = (TextColumn("remembering"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=guide.console) as progress:
        bar = progress.add_task("remembering", total=len(facts))
        for start in range(0, len(facts), _BATCH):
            batch = facts[start : start + _BATCH]
            guide.agent.remember(batch)
            progress.advance(bar, len(batch))


def _recall(guide: _Guide) -> None:
    guide.console.rule("2. Recall", align="left")
    for question in _QUESTIONS:
        answer = guide.agent.recall(question, top_k=3)
        guide.say(f"? {question}", "bold")
        table = Table("score", "tier", "importance", "fact", box=None, pad_edge=False)
        for result in answer["results"]:
            fact = result["fact"]
            table.add_row(f"{result['score']:.3f}", result["tier"], f"{fact['importance']:.2f}", Text(fact["text"]))
        guide.console.print(table)
        guide.say(_route_line(answer["route"]), "dim")


def _route_line(route: dict[str, Any]) -> str:
    gate = route["gate"]
    similarity, threshold = gate.get("top_similarity"), gate.get("threshold")
    seen = "" if similarity is None or threshold is None else f", similarity {similarity:.2f} of {threshold:.2f}"
    uncovered = f", not covered: {', '.join(gate['uncovered'])}" if gate.get("uncovered") else ""
    reranked = "reranked" if route["reranked"] else "not reranked"
    degraded = f", degraded: {route['degraded']}" if route.get("degraded") else ""
    return f"  gate: {gate['decision']} because {gate['reason']}{seen}{uncovered}; {reranked}{degraded}"


def _contradict(guide: _Guide) -> None:
    guide.console.rule("3. Two facts that contradict each other", align="left")
    known = guide.agent.facts(_SUBJECT, _FIELD)
    told = {fact["value"] for fact in known["history"]}
    if known["current"] is not None:
        told.add(known["current"]["value"])
    for fact in _TOLD:
        source = fact["source"]["kind"]
        if fact["value"] in told:
            outcome = "told by an earlier tour"
        else:
            (result,) = guide.agent.remember([{"subject": _SUBJECT, "field": _FIELD, **fact}])["results"]
            outcome = f"-> {result['outcome']}"
        guide.say(f"  {source}: {fact['text']}  {outcome}")
    for entry in guide.curator.decisions(subject=_SUBJECT, field=_FIELD)["entries"]:
        line = f"  decided: {entry['outcome']} by rule {entry['rule']}: {entry['reason']}"
        guide.say(line, "bold")
    now = guide.agent.facts(_SUBJECT, _FIELD)
    current = now["current"]
    guide.say(f"  {_FIELD} of {_SUBJECT} now: {current['value'] if current else 'nothing'}")
    if now.get("dispute"):
        guide.say(f"  beside it: {now['dispute']['notice']}")


def _act_twice(guide: _Guide) -> None:
    guide.console.rule("4. One effect, proposed by two runs", align="left")
    guide.curator.classify(_TOOL, key_paths=["/project", "/title"], window={"seconds": 86400})
    moment = datetime.now(UTC)
    arguments = {"project": "bgl", "title": f"Lustre mount failed, seen {moment.isoformat()}", "body": "See the log."}
    call: dict[str, Any] = {"area": "operations", "agent": "watcher", "tool": _TOOL, "arguments": arguments}
    runs = [f"run-{moment:%Y%m%dT%H%M%S%f}-{name}" for name in "ab"]
    first = guide.agent.propose(**call, run_id=runs[0], step_id="1")
    guide.say(f"  {runs[0]} step 1: {first['verdict']} ({first['reason']})", "bold")
    if first["verdict"] == "allow":
        done = guide.agent.confirm(first["reservation"]["token"])
        guide.say(f"  the tool returned success: {done['state']}")
    second = guide.agent.propose(**call, run_id=runs[1], step_id="7")
    origin = second.get("origin", {})
    guide.say(f"  {runs[1]} step 7: {second['verdict']} ({second['reason']})", "bold")
    guide.say(f"  origin: {origin.get('run_id')} step {origin.get('step_id')}, confirmed {origin.get('confirmed_at')}")


def say_where(url: str, data_dir: Path, console: Console) -> None:
    """Says where everything is and how to go on."""
    console.rule("5. Where it is", align="left")
    lines = (
        f"API      {url}",
        f"docs     {url}/docs",
        f"console  {url}/console",
        f"data     {data_dir}",
        f"a key    muniment key create --company {COMPANY} --roles agent,owner --data-dir {data_dir}",
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)
