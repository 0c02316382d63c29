"""Clients of two companies tell, ask, propose, confirm and rule, and keep their own account of what was acknowledged.

Whatever happens to the service meanwhile, within their deadline no client sees an error.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from muniment.cluster import AsyncClient
from tests.live import Service, muniment

CLIENTS = 3
KEYS = 8
#: One caller's patience; a model worker takes its time to come back on a busy machine.
DEADLINE_SECONDS = 240.0
SOURCE = {"kind": "counterparty", "id": "mail:1", "author": "ana"}
FIELD = "keeper"
#: The field's owner rules on every second value, whoever tells it.
POLICY = {"fields": {FIELD: {"owner": "ana", "sensitive": True}}}


@dataclass
class Account:
    """What the clients of one company were told."""

    company: str
    keys: dict[str, str]
    #: Essential facts by id, and what of others; the latter may be evicted, and must not come back changed.
    essential: dict[str, str] = field(default_factory=dict)
    passing: dict[str, str] = field(default_factory=dict)
    #: The run that confirmed each effect, and the value that each slot was ruled to hold.
    confirmed: dict[int, str] = field(default_factory=dict)
    ruled: dict[str, str] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    def text(self, about: str) -> str:
        """A text that names the company, so that another one's would be seen."""
        return f"depot of {self.company}: {about}"


@dataclass(frozen=True, slots=True)
class Hands:
    """One client, with the keys of an agent and of an owner."""

    agent: AsyncClient
    owner: AsyncClient
    chance: random.Random


async def tell(hands: Hands, account: Account, name: str) -> None:
    """An essential fact, and one that may be evicted."""
    number = hands.chance.randrange(10**6)
    texts = [account.text(f"the code of {name} is {number}"), account.text(f"{name} was swept")]
    facts = [{"text": t, "importance": i, "source": SOURCE} for t, i in zip(texts, (0.9, 0.1), strict=True)]
    kept, passing = (await hands.agent.remember(facts))["results"]
    assert (kept["outcome"], passing["outcome"]) == ("stored", "stored")
    account.essential[kept["id"]], account.passing[passing["id"]] = texts


async def ask(hands: Hands, account: Account, name: str) -> None:
    """Something that was acknowledged before the question is found, and nothing of another company."""
    told = list(account.essential.values())
    wanted = hands.chance.choice(told) if told else account.text("nothing")
    found = [result["fact"]["text"] for result in (await hands.agent.recall(wanted, top_k=5))["results"]]
    assert wanted in found or not told, "acknowledged, and not found"
    assert all(text.startswith(account.text("")) for text in found), "another company's"


async def act(hands: Hands, account: Account, name: str) -> None:
    """An effect that some other client may want as well."""
    key, run = hands.chance.randrange(KEYS), f"run-{name}"
    before = account.confirmed.get(key)
    answer = await hands.agent.propose(**effect(key), run_id=run, step_id="s", wait_ms=0)
    account.verdicts[answer["verdict"]] += 1
    if answer["verdict"] == "allow":
        assert before is None, "a key that was confirmed was given out again"
        token = answer["reservation"]["token"]
        if hands.chance.random() < 0.3:
            assert (await hands.agent.release(token))["state"] == "released"
            return
        assert (await hands.agent.confirm(token))["state"] == "confirmed"
        assert key not in account.confirmed, "a key was confirmed twice"
        account.confirmed[key] = run
    elif before is not None:
        assert (answer["verdict"], answer["origin"]["run_id"]) == ("duplicate", before)


async def rule(hands: Hands, account: Account, name: str) -> None:
    """A slot gets a value, another one that waits for the owner, and the owner's ruling."""
    subject = f"depot {name}"
    for value in ("Dana", "Lee"):
        text = account.text(f"the keeper of {subject} is {value}")
        fact = {"text": text, "subject": subject, "field": FIELD, "value": value, "source": SOURCE}
        (told,) = (await hands.agent.remember([fact]))["results"]
    decision, value = hands.chance.choice([("accept_challenger", "Lee"), ("keep_incumbent", "Dana")])
    await hands.owner.resolve(told["conflict_id"], decision)
    account.ruled[subject] = value


def effect(key: int) -> dict[str, Any]:
    """What is proposed under a key."""
    return {"area": "ops", "agent": "bot", "tool": "mail.send", "arguments": {"to": key}}


class Work:
    """The clients of some companies on a service, until they are stopped."""

    def __init__(self, service: Service, seed: int, companies: int = 2) -> None:
        self.service = service
        self.accounts = [self._account(f"depots-{seed}-{number}") for number in range(companies)]
        self._seed = seed
        self._stopped = False
        self._clients: list[asyncio.Task[None]] = []

    def _account(self, company: str) -> Account:
        keys = {
            "agent": self.service.key(company, "agent", user="bot"),
            "owner": self.service.key(company, "owner", user="ana"),
        }
        with self.service.client(company=company) as operator:
            operator.set_precedence(POLICY)
            operator.classify("mail.send", key_paths=["/to"], window={"permanent": True}, lease_seconds=900)
        return Account(company, keys)

    @property
    def acknowledged(self) -> int:
        """How much was acknowledged so far."""
        return sum(account.acknowledged for account in self.accounts)

    def start(self) -> None:
        """Lets the clients begin."""
        for account in self.accounts:
            self._clients += [asyncio.create_task(self._client(account, number)) for number in range(CLIENTS)]

    async def _client(self, account: Account, number: int) -> None:
        chance = random.Random(f"{self._seed} {account.company} {number}")
        turn = 0
        async with self.client(account, "agent") as agent, self.client(account, "owner") as owner:
            while not self._stopped:
                doing = chance.choice((tell, tell, ask, act, act, rule))
                await doing(Hands(agent, owner, chance), account, f"{number}-{turn}")
                account.acknowledged += 1
                turn += 1

    def client(self, account: Account, role: str) -> AsyncClient:
        """A patient client."""
        return AsyncClient(self.service.url, key=account.keys[role], timeout_seconds=DEADLINE_SECONDS)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits; a client that failed ends it."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not holds():
            for client in self._clients:
                if client.done():
                    client.result()
            assert time.monotonic() < deadline, "it does not go on"
            await asyncio.sleep(0.05)

    async def goes_on(self, turns: int) -> None:
        """Waits until every client has done about so much more."""
        begun = self.acknowledged
        await self.until(lambda: self.acknowledged >= begun + turns * len(self._clients))

    async def stop(self) -> None:
        """Lets the clients finish what they are at."""
        self._stopped = True
        await asyncio.gather(*self._clients)

    async def settle(self) -> None:
        """What is there is what was acknowledged, once, and nobody else's."""
        for account in self.accounts:
            async with self.client(account, "agent") as agent:
                await self._settle(account, agent)

    async def _settle(self, account: Account, agent: AsyncClient) -> None:
        page = await agent.memories(limit=200)
        there: list[dict[str, Any]] = page["memories"]
        while page.get("next"):
            page = await agent.memories(limit=200, cursor=page["next"])
            there += page["memories"]
        found = {fact["id"]: fact["text"] for fact in there}
        assert account.essential.items() <= found.items(), "essential, acknowledged, and gone"
        assert all(found[id] == text for id, text in account.passing.items() if id in found), "changed"
        assert all(text.startswith(account.text("")) for text in found.values()), "another company's"
        twice = [text for text, times in Counter(found.values()).items() if times > 1]
        assert twice == [], "stored twice"
        for subject, value in account.ruled.items():
            assert (await agent.facts(subject, FIELD))["current"]["value"] == value, "ruled otherwise"
        for key, origin in account.confirmed.items():
            answer = await agent.propose(**effect(key), run_id="afterwards", step_id="s", wait_ms=0)
            assert (answer["verdict"], answer["origin"]["run_id"]) == ("duplicate", origin)

    def check(self) -> None:
        """Chains, orphans, and the indexes of what is loaded."""
        verified = muniment("verify", "--json", "--data-dir", self.service.data_dir)
        report = json.loads(verified.stdout)
        assert (verified.returncode, report["problems"], report["indexes"]["wrong"]) == (0, [], [])
        assert report["indexes"]["facts"] > 0

    def told(self) -> str:
        """What happened, for who reads along."""
        facts = sum(len(account.essential) for account in self.accounts)
        ruled = sum(len(account.ruled) for account in self.accounts)
        verdicts = sum((account.verdicts for account in self.accounts), Counter())
        return f"acknowledged {self.acknowledged}: {facts} essential facts, {ruled} rulings, {dict(verdicts)}"
