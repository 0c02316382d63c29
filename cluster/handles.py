"""Typed handles: how this project calls its Ray actors, and turns Ray's failures into its own errors.

A call is one msgpack ``bytes`` argument (a verb and its arguments) and one ``bytes`` answer, so that errors cross as
data and nothing is pickled. Every verb may be sent again: reads by nature, writes because they carry a request id.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from muniment.actors.wire import pack, unpack
from muniment.policies.errors import DeadlineExceeded, Fenced, MunimentError, Unavailable

#: How long a call may wait through an actor's restart.
DEADLINE_SECONDS = 30.0
#: Between two tries while an actor restarts; Ray needs about a second.
_RETRY_SECONDS = 0.1


class _NoActor(Exception):
    """There is no Ray actor of this name, perhaps because it is just being made."""


class ActorHandle:
    """Calls one named Ray actor. Made anywhere in the cluster; looks the actor up when first used."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self._namespace = namespace
        self._actor: Any = None
        self.in_flight = 0

    async def call(self, verb: str, /, *, deadline_seconds: float = DEADLINE_SECONDS, **arguments: Any) -> Any:
        """The verb's answer. Waits through a restart within the deadline, then raises ``Unavailable``.

        Raises what the actor raised, ``DeadlineExceeded`` where the answer did not come, ``Unavailable`` where the
        actor could not be reached.
        """
        request = pack([verb, arguments])
        deadline = time.monotonic() + deadline_seconds
        self.in_flight += 1
        try:
            while True:
                try:
                    return _answer(await self._send(request, deadline))
                except (RayActorError, _NoActor, Fenced) as error:
                    if not isinstance(error, ActorUnavailableError):
                        self._actor = None  # dead, or replaced: another one has the name, or will have it
                    if time.monotonic() + _RETRY_SECONDS >= deadline:
                        raise Unavailable(f"{self.name} cannot be reached", retry_after_seconds=2) from error
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self.in_flight -= 1

    async def _send(self, request: bytes, deadline: float) -> bytes:
        if self._actor is None:
            try:
                self._actor = ray.get_actor(self.name, namespace=self._namespace)
            except ValueError as error:
                raise _NoActor(self.name) from error
        reference = self._actor.call.remote(request)
        try:
            # wrap_future rather than the reference itself: asyncio.wait on references leaks
            answer: bytes = await asyncio.wait_for(
                asyncio.wrap_future(reference.future()), max(0.0, deadline - time.monotonic())
            )
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.name} did not answer in time", retry_after_seconds=2) from error
        return answer


def _answer(data: bytes) -> Any:
    kind, value = unpack(data)
    if kind == "error":
        raise MunimentError.from_wire(value)
    return value


class WorkerPool:
    """The model workers: the least loaded takes the next call; one that died costs another try, elsewhere."""

    def __init__(self, handles: Sequence[ActorHandle]) -> None:
        self._handles = list(handles)

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        """See ``ModelWorker.embed``."""
        vectors: bytes = await self._least_loaded().call("embed", texts=list(texts), priority=priority)
        return vectors

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See ``ModelWorker.rerank``."""
        scores: list[float] = await self._least_loaded().call("rerank", query=query, texts=list(texts))
        return scores

    async def describe(self) -> dict[str, Any]:
        """See ``ModelWorker.describe``."""
        answer: dict[str, Any] = await self._least_loaded().call("describe")
        return answer

    def _least_loaded(self) -> ActorHandle:
        return min(self._handles, key=lambda handle: (handle.in_flight, handle.name))


class Remote:
    """An actor's verbs as async methods: ``Remote(handle).recall(plan=p)`` is ``handle.call("recall", plan=p)``.

    ``actors/ports.py`` says which verbs there are and what they take.
    """

    def __init__(self, handle: ActorHandle) -> None:
        self._handle = handle

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return functools.partial(self._handle.call, verb)
