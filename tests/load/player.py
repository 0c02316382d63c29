"""Carries out tasks as requests, tells the recorder what became of each, and the checks what was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from muniment.cluster.transport import Answer
from muniment.cluster.verbs import Request
from muniment.policies.errors import DeadlineExceeded, MunimentError, Overloaded, Unavailable
from tests.load.checks import Acknowledged, Effect, Remembered, Ruled
from tests.load.recorder import Recorder
from tests.load.targets import TOOL, Requests, Target, degraded
from tests.load.workload import Task, fact, loose_fact

REQUESTS = Requests()


def outcome_of(error: MunimentError) -> tuple[str, str]:
    """What the recorder calls an error, and what to say of it."""
    if isinstance(error, Overloaded) and error.fields.get("retry_after_seconds"):
        return "refused", ""
    detail = f"{error.code}: {error.detail}"
    if isinstance(error, DeadlineExceeded):
        return "late", ""
    return ("unavailable" if isinstance(error, Unavailable) else "error"), detail


class Player:
    """Plays tasks against a target. Each request has ``deadline_seconds`` from when it was due."""

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        acknowledged: Acknowledged,
        lines: Sequence[str],
        *,
        name: str,
        start: float,
        clock: Callable[[], float],
        deadline_seconds: float = 10.0,
        checked: float = 0.05,
        seed: int = 0,
    ) -> None:
        self._target, self._recorder, self._acknowledged, self._lines = target, recorder, acknowledged, lines
        self._name, self._start, self._clock, self._deadline_seconds = name, start, clock, deadline_seconds
        self._checked = checked
        self._chance = random.Random(seed)
        self._cases = 0

    async def play(self, task: Task, due: float) -> None:
        """The task, which was due at ``due``; and now and then a look at something acknowledged before."""
        await getattr(self, f"_{task.kind}")(task, due)
        if self._chance.random() < self._checked:
            await self._acknowledged.check_one(self._chance, self._send_for_check)

    async def _ask(self, kind: str, tenant: int, request: Request, due: float) -> Answer | MunimentError:
        """The answer, or the error; taken down either way."""
        try:
            left = due + self._deadline_seconds - self._clock()
            if left <= 0:
                raise DeadlineExceeded("it could not even be sent in time")
            answer: Answer | MunimentError = await self._target.send(tenant, request, left)
            outcome, detail = "ok", ""
        except MunimentError as error:
            answer, (outcome, detail) = error, outcome_of(error)
        self._recorder.add(kind, due - self._start, self._clock() - self._start, outcome, detail)
        return answer

    async def _send_for_check(self, tenant: int, request: Request) -> Answer:
        return await self._target.send(tenant, request, self._deadline_seconds)

    async def _recall(self, task: Task, due: float, profile: str = "fast") -> None:
        words = self._lines[task.number * 31 % len(self._lines)].split()[-6:]
        asked = REQUESTS.recall(" ".join(words), top_k=5, profile=profile)
        answer = await self._ask("recall" if profile == "fast" else "recall_reranked", task.tenant, asked, due)
        if not isinstance(answer, MunimentError):
            lacks = degraded(answer)
            if lacks is not None:
                self._recorder.degraded[lacks] += 1

    async def _recall_reranked(self, task: Task, due: float) -> None:
        await self._recall(task, due, "default")

    async def _remember(self, task: Task, due: float) -> None:
        told = fact(self._chance, self._lines, task.number)
        told["effective_at"] = datetime.now(UTC).isoformat()
        facts = [told, loose_fact(self._lines, task.number)]
        answer = await self._ask("remember", task.tenant, REQUESTS.remember(facts), due)
        if not isinstance(answer, MunimentError):
            self._acknowledged.add(Remembered(task.tenant, answer["results"][0]["id"], str(told["text"])))

    async def _effect(self, task: Task, due: float) -> None:
        effect = Effect(task.tenant, {"n": f"{self._name}-{task.number}"}, f"{self._name}-{task.number}")
        proposed = await self._ask("propose", task.tenant, effect.proposal(effect.run_id), due)
        if isinstance(proposed, MunimentError):
            return
        if proposed["verdict"] != "allow":
            self._recorder.errors[f"a new effect of {TOOL} met the verdict {proposed['verdict']}"] += 1
            return
        token = proposed["reservation"]["token"]
        confirmed = await self._ask("confirm", task.tenant, REQUESTS.confirm(token), self._clock())
        if not isinstance(confirmed, MunimentError) and confirmed["state"] == "confirmed":
            self._acknowledged.add(effect)

    async def _ruling(self, task: Task, due: float) -> None:
        """Two facts that no rule can choose between, and the owner's choice."""
        self._cases += 1
        case: dict[str, Any] = {
            "subject": f"case-{self._name}-{self._cases}",
            "field": "terms",
            "source": {"kind": "system_of_record", "id": "crm"},
        }
        both = [{**case, "text": f"{case['subject']} has {value} days", "value": value} for value in (30, 60)]
        answer = await self._ask("remember", task.tenant, REQUESTS.remember(both), due)
        if isinstance(answer, MunimentError):
            return
        held = answer["results"][1]
        ruling = REQUESTS.resolve(held["conflict_id"], "accept_challenger")
        ruled = await self._ask("resolve", task.tenant, ruling, self._clock())
        if not isinstance(ruled, MunimentError):
            self._acknowledged.add(Ruled(task.tenant, held["conflict_id"], str(case["subject"]), held["id"]))
