"""Builds the bundled cross-encoder: a LoRA adapter over the packaged all-MiniLM-L6-v2.

    python -m tests.bench.train_reranker --data PATH/train.json [--locomo PATH] --out actors/reranker

``--data`` is a JSON list of ``{"src", "q", "pos": [text], "neg": [text]}``. To it is added generated material that
teaches what memories need: one detail changed, negation, another entity, an older version, identifiers in logs. Every
question is trained once, as a softmax over one positive and the five negatives that the bi-encoder ranks highest.
Afterwards a scale and a shift, fitted on questions that were held out, are folded into the classifier, so that a logit
is a log-odds; the order of the scores does not change.

Seeds are fixed and torch runs on one thread, so that one machine gives one adapter; another processor's bfloat16 may
differ in the last digits. ``--score-only`` scores the adapter in ``--out``. ``--locomo`` (conversations of the LoCoMo
shape) is only ever scored. The digest that is printed at the end goes into ``actors/cross_encoder.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from muniment.actors.cross_encoder import BASE_NAME, base_cross_encoder, base_directory, with_adapter

SEED = 20261130
NEGATIVES = 5
TRAIN_TOKENS = 64
QUESTIONS_PER_STEP = 4
LEARNING_RATE = 5e-4
RANK, ALPHA = 32, 64
WARMUP = 0.05
PER_FAMILY = 90
HELD_OUT_QUESTIONS, HELD_OUT_PER_FAMILY = 96, 24
CANDIDATES = 40
ADVERSARIAL = 5

console = Console()


@dataclass(frozen=True)
class Question:
    """A query with the texts that answer it and texts that look as if they did."""

    source: str
    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


# ---------------------------------------------------------------- generated material

# Even places of a pool are trained on, odd ones are held out, so that the held-out score is about new names and values.
FIRST = [
    "Ana", "Bruno", "Carla", "Duarte", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Katya", "Luca", "Mirela",
    "Nuno", "Olga", "Paulo", "Quentin", "Rita", "Stefan", "Tomas", "Ursula", "Vera", "Wanda", "Xavier", "Yara",
    "Zoltan", "Amadou", "Beatriz", "Chiara", "Dmitri", "Esther", "Fatima", "Goran", "Helga", "Ivo", "Jana", "Kofi",
    "Leonor",
]  # fmt: skip
LAST = [
    "Almeida", "Brandt", "Costa", "Dias", "Eriksen", "Ferreira", "Gruber", "Haddad", "Ionescu", "Jansen", "Keller",
    "Lima", "Moreau", "Novak", "Okafor", "Pereira", "Quiroga", "Rossi", "Santos", "Teixeira", "Ueda", "Vidal",
    "Weiss", "Yilmaz", "Zanetti", "Barros", "Cardoso", "Duval",
]  # fmt: skip
COMPANIES = [
    "Alvor Textiles", "Brisa Foods", "Cobalt Freight", "Dunas Hotels", "Esteva Pharma", "Faro Logistics",
    "Granito Works", "Helix Motors", "Iris Optics", "Jade Paper", "Kelp Farms", "Lumen Power", "Mirante Travel",
    "Norte Steel", "Orla Shipping", "Pinhal Timber", "Quartz Labs", "Ribeira Wines", "Salina Chemicals", "Tejo Rail",
    "Urze Cosmetics", "Vereda Insurance", "Xisto Mining", "Zimbro Spirits",
]  # fmt: skip
BRANCHES = ("Iberia", "Nordic", "Retail", "Export", "Services", "Overseas")
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
CITIES = [
    "Porto", "Lyon", "Turin", "Bergen", "Gdansk", "Sofia", "Utrecht", "Bilbao", "Graz", "Tampere", "Recife",
    "Valencia", "Bern", "Cork", "Split", "Aarhus",
]  # fmt: skip

FIELDS: tuple[tuple[str, Callable[[random.Random], str]], ...] = (
    ("payment term", lambda r: f"{r.choice((10, 15, 20, 30, 45, 60, 75, 90))} days"),
    ("credit limit", lambda r: f"{r.randrange(5, 95) * 1000:,} EUR"),
    ("discount", lambda r: f"{r.randrange(1, 40) / 2:g} %"),
    ("renewal date", lambda r: date(r)),
    ("account manager", lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}"),
    ("support plan", lambda r: r.choice(("basic", "silver", "gold", "around the clock", "business hours", "premium"))),
    ("delivery city", lambda r: r.choice(CITIES)),
    ("preferred carrier", lambda r: r.choice(("Rapida", "Northway", "Truxo", "Kargo One", "BlueVan", "Postfix Cargo"))),
    ("billing contact", lambda r: f"{r.choice(FIRST).lower()}.{r.choice(LAST).lower()}@example.com"),
    ("tax number", lambda r: f"{r.randrange(500_000_000, 599_999_999)}"),
    ("refund policy", lambda r: f"refunds within {r.choice((7, 14, 21, 28, 60))} days"),
    ("approval threshold", lambda r: f"{r.randrange(2, 50) * 100:,} EUR"),
)
FACT_FORMS = (
    "The {f} of {e} is {v}.", "{e}: {f} {v}.", "{e} has {v} as its {f}.", "We agreed with {e} that the {f} is {v}.",
    "{w} noted that {e}'s {f} is {v}.",
)  # fmt: skip
FIELD_QUESTIONS = (
    "What is the {f} of {e}?", "What is {e}'s {f}?", "Which {f} was agreed with {e}?", "{e} {f}",
    "Tell me the {f} for {e}.",
)  # fmt: skip

# What a person may say of themselves: questions, statements with a value, the same topic without an answer, the values.
TALK: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("What is the name of {p}'s cat?", "What did {p} call the new kitten?"),
        ("We finally named the kitten, she's {v} now!", "My cat {v} slept on the keyboard all morning, haha."),
        ("Do you still have that cat?", "Cats are such good company.", "I keep finding cat hair on my coat."),
        ("Pixel", "Marble", "Tofu", "Biscoito", "Nimbus", "Saffron", "Olive", "Ziggy"),
    ),
    (
        ("Where does {p} live now?", "Which city did {p} move to?"),
        ("I've been in {v} since the spring and I love the market here.", "We packed everything and moved to {v}."),
        ("Moving house is so tiring.", "Which city would you pick?", "The boxes are still in the hall."),
        tuple(CITIES),
    ),
    (
        ("What is {p} allergic to?", "Which food must {p} avoid?"),
        ("I can't have {v}, my throat swells up.", "Turns out I'm allergic to {v}."),
        ("The doctor was very kind.", "Are you allergic to anything?", "Hospital food is as bad as they say."),
        ("walnuts", "shellfish", "sesame", "kiwi", "lupin", "mustard", "celery", "peaches"),
    ),
    (
        ("What does {p} do for a living?", "What is {p}'s job?"),
        ("Work's been mad, being a {v} never gets quieter.", "I got the post! I start as a {v} on Monday."),
        ("My boss wants another report.", "How is your job going?", "I had a long day at work."),
        ("welder", "court clerk", "midwife", "cartographer", "beekeeper", "crane driver", "translator", "optician"),
    ),
    (
        ("Which instrument does {p} play?", "What is {p} learning to play?"),
        ("I practise the {v} every evening, sorry neighbours!", "Took my first {v} lesson yesterday."),
        ("That concert was wonderful.", "Do you play anything?", "Music always calms me down."),
        ("oboe", "accordion", "cello", "bassoon", "mandolin", "harp", "trombone", "fado guitar"),
    ),
    (
        ("What did {p} get from their grandmother?", "What did {p} inherit?"),
        ("Grandma left me her {v}, I cried when I opened the box.", "This {v} was my grandmother's, it means a lot."),
        ("I miss my grandmother.", "Did your family come over?", "We talked about the old days for hours."),
        (
            "sewing machine",
            "pocket watch",
            "recipe book",
            "silver comb",
            "writing desk",
            "copper pan",
            "shawl",
            "globe",
        ),
    ),
    (
        ("What is {p} afraid of?", "What scares {p}?"),
        ("Honestly, {v} still terrify me.", "I had to leave the room, I can't stand {v}."),
        ("Everyone is scared of something.", "What a night that was!", "Were you frightened?"),
        ("lifts", "moths", "deep lakes", "thunderstorms", "ladders", "geese", "tunnels", "needles"),
    ),
    (
        ("How does {p} relax?", "What does {p} do to unwind after work?"),
        ("Nothing clears my head like {v}.", "After a week like this I just need {v}."),
        ("I'm so stressed.", "You should really rest more.", "This week has been endless."),
        ("carving spoons", "night fishing", "crossword puzzles", "mending radios", "folding paper", "baking rye bread"),
    ),
    (
        ("Who taught {p} to sail?", "Who showed {p} how to sail?"),
        ("My {v} took me out on the boat until I could sail alone.", "I owe my sailing to my {v}, so patient with me."),
        ("The sea was rough today.", "Have you ever been sailing?", "I'd love to own a boat."),
        ("uncle", "neighbour", "cousin", "old teacher", "sister", "godfather", "flatmate", "aunt"),
    ),
    (
        ("What went wrong with {p}'s car?", "Why did {p} go to the garage?"),
        ("The garage says it's the {v}, there goes my month.", "Broke down again, the {v} this time."),
        ("I took the bus today.", "Is your car all right?", "Driving in this rain is no fun."),
        ("clutch", "alternator", "fuel pump", "gearbox", "exhaust", "brake line", "radiator", "starter"),
    ),
)
# Things done once: question form, first person, wish, reply of the other speaker.
DEEDS: tuple[tuple[str, str, str, str], ...] = (
    ("pass the driving test", "passed my driving test", "take the driving test", "You passed? Congratulations!"),
    ("adopt the parrot", "brought the parrot home", "have a parrot", "A parrot! Does it talk?"),
    ("repair the boiler", "got the boiler repaired", "have the boiler looked at", "At last some hot water!"),
    ("quit smoking", "smoked my last cigarette", "stop smoking", "Well done, that takes will."),
    ("sell the flat", "signed the papers and the flat is sold", "sell the flat", "Sold already? Wow."),
    ("visit the lighthouse", "climbed up the lighthouse", "see the lighthouse", "The view must be lovely up there."),
    ("start the pottery course", "had my first pottery class", "learn pottery", "What did you make?"),
    ("break an arm", "slipped and broke my arm", "be more careful on the ice", "Oh no, does it hurt?"),
    ("launch the newsletter", "sent out the first newsletter", "write a newsletter", "I'd read that!"),
    ("meet the mayor", "shook hands with the mayor", "talk to the mayor", "What is the mayor like?"),
    ("plant the fig tree", "planted the fig tree", "grow figs", "Figs! Save some for me."),
    ("finish the thesis", "handed in my thesis", "be done with the thesis", "So proud of you, doctor!"),
)
WHEN = ("yesterday", "last Friday", "last week", "two days ago", "on Sunday", "this morning", "a month ago", "in {m}")

# Who does, who does not: affirmed forms, denied forms.
HABITS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("eats meat", "does not eat meat", ("{p} eats meat.",), ("{p} does not eat meat.", "{p} no longer eats meat.")),
    (
        "has a driving licence",
        "has no driving licence",
        ("{p} has a driving licence.", "{p} holds a driving licence."),
        ("{p} has no driving licence.", "{p} never got a driving licence."),
    ),
    (
        "signed the agreement",
        "has not signed the agreement",
        ("{p} signed the agreement.",),
        ("{p} has not signed the agreement.", "{p} refused to sign the agreement."),
    ),
    (
        "is backed up",
        "is not backed up",
        ("{h} is backed up every night.", "{h} has a nightly backup."),
        ("{h} is not backed up.", "{h} has no backup."),
    ),
    (
        "accepts card payments",
        "does not accept card payments",
        ("{c} accepts card payments.",),
        ("{c} does not accept card payments.", "{c} never accepts card payments."),
    ),
    (
        "may approve refunds",
        "may not approve refunds",
        ("{p} may approve refunds.", "{p} is allowed to approve refunds."),
        ("{p} may not approve refunds.", "{p} is not allowed to approve refunds."),
    ),
    (
        "was invited to the audit",
        "was not invited to the audit",
        ("{p} was invited to the audit.",),
        ("{p} was not invited to the audit.", "Nobody invited {p} to the audit."),
    ),
    (
        "drinks coffee",
        "does not drink coffee",
        ("{p} drinks coffee.", "{p} likes coffee."),
        ("{p} does not drink coffee.", "{p} avoids coffee."),
    ),
    (
        "ships to islands",
        "does not ship to islands",
        ("{c} ships to islands.",),
        ("{c} does not ship to islands.", "{c} stopped shipping to islands."),
    ),
    (
        "is encrypted",
        "is not encrypted",
        ("The disk of {h} is encrypted.",),
        ("The disk of {h} is not encrypted.", "The disk of {h} is still unencrypted."),
    ),
)

TROUBLES = (
    "fan tray speed below limit", "link training retried on port {n}", "voltage rail {n} out of range",
    "job step aborted", "checkpoint file truncated", "clock drift of {n} ms against the reference",
    "lease renewal refused", "spool directory nearly full", "certificate expires in {n} days",
    "replica {n} fell behind the leader", "watchdog fired after {n} s", "firmware checksum mismatch",
    "queue depth above {n}", "inlet temperature {n} C", "route withdrawn by peer", "session table exhausted",
)  # fmt: skip
UNITS = [
    "gateway-api", "ledger-sync", "mail-relay", "search-node", "token-issuer", "image-store", "cache-proxy",
    "report-batch",
]  # fmt: skip
EVENTS = [
    "timeout", "stale lock", "write refused", "quota exceeded", "schema mismatch", "handshake failure",
    "lost heartbeat", "bad parity",
]  # fmt: skip
ZONES = ["zone-a", "zone-b", "zone-c", "hall-1", "hall-2", "hall-3", "rack-north", "rack-south"]


def date(rng: random.Random) -> str:
    """A day between 2021 and 2026 in words, such as ``7 March 2024``."""
    return f"{rng.randrange(1, 29)} {rng.choice(MONTHS)} {rng.randrange(2021, 2027)}"


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


# ---------------------------------------------------------------- given material

_SPACED = (
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


# ---------------------------------------------------------------- training


def progress() -> Progress:
    """A progress bar; its tasks have a ``note``."""
    note = TextColumn("{task.fields[note]}")
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        note,
        console=console,
    )


class BiEncoder:
    """The packaged bi-encoder, with every text encoded once."""

    def __init__(self) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(base_directory()), device="cpu")
        self._known: dict[str, np.ndarray] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Encodes what is new among ``texts``."""
        new = sorted(set(texts) - self._known.keys(), key=lambda text: (len(text), text))
        with progress() as bar:
            task = bar.add_task("bi-encoder", total=len(new), note="")
            for start in range(0, len(new), 64):
                part = new[start : start + 64]
                self._known.update(zip(part, self._model.encode(part, normalize_embeddings=True), strict=True))
                bar.advance(task, len(part))

    def similarities(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Cosines of ``query`` with ``texts``, all of them learnt before."""
        return np.asarray(np.stack([self._known[text] for text in texts]) @ self._known[query])


@dataclass(frozen=True)
class Row:
    """One question as it is trained: the positive first, then the hardest negatives."""

    source: str
    query: str
    texts: tuple[str, ...]


def rows(questions: Sequence[Question], encoder: BiEncoder, rng: random.Random) -> list[Row]:
    """Each question with one of its positives and its hardest negatives by the bi-encoder."""
    encoder.learn(text for q in questions for text in (q.query, *q.negatives))
    found = []
    for question in questions:
        order = np.argsort(-encoder.similarities(question.query, question.negatives), kind="stable")[:NEGATIVES]
        texts = (rng.choice(question.positives), *(question.negatives[i] for i in order))
        found.append(Row(question.source, question.query, texts))
    return found


def logits_of(model: Any, tokenizer: Any, batch: Sequence[Row]) -> torch.Tensor:
    """Logits of a batch, a row per question and a column per text."""
    features = tokenizer(
        [row.query for row in batch for _ in row.texts],
        [text for row in batch for text in row.texts],
        truncation=True, max_length=TRAIN_TOKENS, padding=True, return_tensors="pt",
    )  # fmt: skip
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: torch.Tensor = model(**features).logits
    return logits.float().view(len(batch), -1)


def train(train_rows: list[Row], held_out: list[Row], out: Path, checkpoints: Path | None, every: int) -> None:
    """Trains the adapter, puts its scores on the scale of log-odds and writes it to ``out``."""
    from peft import LoraConfig, TaskType, get_peft_model

    torch.manual_seed(SEED)
    encoder = base_cross_encoder("cpu")
    base: Any = encoder[0].model
    torch.nn.init.normal_(base.classifier.weight, std=0.02)
    torch.nn.init.zeros_(base.classifier.bias)
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear"
    )  # fmt: skip
    model: Any = get_peft_model(base, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    console.print(f"{sum(p.numel() for p in trained):,} parameters to train, {len(train_rows):,} questions")
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)
    order = list(train_rows)
    random.Random(SEED).shuffle(order)
    batches = [order[i : i + QUESTIONS_PER_STEP] for i in range(0, len(order), QUESTIONS_PER_STEP)]
    warm = max(1, int(len(batches) * WARMUP))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.02, (len(batches) - step) / (len(batches) - warm)))
    )
    model.train()
    mean_loss = math.log(NEGATIVES + 1)
    with progress() as bar:
        task = bar.add_task("training", total=len(batches), note="")
        for step, batch in enumerate(batches, 1):
            logits = logits_of(model, encoder.tokenizer, batch)
            loss: Any = cross_entropy(logits, torch.zeros(len(batch), dtype=torch.long))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            mean_loss += 0.02 * (loss.item() - mean_loss)
            bar.update(task, advance=1, note=f"loss {mean_loss:.3f}")
            if step % every == 0:
                console.print(f"step {step}: loss {mean_loss:.3f}")
                if checkpoints is not None:
                    save(model, config, checkpoints / f"step-{step}")
    scale, shift = calibrate(model, encoder.tokenizer, held_out)
    classifier = model.base_model.model.classifier.modules_to_save["default"]
    with torch.no_grad():
        classifier.weight.mul_(scale)
        classifier.bias.mul_(scale).add_(shift)
    save(model, config, out)


@torch.no_grad()
def _held_out_logits(model: Any, tokenizer: Any, held_out: Sequence[Row]) -> torch.Tensor:
    model.eval()
    parts = [held_out[i : i + 8] for i in range(0, len(held_out), 8)]
    return torch.cat([logits_of(model, tokenizer, part) for part in parts])


def calibrate(model: Any, tokenizer: Any, held_out: Sequence[Row]) -> tuple[float, float]:
    """Scale (positive) and shift that make a logit the log-odds of being the answer, on questions never trained."""
    logits = _held_out_logits(model, tokenizer, held_out)
    labels = torch.zeros_like(logits)
    labels[:, 0] = 1.0
    log_scale, shift = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([log_scale, shift], max_iter=200)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Any = binary_cross_entropy_with_logits(logits * log_scale.exp() + shift, labels)
        loss.backward()
        return float(loss)

    optimizer.step(closure)
    scale, offset = log_scale.exp().item(), shift.item()
    console.print(f"calibrated on {len(held_out)} held-out questions: logit = {scale:.3f} · raw {offset:+.3f}")
    return scale, offset


def save(model: Any, config: Any, out: Path) -> None:
    """Writes the adapter and the classifier in half precision, with a configuration that names no path."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().half().contiguous() for name, value in get_peft_model_state_dict(model).items()}
    save_file(dict(sorted(state.items())), out / "adapter_model.safetensors", metadata={"format": "pt"})
    (out / "adapter_model.safetensors").chmod(0o644)
    fields = config.to_dict() | {"base_model_name_or_path": BASE_NAME, "inference_mode": True, "revision": None}
    fields |= {key: sorted(set(fields[key])) for key in ("target_modules", "modules_to_save")}
    (out / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


# ---------------------------------------------------------------- scoring


def score_held_out(encoder: Any, bi_encoder: BiEncoder, held_out: Sequence[Row]) -> None:
    """How often the positive is ranked first of six, by kind of question, for the bi-encoder and the reranker."""
    bi_encoder.learn(text for row in held_out for text in (row.query, *row.texts))
    scores = encoder.predict([(row.query, text) for row in held_out for text in row.texts]).reshape(len(held_out), -1)
    first: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row, score in zip(held_out, scores, strict=True):
        dense = bi_encoder.similarities(row.query, row.texts)
        first[row.source].append((bool(dense[0] > dense[1:].max()), bool(score[0] > score[1:].max())))
    table = Table(
        "held-out questions", "number", "bi-encoder first", "reranker first", title="answer ranked first of six"
    )
    for source, hits in first.items():
        dense_rate, rate = np.mean(hits, axis=0)
        table.add_row(source, str(len(hits)), f"{dense_rate:.3f}", f"{rate:.3f}")
    console.print(table)
    positive, negative = scores[:, 0], scores[:, 1:]
    console.print(
        f"logits of answers: median {np.median(positive):+.2f}, of near misses: median {np.median(negative):+.2f}; "
        f"above 0: {np.mean(positive > 0):.3f} of answers, {np.mean(negative > 0):.3f} of near misses"
    )


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def bm25(
    query: str, documents: Sequence[Counter[str]], frequency: Counter[str], k1: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """BM25 of ``query`` for every document, given as its word counts; ``frequency``: documents per word."""
    lengths = np.array([sum(counts.values()) for counts in documents], dtype=float)
    norm = k1 * (1 - b + b * lengths / lengths.mean())
    total = np.zeros(len(documents))
    for word in sorted(set(words(query)) & frequency.keys()):
        idf = math.log(1 + (len(documents) - frequency[word] + 0.5) / (frequency[word] + 0.5))
        count = np.array([counts[word] for counts in documents], dtype=float)
        total += idf * count * (k1 + 1) / (count + norm)
    return total


def score_locomo(path: Path, encoder: Any, bi_encoder: BiEncoder, everything: bool) -> None:
    """Reranks the best of RRF (bi-encoder + BM25) and prints recall of the evidence and MRR.

    By default every third question that is not adversarial, of the first three conversations; with ``everything`` all
    questions of all conversations.
    """
    conversations = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    ranks: dict[str, list[tuple[list[str], set[str]]]] = {"RRF": [], "RRF, reranked": []}
    categories: list[int] = []
    jobs: list[tuple[str, list[str], list[str], set[str]]] = []
    for conversation in conversations if everything else conversations[:3]:
        turns = {turn["dia_id"]: f"{turn['speaker']}: {turn['text']}" for turn in conversation["turns"]}
        ids, texts = list(turns), list(turns.values())
        asked = conversation["qa"]
        if not everything:
            asked = [q for q in asked if q["category"] != ADVERSARIAL][::3]
        bi_encoder.learn([*texts, *(q["question"] for q in asked)])
        documents = [Counter(words(text)) for text in texts]
        frequency = Counter(word for counts in documents for word in counts)
        for q in asked:
            fused = np.zeros(len(texts))
            for scores in (bi_encoder.similarities(q["question"], texts), bm25(q["question"], documents, frequency)):
                fused[np.argsort(-scores, kind="stable")] += 1 / (60 + np.arange(1, len(texts) + 1))
            best = np.argsort(-fused, kind="stable")[:CANDIDATES]
            evidence = set(q["evidence"])
            ranks["RRF"].append(([ids[i] for i in best], evidence))
            jobs.append((q["question"], [ids[i] for i in best], [texts[i] for i in best], evidence))
            categories.append(q["category"])
    with progress() as bar:
        task = bar.add_task("reranking", total=len(jobs), note="")
        for start in range(0, len(jobs), 24):
            part = jobs[start : start + 24]
            scores = encoder.predict([(query, text) for query, _, texts, _ in part for text in texts], batch_size=64)
            for (_, names, _, evidence), score in zip(part, scores.reshape(len(part), -1), strict=True):
                order = np.argsort(-score, kind="stable")
                ranks["RRF, reranked"].append(([names[i] for i in order], evidence))
            bar.advance(task, len(part))
    table = Table("LoCoMo", "category", "questions", "recall@5", "recall@10", "MRR")
    present = set(categories)
    groups = {"all": present}
    if everything:
        groups |= {"not adversarial": present - {ADVERSARIAL}, **{str(n): {n} for n in sorted(present)}}
    for label, members in groups.items():
        for name, rankings in ranks.items():
            chosen = [r for r, category in zip(rankings, categories, strict=True) if category in members and r[1]]
            r5, r10 = (np.mean([len(e & set(o[:k])) / len(e) for o, e in chosen]) for k in (5, 10))
            mrr = np.mean([max((1 / (o.index(i) + 1) for i in e if i in o), default=0.0) for o, e in chosen])
            table.add_row(name, label, str(len(chosen)), f"{r5:.3f}", f"{r10:.3f}", f"{mrr:.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="train.json")
    parser.add_argument("--out", type=Path, required=True, help="the adapter's directory")
    parser.add_argument("--locomo", type=Path, help="conversations to score, never trained on")
    parser.add_argument("--locomo-all", action="store_true", help="score all their questions, not the usual 144")
    parser.add_argument("--per-family", type=int, default=PER_FAMILY, help="generated questions of each family")
    parser.add_argument("--checkpoints", type=Path, help="directory for adapters on the way")
    parser.add_argument("--checkpoint-every", type=int, default=200, help="steps")
    parser.add_argument("--score-only", action="store_true", help="score the adapter in --out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(SEED)
    questions = given(args.data)
    rng.shuffle(questions)
    kept, trained = questions[:HELD_OUT_QUESTIONS], questions[HELD_OUT_QUESTIONS:]
    bi_encoder = BiEncoder()
    held_out = rows(kept + generated(HELD_OUT_PER_FAMILY, held_out=True), bi_encoder, random.Random(SEED))
    started = time.monotonic()
    if not args.score_only:
        material = trained + generated(args.per_family, held_out=False)
        console.print(", ".join(f"{n} {source}" for source, n in Counter(q.source for q in material).items()))
        training = rows(material, bi_encoder, random.Random(SEED))
        train(training, held_out, args.out, args.checkpoints, args.checkpoint_every)
        console.print(f"trained in {time.monotonic() - started:.0f} s")
    encoder = with_adapter(args.out, "cpu", str(args.out))
    score_held_out(encoder, bi_encoder, held_out)
    if args.locomo:
        score_locomo(args.locomo, encoder, bi_encoder, args.locomo_all)
    adapter = (args.out / "adapter_model.safetensors").read_bytes()
    console.print(f"ADAPTER_SHA256 = {hashlib.sha256(adapter).hexdigest()!r} ({len(adapter):,} bytes)", soft_wrap=True)


if __name__ == "__main__":
    main()
