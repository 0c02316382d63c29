"""Load on a deployment of your own, with Locust (``pip install 'muniment[load]'``).

    LOAD_KEY=… locust -f tests/load/locustfile.py --host https://muniment.example.org
    … --headless --users 50 --spawn-rate 5 --run-time 2m

The key needs the roles of an agent, or of an admin. Facts, effects and their runs carry a random name of the run of
Locust; what it stores stays until you delete it, so use a company of its own. An answer 429 is counted by itself: the
service refused on purpose and said when to come back, and the user waits for so long.
"""

from __future__ import annotations

import itertools
import os
import uuid
from typing import Any

from locust import HttpUser, constant_throughput, task

RUN = uuid.uuid4().hex[:8]
TOOL = os.environ.get("LOAD_TOOL", "send_mail")
#: Requests a second of one user.
PACE = float(os.environ.get("LOAD_PACE", "1"))
WORDS = ("invoice", "delivery", "contract", "printer", "meeting", "invoice terms", "owner of the account")
_numbers = itertools.count()


class Agent(HttpUser):
    """An agent that mostly asks, sometimes tells, and now and then does something outside."""

    wait_time = constant_throughput(PACE)

    def on_start(self) -> None:
        """Every request carries the key."""
        self.client.headers["Authorization"] = f"Bearer {os.environ['LOAD_KEY']}"
        self.name = f"{RUN}-{next(_numbers)}"
        self.step = 0

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer, None where there was none; a refusal is a row of its own and no failure."""
        with self.client.post(path, json=body, catch_response=True) as response:
            if response.status_code == 429 and "Retry-After" in response.headers:
                response.request_meta["name"] = f"{path} (429)"
                response.success()
                self._sleep(float(response.headers["Retry-After"]))
                return None
            if not response.ok:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return None
            response.success()
            answer: dict[str, Any] = response.json()
            return answer

    @task(60)
    def recall(self) -> None:
        """Asks."""
        self.step += 1
        self._post("/v1/recall", {"query": f"{WORDS[self.step % len(WORDS)]} of client {self.step % 50}"})

    @task(20)
    def remember(self) -> None:
        """Tells a fact."""
        self.step += 1
        text = (
            f"Client {self.step % 50}: {WORDS[self.step % len(WORDS)]} was settled in step {self.step} of {self.name}"
        )
        fact = {"text": text, "source": {"kind": "agent_summary", "author": self.name}}
        self._post("/v1/memories", {"facts": [fact]})

    @task(15)
    def effect(self) -> None:
        """Proposes an effect, and confirms it where it may be done."""
        self.step += 1
        step = str(self.step)
        arguments = {"n": f"{self.name}-{step}"}
        call = {"area": "load", "agent": "locust", "tool": TOOL, "arguments": arguments}
        proposed = self._post("/v1/effects/propose", {**call, "run_id": self.name, "step_id": step})
        if proposed and proposed.get("reservation"):
            self._post("/v1/effects/confirm", {"token": proposed["reservation"]["token"]})
