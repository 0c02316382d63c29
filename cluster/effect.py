"""``with client.effect(…)``: an external effect done at most once, over any object with the four asynchronous verbs.

The body runs only on allow. When it returns, the effect is confirmed; when it raises, released; when it may have
happened all the same (a time-out, a cancellation, an interrupt, a type in ``ambiguous``), it is left to lapse.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

from muniment.policies.effect_gate import Verdict
from muniment.policies.errors import DeadlineExceeded, MunimentError, StaleReservation

Answer = dict[str, Any]
OnDuplicate = Literal["raise", "return"]
P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)
#: Renewals in one lease: two may be lost before it lapses.
_RENEWALS_PER_LEASE = 3


class Verbs(Protocol):
    """What is needed of a client: the asynchronous verbs of effects."""

    def propose(
        self,
        *,
        area: str,
        agent: str,
        tool: str,
        arguments: Mapping[str, Any],
        run_id: str,
        step_id: str,
        **options: Any,
    ) -> Awaitable[Answer]:
        """The gate's verdict."""

    def confirm(self, token: str, *, result_ref: str | None = None) -> Awaitable[Answer]:
        """The tool returned success."""

    def renew(self, token: str) -> Awaitable[Answer]:
        """The tool is still running."""

    def release(self, token: str, *, reason: str | None = None) -> Awaitable[Answer]:
        """The tool failed."""


#: Runs a coroutine to its end on an event loop that goes on running (a client's thread), for synchronous callers.
Runner = Callable[[Coroutine[Any, Any, Any]], Any]


class Duplicate(MunimentError):
    """The effect happened already: it is skipped, and no earlier answer is replayed.

    Raised or returned, by choice. ``origin`` holds ``run_id``, ``step_id`` and ``confirmed_at`` as far as known;
    ``stop`` advises the run to stop, because it proposes the same finished effect again and again.
    """

    code = "duplicate_effect"

    @property
    def origin(self) -> Mapping[str, str]:
        """Where the effect came from."""
        return cast(Mapping[str, str], self.fields.get("origin", {}))

    @property
    def stop(self) -> bool:
        """Whether the run should stop."""
        return bool(self.fields.get("run", {}).get("stop"))


class EffectPending(MunimentError):
    """Another run holds the key; it may be free, or done, a little later."""

    code = "effect_pending"
    retryable = True


class EffectBlocked(MunimentError):
    """Policy blocks the call; ``reason`` says why."""

    code = "effect_blocked"


class Effect:
    """One effect while it is being done. ``answer`` is the proposal's; ``result_ref``, if set, is kept with the effect.

    Where the lease was lost while the body ran, ``lost`` holds the error, and the confirmation will raise it.
    """

    def __init__(
        self,
        verbs: Verbs,
        runner: Runner | None,
        *,
        area: str,
        agent: str,
        tool: str,
        arguments: Mapping[str, Any],
        run: str,
        step: str,
        ambiguous: tuple[type[BaseException], ...] = (),
        on_duplicate: OnDuplicate = "raise",
        **options: Any,
    ) -> None:
        """``options``: ``agent_version``, ``tainted``, ``wait_ms``, as of the verb ``propose``."""
        self._verbs = verbs
        self._runner = runner
        self._proposal: dict[str, Any] = {
            "area": area,
            "agent": agent,
            "tool": tool,
            "arguments": dict(arguments),
            "run_id": run,
            "step_id": step,
            **options,
        }
        self._ambiguous = ambiguous
        self._on_duplicate = on_duplicate
        self._renewing: asyncio.Task[None] | None = None
        self.answer: Answer = {}
        self.result_ref: str | None = None
        self.lost: StaleReservation | None = None

    @property
    def token(self) -> str | None:
        """The reservation's token; None where the tool has no key."""
        return cast("str | None", self.answer.get("reservation", {}).get("token"))

    async def __aenter__(self) -> Effect | Duplicate:
        answer = self.answer = await self._verbs.propose(**self._proposal)
        verdict = answer["verdict"]
        if verdict == Verdict.DUPLICATE:
            duplicate = Duplicate("the effect happened already", **answer)
            if self._on_duplicate == "raise":
                raise duplicate
            return duplicate
        if verdict == Verdict.BLOCK:
            raise EffectBlocked(f"policy blocks the call: {answer['reason']}", **answer)
        if verdict == Verdict.PENDING:
            raise EffectPending("another run holds the effect", **answer)
        if self.token is not None:
            lease_seconds = answer["reservation"]["lease_seconds"]
            self._renewing = asyncio.get_running_loop().create_task(self._renew(self.token, lease_seconds))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self.token is None:
            return
        if error is None:
            await self._verbs.confirm(self.token, result_ref=self.result_ref)
        elif not _may_have_happened(error, self._ambiguous):
            await self._release(self.token, error)

    def __enter__(self) -> Effect | Duplicate:
        return cast("Effect | Duplicate", self._run(self.__aenter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self.__aexit__(kind, error, trace))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            work.close()
            raise TypeError("an effect of an asynchronous client needs 'async with'")
        return self._runner(work)

    async def _renew(self, token: str, lease_seconds: float) -> None:
        """Renews until it is cancelled, or the reservation is lost."""
        while True:
            await asyncio.sleep(lease_seconds / _RENEWALS_PER_LEASE)
            try:
                await self._verbs.renew(token)
            except StaleReservation as error:
                self.lost = error
                return
            except MunimentError as error:
                log.warning("the lease could not be renewed: %s", error)

    async def _release(self, token: str, cause: BaseException) -> None:
        """Releases after a failure, whose own exception is the one the caller must see."""
        try:
            await self._verbs.release(token, reason=f"{type(cause).__name__}: {cause}"[:500])
        except MunimentError as error:
            log.warning("the reservation is left to lapse: %s", error)


def _may_have_happened(error: BaseException, ambiguous: tuple[type[BaseException], ...]) -> bool:
    """Whether the effect may have happened although the body raised.

    Libraries have time-outs of their own that are no ``TimeoutError``; they are known by their names.
    """
    if not isinstance(error, Exception) or isinstance(error, (asyncio.CancelledError, TimeoutError, DeadlineExceeded)):
        return True
    return isinstance(error, ambiguous) or any("Timeout" in kind.__name__ for kind in type(error).__mro__)


class Effects:
    """The methods ``effect`` and ``governed`` of a client."""

    def _effect_parts(self) -> tuple[Verbs, Runner | None]:
        """The asynchronous verbs, and for a synchronous client what runs them."""
        raise NotImplementedError

    def effect(
        self,
        *,
        area: str,
        agent: str,
        tool: str,
        arguments: Mapping[str, Any],
        run: str,
        step: str,
        ambiguous: tuple[type[BaseException], ...] = (),
        on_duplicate: OnDuplicate = "raise",
        **options: Any,
    ) -> Effect:
        """An effect, as a context manager (``async with`` for an asynchronous client).

        On entering it raises ``EffectBlocked``, ``EffectPending`` and ``Duplicate``; with ``on_duplicate="return"`` it
        gives a ``Duplicate`` instead of itself, and the body must look at what it got. ``options``: ``agent_version``,
        ``tainted``, ``wait_ms``.
        """
        verbs, runner = self._effect_parts()
        return Effect(
            verbs,
            runner,
            area=area,
            agent=agent,
            tool=tool,
            arguments=arguments,
            run=run,
            step=step,
            ambiguous=ambiguous,
            on_duplicate=on_duplicate,
            **options,
        )

    def governed(
        self, *, area: str, agent: str, tool: str, key_arguments: Sequence[str], **options: Any
    ) -> Callable[[Callable[..., R]], Callable[..., R | Duplicate]]:
        """Decorates a function (a coroutine function for an asynchronous client) that does an effect.

        ``key_arguments``: the parameters that are proposed as the effect's arguments. The decorated function takes two
        more keyword arguments, ``run`` and ``step``. ``options`` as of ``effect``; with ``on_duplicate="return"`` a
        duplicate call returns a ``Duplicate``, without calling the function.
        """

        def decorate(function: Callable[..., R]) -> Callable[..., R | Duplicate]:
            signature = inspect.signature(function)
            unknown = [name for name in key_arguments if name not in signature.parameters]
            if unknown:
                raise TypeError(f"{function.__qualname__} has no parameter {unknown[0]!r}")

            def begin(args: tuple[Any, ...], kwargs: dict[str, Any], run: str, step: str) -> Effect:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                arguments = {name: bound.arguments[name] for name in key_arguments}
                return self.effect(
                    area=area, agent=agent, tool=tool, arguments=arguments, run=run, step=step, **options
                )

            @functools.wraps(function)
            def call(*args: Any, run: str, step: str, **kwargs: Any) -> R | Duplicate:
                with begin(args, kwargs, run, step) as effect:
                    return effect if isinstance(effect, Duplicate) else function(*args, **kwargs)

            @functools.wraps(function)
            async def call_async(*args: Any, run: str, step: str, **kwargs: Any) -> Any:
                async with begin(args, kwargs, run, step) as effect:
                    if isinstance(effect, Duplicate):
                        return effect
                    return await cast(Awaitable[Any], function(*args, **kwargs))

            return cast(Callable[..., Any], call_async if inspect.iscoroutinefunction(function) else call)

        return decorate
