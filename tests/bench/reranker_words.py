"""Names, values and forms of sentences that the generated training material is put together from; all invented."""

from __future__ import annotations

import random
from collections.abc import Callable

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
