"""Typed handles: how this project calls its Ray actors, and turns Ray's failures into its own errors.

A call is one msgpack ``bytes`` argument (a verb, its arguments, the callers' spans) and one ``bytes`` answer, so that
errors cross as data and nothing is pickled. Every verb may be sent again: reads by nature, writes because they carry a
request id.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from muniment.actors.model_worker import MAX_WAIT_SECONDS, Priority
from muniment.actors.wire import pack, unpack
from muniment.cluster import telemetry
from muniment.cluster.coalescer import Coalescer
from muniment.policies.errors import DeadlineExceeded, Fenced, MunimentError, Overloaded, Unavailable

#: How long a call may wait through an actor's restart.
DEADLINE_SECONDS = 30.0
#: Between two tries while an actor restarts; Ray needs about a second.
RETRY_SECONDS = 0.1
#: How long a model worker that could not be reached is passed over while others can.
_DOWN_SECONDS = 0.5
#: Texts in one call of a bulk embedding, and how many such calls of one process a worker may have at a time.
_PART = 64
_PARTS_PER_WORKER = 2


class _NoActor(Exception):
    """There is no Ray actor of this name, perhaps because it is just being made."""


class Unreachable(Exception):
    """The Ray actor died under the call, or is not there; whether it did what was asked is unknown."""


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
        request = pack([verb, arguments, [telemetry.carrier()]])
        deadline = time.monotonic() + deadline_seconds
        while True:
            try:
                return await self.attempt(request, deadline)
            except Unreachable as error:
                if time.monotonic() + RETRY_SECONDS >= deadline:
                    raise Unavailable(f"{self.name} cannot be reached", retry_after_seconds=2) from error
                await asyncio.sleep(RETRY_SECONDS)

    async def attempt(self, request: bytes, deadline: float) -> Any:
        """The answer to a packed request, tried once. Raises ``Unreachable``, and what ``call`` does.

        ``deadline``: of ``time.monotonic()``.
        """
        try:
            return _answer(await self._send("call", request, deadline))
        except Fenced as error:
            raise self._replaced() from error

    async def attempt_together(self, requests: Sequence[bytes], deadline: float) -> list[Any]:
        """The answer to each of some packed requests that travel in one call, tried once: what it raised where it
        failed, None where it is to be attempted by itself. Raises ``Unreachable`` and ``DeadlineExceeded`` for all."""
        found: list[Any] = []
        for data in unpack(await self._send("call_together", pack(requests), deadline)):
            try:
                found.append(None if data is None else _answer(data))
            except Fenced:
                found.append(self._replaced())
            except MunimentError as error:
                found.append(error)
        return found

    def _replaced(self) -> Unreachable:
        self._actor = None
        return Unreachable(self.name)

    async def _send(self, method: str, request: bytes, deadline: float) -> bytes:
        self.in_flight += 1
        try:
            return await self._reached(method, request, deadline)
        except (RayActorError, _NoActor) as error:
            if not isinstance(error, ActorUnavailableError):
                self._actor = None  # dead: another one has the name, or will have it
            raise Unreachable(self.name) from error
        finally:
            self.in_flight -= 1

    async def _reached(self, method: str, request: bytes, deadline: float) -> bytes:
        if self._actor is None:
            try:
                self._actor = ray.get_actor(self.name, namespace=self._namespace)
            except ValueError as error:
                raise _NoActor(self.name) from error
        reference = getattr(self._actor, method).remote(request)
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
    """The model workers: the least loaded takes the next call; one that died costs another try, elsewhere.

    Queries that are to be embedded while others are on their way travel in one call; bulk goes in parts, so that all
    workers get some and no call is large.
    """

    def __init__(self, handles: Callable[[], Sequence[ActorHandle]]) -> None:
        """``handles``: to those that are used now."""
        self._handles = handles
        self._down: dict[str, float] = {}
        self._count = 0
        self._queries: Iterator[Coalescer[bytes]] = iter(())
        self._room = asyncio.Semaphore(0)

    def _fit(self) -> None:
        """Each worker has one batch of queries under way, and room for some parts, so that all can be busy."""
        count = len(self._handles())
        if count != self._count:
            self._count = count
            batches = [Coalescer(self._embed_queries, max_items=64, max_bytes=60_000) for _ in range(count)]
            self._queries = itertools.cycle(batches)
            self._room = asyncio.Semaphore(_PARTS_PER_WORKER * count)

    async def embed(self, texts: Sequence[str], priority: int) -> bytes:
        """See ``ModelWorker.embed``."""
        self._fit()
        if len(texts) == 1 and priority == Priority.QUERY:
            return await next(self._queries).submit(pack([texts[0], telemetry.carrier()]))
        parts = [texts[start : start + _PART] for start in range(0, len(texts), _PART)]
        # The first waits for its turn no longer than is bearable; the rest of what has begun waits until it comes.
        waits = itertools.chain([MAX_WAIT_SECONDS], itertools.repeat(None))
        tasks = [
            asyncio.ensure_future(self._embed_part(part, priority, wait))
            for part, wait in zip(parts, waits, strict=False)
        ]
        try:
            return b"".join(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See ``ModelWorker.rerank``."""
        scores: list[float] = await self._call("rerank", {"query": query, "texts": list(texts)})
        return scores

    async def describe(self) -> dict[str, Any]:
        """See ``ModelWorker.describe``."""
        answer: dict[str, Any] = await self._call("describe", {})
        return answer

    async def _embed_part(self, texts: Sequence[str], priority: int, wait_seconds: float | None) -> bytes:
        room = self._room
        try:
            async with asyncio.timeout(wait_seconds):
                await room.acquire()
        except TimeoutError:
            raise Overloaded("too much waits for the model workers", retry_after_seconds=2) from None
        try:
            arguments = {"texts": list(texts), "priority": priority, "patient": wait_seconds is None}
            vectors: bytes = await self._call("embed", arguments)
        finally:
            room.release()
        return vectors

    async def _embed_queries(self, items: list[bytes]) -> list[bytes | Exception]:
        texts, carriers = zip(*map(unpack, items), strict=True)
        arguments = {"texts": texts, "priority": int(Priority.QUERY)}
        vectors: bytes = await self._call("embed", arguments, [carrier for carrier in carriers if carrier])
        size = len(vectors) // len(items)
        return [vectors[i * size : (i + 1) * size] for i in range(len(items))]

    async def _call(
        self, verb: str, arguments: dict[str, Any], carriers: Sequence[telemetry.Carrier] | None = None
    ) -> Any:
        """What a worker answers. Raises what it raised; ``Unavailable`` where none can be reached.

        ``carriers``: of the calls that travel in this one, where it is not for the current span alone.
        """
        request = pack([verb, arguments, [telemetry.carrier()] if carriers is None else carriers])
        deadline = time.monotonic() + DEADLINE_SECONDS
        full: dict[str, Overloaded] = {}
        while True:
            now = time.monotonic()
            up = [h for h in self._handles() if self._down.get(h.name, 0.0) <= now and h.name not in full]
            if up:
                handle = min(up, key=lambda one: (one.in_flight, one.name))
                try:
                    return await handle.attempt(request, deadline)
                except Unreachable:
                    self._down[handle.name] = time.monotonic() + _DOWN_SECONDS
                except Overloaded as error:
                    full[handle.name] = error  # another one may have room
            elif full:
                raise next(iter(full.values()))
            elif now + RETRY_SECONDS >= deadline:
                raise Unavailable("no model worker can be reached", retry_after_seconds=2)
            else:
                await asyncio.sleep(RETRY_SECONDS)


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
