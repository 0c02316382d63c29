"""The Python client: ``AsyncClient`` and ``Client``, the same verbs over one implementation.

Given an HTTP address it speaks HTTP; given a Ray address or the folder of a running service it calls the services in
this process, which then is a driver of that Ray cluster (only then is Ray imported). Either way answers are those of
API.md, errors are the classes of ``muniment.policies.errors``, and what may be repeated is repeated until the deadline.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from muniment.cluster.effect import Effects, Runner
from muniment.cluster.effect import Verbs as EffectVerbs
from muniment.cluster.transport import Answer, HttpTransport, Transport, send_until
from muniment.cluster.verbs import Request, Verbs

T = TypeVar("T")
DEFAULT_ADDRESS = "http://127.0.0.1:8000"


def _transport(address: str | Path, key: str, user: str | None, company: str | None, connections: int) -> Transport:
    if str(address).startswith(("http://", "https://")):
        said = {"Authorization": f"Bearer {key}", "X-User": user, "X-Company": company}
        headers = {name: value for name, value in said.items() if value is not None}
        return HttpTransport(str(address), headers, connections)
    from muniment.cluster.ray_transport import RayTransport

    return RayTransport(address, key, user, company)


class AsyncClient(Verbs[Awaitable[Answer]], Effects):
    """The client for asyncio: every verb is awaited. Use it as an async context manager, or call ``close``.

    ``address``: ``http://…``, or a Ray address (``auto``, ``ray:HOST:PORT``), or the data folder of a running service.
    ``key`` is the API key, ``user`` who acts where the key is bound to nobody (X-User), ``company`` what an operator
    key acts for. ``timeout_seconds`` is the deadline of one verb, all its attempts together.
    """

    def __init__(
        self,
        address: str | Path = DEFAULT_ADDRESS,
        *,
        key: str,
        user: str | None = None,
        company: str | None = None,
        timeout_seconds: float = 60.0,
        connections: int = 64,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._to = _transport(address, key, user, company, connections)

    def _send(self, request: Request) -> Coroutine[Any, Any, Answer]:
        return send_until(self._to, request, self.timeout_seconds)

    def _effect_parts(self) -> tuple[EffectVerbs, Runner | None]:
        return self, None

    async def close(self) -> None:
        """Closes the connections."""
        await self._to.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Client(Verbs[Answer], Effects):
    """The client for everybody else: every verb returns its answer. Thread-safe; arguments as of ``AsyncClient``.

    It runs an ``AsyncClient`` on an event loop in a thread of its own.
    """

    def __init__(self, address: str | Path = DEFAULT_ADDRESS, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="muniment-client", daemon=True)
        self._thread.start()
        try:
            self.asynchronous = self._run(_make(address, options))
        except BaseException:
            self._stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # of no effect unless it was interrupted
            raise

    def _send(self, request: Request) -> Answer:
        return self._run(self.asynchronous._send(request))

    def _effect_parts(self) -> tuple[EffectVerbs, Runner | None]:
        return self.asynchronous, self._run

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        if self._thread.is_alive():
            self._run(self.asynchronous.close())
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _make(address: str | Path, options: dict[str, Any]) -> AsyncClient:
    return AsyncClient(address, **options)
