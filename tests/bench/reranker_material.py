"""What the bundled cross-encoder is trained on: questions of a file, and generated ones that teach what memories need.

The generated ones come in seven families: another entity or field, one detail changed, negation, who said what and
when, current and older versions, identifiers in logs, records asked for by all their details.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.reranker_words import (
    BRANCHES,
    COMPANIES,
    DEEDS,
    EVENTS,
    FACT_FORMS,
    FIELD_QUESTIONS,
    FIELDS,
    FIRST,
    HABITS,
    LAST,
    MONTHS,
    TALK,
    TROUBLES,
    UNITS,
    WHEN,
    ZONES,
    date,
)  # fmt: skip

SEED: Final = 20261130
NEGATIVES: Final = 5


@dataclass(frozen=True)
class Question:
    """A query with the texts that answer it and texts that look as if they did."""

    source: str
    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


class Pools:
    """The names that one half of the generated material may use."""

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self.rng = rng
        self.half = int(held_out)

    def some(self, pool: Sequence[Any], count: int) -> list[Any]:
        """``count`` different members of this half of ``pool``."""
        return self.rng.sample(list(pool[self.half :: 2]), count)

    def people(self, count: int) -> list[str]:
        """``count`` different full names; one time in two they share a first or a last name."""
        first, last = self.some(FIRST, count), self.some(LAST, count)
        shared = self.rng.random()
        if shared < 0.25:
            first = [first[0]] * count
        elif shared < 0.5:
            last = [last[0]] * count
        return [f"{a} {b}" for a, b in zip(first, last, strict=True)]

    def companies(self, count: int) -> list[str]:
        """``count`` different companies; one time in two branches of one group."""
        if self.rng.random() < 0.5:
            group = self.some(COMPANIES, 1)[0]
            return [f"{group} {branch}" for branch in self.rng.sample(BRANCHES, count)]
        return self.some(COMPANIES, count)

    def host(self) -> str:
        """A dotted host name."""
        kind = self.rng.choice(("db", "web", "mq", "fs", "gpu", "edge"))
        site = self.rng.choice(("lis", "opo", "fra", "ams", "gru"))
        return f"{kind}-{self.rng.randrange(1, 60):02d}.{site}.example.net"


def other(rng: random.Random, make: Callable[[random.Random], str], *taken: str) -> str:
    """A value of ``make`` that is none of ``taken``."""
    while (value := make(rng)) in taken:
        pass
    return value


def fact(rng: random.Random, entity: str, field: str, value: str) -> str:
    """A slot's value as a sentence, in one of several forms."""
    return rng.choice(FACT_FORMS).format(e=entity, f=field, v=value, w=rng.choice(FIRST))


def entity_family(pools: Pools) -> Question:
    """Which value belongs to this entity and this field, among other entities and other fields."""
    rng = pools.rng
    entities = pools.companies(4) if rng.random() < 0.6 else pools.people(4)
    (field, make), *others = rng.sample(FIELDS, 4)
    value = make(rng)
    negatives = [fact(rng, entity, field, other(rng, make, value)) for entity in entities[1:]]
    negatives += [fact(rng, entities[0], name, build(rng)) for name, build in others]
    query = rng.choice(FIELD_QUESTIONS).format(f=field, e=entities[0])
    return Question("entity", query, (fact(rng, entities[0], field, value),), tuple(negatives))


def detail_family(pools: Pools) -> Question:
    """One event, and the same sentence with one detail changed: the day, the amount, the thing, the party, the deed."""
    rng = pools.rng
    who, rival = pools.companies(2)
    verbs = ("ordered", "returned", "cancelled", "complained about", "paid for")
    things = ("pallets", "scanners", "filters", "licences", "cable reels", "sensors", "uniforms", "gaskets")
    verb, verb2 = rng.sample(verbs, 2)
    thing, thing2 = rng.sample(things, 2)
    count, count2 = rng.sample(range(2, 400), 2)
    day, month = rng.randrange(1, 28), rng.choice(MONTHS)
    form = rng.choice(("On {d} {m} {w} {v} {n} {t}.", "{w} {v} {n} {t} on {d} {m}.", "{d} {m}: {w} {v} {n} {t}."))

    def line(**changes: Any) -> str:
        return form.format(**({"d": day, "m": month, "w": who, "v": verb, "n": count, "t": thing} | changes))

    changed = [
        line(d=day + rng.choice((-1, 1)) if day > 1 else day + 1, n=rng.randrange(2, 400)),
        line(m=rng.choice([m for m in MONTHS if m != month]), n=rng.randrange(2, 400)),
        line(w=rival, n=count2),
        line(v=verb2, n=rng.randrange(2, 400)),
        line(t=thing2, n=rng.randrange(2, 400)),
        line(w=rival, t=thing2),
    ]
    queries = (
        f"How many {thing} did the note of {day} {month} say that {who} {verb}?",
        f"{who} {verb} {thing} {day} {month}",
        f"The {thing} that {who} {verb} on {day} {month}",
    )
    return Question("detail", rng.choice(queries), (line(),), tuple(changed))


def negation_family(pools: Pools) -> Question:
    """Who does and who does not: the denied and the affirmed sentence differ by a word."""
    rng = pools.rng
    does, does_not, affirmed, denied = rng.choice(HABITS)
    people, hosts, companies = pools.people(6), [pools.host() for _ in range(6)], pools.companies(6)
    wanted, opposite = (affirmed, denied) if rng.random() < 0.4 else (denied, affirmed)
    lines = [
        rng.choice(forms).format(p=people[i], h=hosts[i], c=companies[i])
        for i, forms in enumerate((wanted, opposite, opposite, opposite, opposite))
    ]
    habit = rng.choice([h for h in HABITS if h[0] != does])
    lines.append(rng.choice(habit[2] + habit[3]).format(p=people[5], h=hosts[5], c=companies[5]))
    asked = does if wanted is affirmed else does_not
    return Question("negation", rng.choice((f"Who {asked}?", f"Which one {asked}?")), (lines[0],), tuple(lines[1:]))


def talk_family(pools: Pools) -> Question:
    """What a speaker told of themselves, among another speaker's answer and talk about the topic without an answer."""
    rng = pools.rng
    (speaker, listener) = pools.some(FIRST, 2)
    if rng.random() < 0.6:
        (asked, said, vague, values), (_, said2, vague2, values2) = rng.sample(TALK, 2)
        value, value2 = pools.some(values, 2)
        positive = f"{speaker}: {rng.choice(said).format(v=value)}"
        negatives = [
            f"{listener}: {rng.choice(said).format(v=value2)}",
            f"{speaker}: {rng.choice(said2).format(v=rng.choice(values2))}",
            *(f"{rng.choice((speaker, listener))}: {line}" for line in (*vague, rng.choice(vague2))),
            f"{listener}: {value.capitalize()}? Tell me more, {speaker}!",
        ]
        return Question("talk", rng.choice(asked).format(p=speaker), (positive,), tuple(negatives))
    (ask, did, wish, reply), (_, did2, wish2, _) = rng.sample(DEEDS, 2)
    when, when2 = (w.format(m=rng.choice(MONTHS)) for w in rng.sample(WHEN, 2))

    def told(person: str, deed: str, moment: str) -> str:
        form = rng.choice(("{p}: {W} I {d}!", "{p}: I {d} {w}, can you believe it?", "{p}: Big news, I {d} {w}."))
        return form.format(p=person, d=deed, w=moment, W=moment[0].upper() + moment[1:])

    negatives = [
        told(listener, did, when2),
        told(speaker, did2, rng.choice((when, when2))),
        f"{speaker}: I'd like to {wish} some day.",
        f"{listener}: {reply}",
        f"{listener}: When did you last {wish2}?",
        f"{listener}: {speaker}, will you ever {wish}?",
    ]
    return Question("talk", f"When did {speaker} {ask}?", (told(speaker, did, when),), tuple(negatives))


def version_family(pools: Pools) -> Question:
    """The value that holds now among the ones that held before, and the other way round."""
    rng = pools.rng
    entity, rival = pools.companies(2) if rng.random() < 0.7 else pools.people(2)
    (field, make), (field2, make2) = rng.sample(FIELDS, 2)
    now = make(rng)
    before = other(rng, make, now)
    first = other(rng, make, now, before)
    day, early = date(rng), rng.randrange(2015, 2021)
    current = [
        f"Since {day} the {field} of {entity} is {now}.",
        f"Update: {entity}'s {field} is now {now}.",
        f"As of {day}, {entity} has {now} as its {field}.",
        f"Correction by {rng.choice(FIRST)}: the {field} of {entity} is {now}, no longer {before}.",
    ]
    past = [
        f"Until {day} the {field} of {entity} was {before}.",
        f"{entity}'s {field} used to be {before}.",
        f"In {early} the {field} of {entity} was {first}.",
        f"The former {field} of {entity}: {before}.",
    ]
    aside = [
        f"A proposal to set {entity}'s {field} to {other(rng, make, now, before)} was rejected.",
        f"Since {day} the {field} of {rival} is {other(rng, make, now)}.",
        f"The {field2} of {entity} is now {make2(rng)}.",
    ]
    rng.shuffle(current)
    rng.shuffle(past)
    if rng.random() < 0.65:
        query = rng.choice(
            (
                "What is the {f} of {e} now?",
                "What is {e}'s current {f}?",
                "Which {f} applies to {e} today?",
                "current {f} {e}",
            )
        )
        answers, rest = current[:1], past[:3] + aside
    else:
        query = rng.choice(("What was the {f} of {e} before?", "What was {e}'s previous {f}?", "old {f} of {e}"))
        answers, rest = past[:1], [line for line in current if "no longer" not in line][:2] + aside
    return Question("version", query.format(f=field, e=entity), tuple(answers), tuple(rest))


def node(rng: random.Random) -> list[str]:
    """A compound hardware name in its parts, such as R17, M1, N0, C:J12, U11."""
    return [
        f"R{rng.randrange(100):02d}",
        f"M{rng.randrange(2)}",
        f"N{rng.randrange(16):X}",
        f"C:J{rng.randrange(2, 18):02d}",
        f"U{rng.choice(('01', '11'))}",
    ]


def near_identifiers(pools: Pools) -> tuple[str, str, list[str]]:
    """What a query calls a thing, what a log calls it, and five names that differ from it in a few characters."""
    rng = pools.rng
    kind = rng.choice(("node", "node", "node", "host", "hex", "file", "ticket"))
    names: list[str] = []
    if kind == "node":
        parts = node(rng)
        named = rng.choice((2, 2, 3, 5))
        while len(names) < 6:
            near = list(parts)
            if names:
                place = rng.randrange(named)
                near[place] = node(rng)[place]
                near[named:] = node(rng)[named:]
            if not names or near[:named] != parts[:named]:
                names.append("-".join(near))
        return "-".join(parts[:named]), names[0], names[1:]
    if kind == "host":
        kind_, site = rng.choice(("db", "web", "mq", "gpu")), rng.sample(("lis", "opo", "fra", "ams", "gru"), 2)
        numbers = rng.sample(range(1, 60), 5)
        names = [f"{kind_}-{n:02d}.{site[0]}.example.net" for n in numbers] + [
            f"{kind_}-{numbers[0]:02d}.{site[1]}.example.net"
        ]
    elif kind == "hex":
        code = rng.randrange(0x1000, 0xFFFF)
        codes = [code, *(code ^ mask for mask in rng.sample((0x1, 0x10, 0x100, 0x3, 0x50, 0x700, 0x2000), 5))]
        names = [f"0x{c:04X}" for c in codes]
    elif kind == "file":
        stem = rng.choice(("dump", "trace", "page", "segment"))
        names = [f"{stem}.{n}" for n in near_numbers(rng)]
    else:
        stem = rng.choice(("INC", "CHG", "PO", "INV"))
        names = [f"{stem}-{n}" for n in near_numbers(rng)]
    asked = names[0] if kind != "host" or rng.random() < 0.6 else names[0].split(".example")[0]
    return asked, names[0], names[1:]


def near_numbers(rng: random.Random) -> list[int]:
    """Six different numbers of three to five digits, five of them near the first in digits or their order."""
    digits = [rng.randrange(1, 10) for _ in range(rng.randrange(3, 6))]
    found = [digits]
    while len(found) < 6:
        near = list(digits)
        place = rng.randrange(len(near))
        near[place] = rng.randrange(1, 10)
        if rng.random() < 0.3:
            rng.shuffle(near)
        if near not in found:
            found.append(near)
    return [int("".join(map(str, number))) for number in found]


def log_line(rng: random.Random, name: str, trouble: str) -> str:
    """A line of a log about ``name``, in one of several layouts."""
    clock = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
    day = f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
    level = rng.choice(("INFO", "WARN", "ERROR", "FATAL"))
    return rng.choice(
        (
            f"{day} {clock} {name} {level} {trouble}",
            f"{clock} {level} {name}: {trouble}",
            f"{day}T{clock}Z monitor[{rng.randrange(100, 9999)}]: {trouble} ({name})",
            f"- {day} {name} {clock} {name} {level} {trouble}",
            f"{level} {trouble} at {name}",
        )
    )


def log_family(pools: Pools) -> Question:
    """The line about one identifier among lines about identifiers that differ in a few characters."""
    rng = pools.rng
    asked, name, near = near_identifiers(pools)
    trouble, trouble2 = (t.format(n=rng.randrange(1, 90)) for t in pools.some(TROUBLES, 2))
    words = re.sub(r" *\b\d+\b.*| on port.*", "", trouble)
    negatives = [log_line(rng, other_name, trouble if rng.random() < 0.7 else trouble2) for other_name in near]
    by_trouble = rng.random() < 0.4
    if by_trouble:
        negatives.append(log_line(rng, name, trouble2))
        queries: tuple[str, ...] = ("{t} on {i}", "Did {i} report {t}?", "When was {t} seen at {i}?")
    else:
        queries = (
            "log line for {i}",
            "What happened on {i}?",
            "{i}",
            "Which error was logged by {i}?",
            "entries about {i}",
        )
    if rng.random() < 0.4:
        asked = asked.lower()
    query = rng.choice(queries).format(t=words, i=asked)
    return Question("log", query, (log_line(rng, name, trouble),), tuple(negatives))


def incident_family(pools: Pools) -> Question:
    """A record with four details, asked for by all four, among records that have three of them."""
    rng = pools.rng
    (unit, unit2), (event, event2), (zone, zone2) = (pools.some(pool, 2) for pool in (UNITS, EVENTS, ZONES))
    number, *numbers = near_numbers(rng)
    form = rng.choice(
        (
            "{z} | {u} | {e} | cell {n} | code 0x{c:04X}",
            "Incident: {e} of {u} in {z}, cell {n}, code 0x{c:04X}.",
            "{u} in {z} reported {e} (cell {n}), code 0x{c:04X}",
        )
    )

    def line(**changes: Any) -> str:
        values = {"z": zone, "u": unit, "e": event, "n": number, "c": rng.randrange(0x100, 0xFFFF)}
        return form.format(**(values | changes))

    changed = [line(z=zone2), line(u=unit2), line(e=event2), line(n=numbers[0]), line(n=numbers[1]), line(n=numbers[2])]
    queries = (
        f"Which code did {unit} report for {event} in {zone}, cell {number}?",
        f"code of the {event} at {unit}, cell {number} in {zone}",
        f"{event} {unit} {zone} cell {number}",
    )
    return Question("incident", rng.choice(queries), (line(),), tuple(changed))


FAMILIES = (
    entity_family, detail_family, negation_family, talk_family, version_family, log_family, incident_family,
)  # fmt: skip


def generated(per_family: int, held_out: bool) -> list[Question]:
    """``per_family`` questions of each family; the held-out half has other names. Always the same ones."""
    found = []
    for family in FAMILIES:
        pools = Pools(random.Random(f"{SEED} {family.__name__} {held_out}"), held_out)
        found += [family(pools) for _ in range(per_family)]
    return found


_SPACED: Final = (
    (re.compile(r" n't\b"), "n't"),
    (re.compile(r"\b([Cc])a n't\b"), r"\1an't"),
    (re.compile(r" (['’](?:s|m|re|ve|ll|d|S|M|RE|VE|LL|D))\b"), r"\1"),
    (re.compile(r"\b([Gg]on|[Ww]an) (na|ta)\b"), r"\1\2"),
    (re.compile(r"\b([Gg]ot) ta\b"), r"\1ta"),
    (re.compile(r" ([,.?!;:])"), r"\1"),
)


def unspaced(text: str) -> str:
    """Text whose words and marks were set apart, as people write it: ``do n't , you`` becomes ``don't, you``."""
    for pattern, plain in _SPACED:
        text = pattern.sub(plain, text)
    return text


def given(path: Path) -> list[Question]:
    """The questions of ``path`` that have the negatives which a step needs."""
    questions = []
    for row in json.loads(path.read_text(encoding="utf-8")):
        clean = unspaced if row["src"] == "friends" else str
        positives = tuple(map(clean, row["pos"]))
        negatives = tuple(dict.fromkeys(text for text in map(clean, row["neg"]) if text not in positives))
        if positives and len(negatives) >= NEGATIVES:
            questions.append(Question(row["src"], clean(row["q"]), positives, negatives))
    return questions
