"""Brings the Ray actors to what is wanted: how many there are of each kind, and which shard or ledger has what.

What is wanted and what is so stand in the store, and every step is one transaction there; so whoever takes over, at any
moment, goes on where another stopped, and two that work at once do each other no harm.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, get_args

import ray
import sqlalchemy as sa

from muniment.actors.store import tenure
from muniment.actors.store.engine import available, open_engine, writing
from muniment.actors.store.tenure import Role, read_role
from muniment.cluster.actor_classes import create_actor
from muniment.cluster.handles import ActorHandle
from muniment.cluster.ledger_handle import LedgerHandle
from muniment.cluster.naming import actor_name
from muniment.cluster.pool_keeper import LOOK_SECONDS, PoolKeeper
from muniment.cluster.roster import FRESH_SECONDS
from muniment.cluster.settings import Settings
from muniment.policies.errors import MunimentError, Unavailable
from muniment.policies.partitioning import FIRST_APART, Divided, Kind, Move, PartitionMap, Unit, pending_moves
from muniment.policies.pool_size import PoolPolicy

log = logging.getLogger(__name__)

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: How long a new Ray actor may take to be ready: a model's first export, on a busy machine.
_READY_SECONDS: Final = 300.0
#: How long what only shortens a move may take.
_HELP_SECONDS: Final = 2.0
_PRELOAD_SECONDS: Final = 60.0
#: After which nobody calls what is no longer used.
_GRACE_SECONDS: Final = 3 * FRESH_SECONDS
#: How often it is looked whether somebody else asked for something, and the pause after a failure.
_LOOK_SECONDS: Final = 5.0


class Scaler:
    """Works in one event loop; ``start`` gives it one in a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        memory, effects = (open_engine(settings.store_url(name)) for name in ("memory", "effects"))
        self._engines: dict[Kind, sa.Engine] = {kind: effects if kind == "ledger" else memory for kind in KINDS}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._workers: dict[int, ActorHandle] = {}
        #: Why it does not get on, or None.
        self.problem: str | None = None
        #: Told of each move, and of the seconds that its transaction took.
        self.on_move: Callable[[Divided, Move, float], None] = lambda kind, move, seconds: None

    # --- what is wanted and what is so; these block

    def roles(self) -> dict[Kind, Role]:
        """What the store says of each kind. Raises ``StoreUnavailable``."""
        with available():
            return {kind: self._role(kind) for kind in KINDS}

    def _role(self, kind: Kind) -> Role:
        with self._engines[kind].connect() as connection:
            return read_role(connection, kind)

    def want(self, wanted: dict[Kind, int]) -> None:
        """Says how many there are to be, and has it done. Raises ``StoreUnavailable``."""
        for kind, members in wanted.items():
            self._write(kind, lambda connection, k=kind, n=members: tenure.want(connection, k, n))  # type: ignore[misc]
        self._notice()

    def worker_sizes(self) -> tuple[int, int]:
        """How many model workers there are to be, and are used. Raises ``StoreUnavailable``."""
        with available():
            role = self._role("worker")
        return role.wanted, role.used

    def place(self, company: str, pinned: bool | None, apart: bool | None) -> PartitionMap:
        """See ``tenure.place_company``; has it done."""
        placed: PartitionMap = self._write(
            "shard", lambda connection: tenure.place_company(connection, company, pinned=pinned, apart=apart)
        )
        self._notice()
        return placed

    def _notice(self) -> None:
        """Has the work in the background look now."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked.set)

    def _write(self, kind: Kind, body: Callable[[sa.Connection], Any]) -> Any:
        with available(), writing(self._engines[kind]).begin() as connection:
            return body(connection)

    def running(self) -> dict[Kind, set[int]]:
        """The numbers of the Ray actors that there are."""
        found: dict[Kind, set[int]] = {kind: set() for kind in KINDS}
        for entry in ray.util.list_named_actors(all_namespaces=True):
            kind, _, number = entry["name"].rpartition("-")
            if entry["namespace"] == self._settings.ray.namespace and kind in found and number.isdigit():
                found[kind].add(int(number))
        return found

    def state(self) -> dict[str, Any]:
        """How far it is: of each kind ``{wanted, running, to_move?}``, ``own_shards``, ``pinned`` and ``done``."""
        roles, running = self.roles(), self.running()
        answer: dict[str, Any] = {}
        done = True
        for kind, role in roles.items():
            numbers = [number for number in running[kind] if number < FIRST_APART or not role.divided]
            answer[f"{kind}s"] = {"wanted": role.wanted, "running": len(numbers)}
            if role.divided:
                answer[f"{kind}s"]["to_move"] = len(pending_moves(role.map, role.wanted))
                done &= answer[f"{kind}s"]["to_move"] == 0
            else:
                done &= role.used == role.wanted
            done &= running[kind] == role.needed
        shards = roles["shard"].map
        answer |= {"own_shards": sorted(shards.apart), "pinned": sorted(shards.pinned), "done": done}
        return answer if self.problem is None else {**answer, "problem": self.problem}

    # --- doing it

    def start(self) -> None:
        """Works in the background from now on, for as long as this process lives."""
        threading.Thread(target=lambda: asyncio.run(self._run()), name="scaler", daemon=True).start()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        workers = self._settings.workers
        if workers.max_count is not None:
            policy = PoolPolicy(least=workers.count, most=workers.max_count)
            self._beside(PoolKeeper(policy, self, self._load_of).run())
        while True:
            try:
                await self.converge()
                self.problem = None
            except MunimentError as error:
                log.warning("scaling does not get on: %s", error.detail)
                self.problem = error.detail
            except Exception as error:
                log.exception("scaling failed in a way nobody foresaw")
                self.problem = f"{type(error).__name__}; see the log"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _LOOK_SECONDS)
            self._asked.clear()

    async def _load_of(self, number: int) -> dict[str, float]:
        name = actor_name("worker", number)
        handle = self._workers.setdefault(number, ActorHandle(name, self._settings.ray.namespace))
        load: dict[str, float] = await handle.call("load", deadline_seconds=LOOK_SECONDS)
        return load

    async def converge(self) -> None:
        """Does all that is to be done. Raises ``Unavailable`` where it cannot go on; what was done stays done."""
        for kind, role in (await asyncio.to_thread(self.roles)).items():
            await self._there(kind, role.needed - self.running()[kind])
        await self._resize_pool()
        for divided in get_args(Divided):
            await self._divide(divided)

    async def _resize_pool(self) -> None:
        """Model workers have no partitions: new ones are used once they are ready, and end once nobody uses them."""
        role = await asyncio.to_thread(self._role, "worker")
        if role.used != role.wanted:
            await self._there("worker", set(range(role.used, role.wanted)))
            await asyncio.to_thread(
                self._write, "worker", lambda connection: tenure.use(connection, "worker", role.wanted)
            )
        if self.running()["worker"] - set(range(role.wanted)):
            await asyncio.sleep(_GRACE_SECONDS)
            await self._end_surplus("worker")

    async def _divide(self, kind: Divided) -> None:
        """Moves what is to be moved, one after the other, and ends those that have nothing any more."""
        ready: set[int] = set()
        while True:
            role = await asyncio.to_thread(self._role, kind)
            pending = pending_moves(role.map, role.wanted)
            if not pending:
                break
            missing = (set(range(role.wanted)) | {pending[0].new}) - ready
            await self._there(kind, missing)
            ready |= missing
            await self._move(kind, pending[0])
        await self._end_surplus(kind)

    async def _there(self, kind: Kind, numbers: set[int]) -> None:
        """Has these Ray actors made, where they are not, and waits until they are ready."""
        for number in sorted(numbers):
            create_actor(self._settings, kind, number)
        await asyncio.gather(*(self._ready(kind, number) for number in numbers))

    async def _ready(self, kind: Kind, number: int) -> None:
        name, namespace = actor_name(kind, number), self._settings.ray.namespace
        if kind != "ledger":
            await ActorHandle(name, namespace).call("ready", deadline_seconds=_READY_SECONDS)
            return
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            try:
                if (await LedgerHandle(name, namespace).health())["failure"] is None:
                    return
            except Unavailable as error:
                log.debug("%s is not there yet: %s", name, error.detail)
            await asyncio.sleep(0.05)
        raise Unavailable(f"{name} does not get ready")

    async def _move(self, kind: Divided, move: Move) -> None:
        old, new = actor_name(kind, move.old), actor_name(kind, move.new)
        hot = await self._prepare(old, new, move.unit) if kind == "shard" else []
        began = time.monotonic()
        await asyncio.to_thread(
            self._write, kind, lambda connection: tenure.move(connection, kind, move.unit, move.old, move.new)
        )
        self.on_move(kind, move, time.monotonic() - began)
        namespace = self._settings.ray.namespace
        if kind == "ledger":
            # So that those who wait there for a key that went learn of it now.
            await _helpful(LedgerHandle(old, namespace).look(), _HELP_SECONDS)
            return
        for company, dimension in hot:
            warm = ActorHandle(new, namespace).call("warm", company=company, dimension=dimension)
            self._beside(_helpful(warm, _PRELOAD_SECONDS))
        await _helpful(ActorHandle(old, namespace).call("settle"), _HELP_SECONDS)

    async def _prepare(self, old: str, new: str, unit: Unit) -> list[Any]:
        """Has the new shard read beforehand what the old one has loaded: ``[[company, dimension], …]``."""
        namespace = self._settings.ray.namespace
        found = await _helpful(ActorHandle(old, namespace).call("loaded", unit=unit), _HELP_SECONDS)
        hot: list[Any] = [] if found is None else found["companies"]
        if hot:
            await _helpful(ActorHandle(new, namespace).call("preload", companies=hot), _PRELOAD_SECONDS)
        return hot

    def _beside(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end_surplus(self, kind: Kind) -> None:
        """Ends the Ray actors that nobody needs, and waits until their names are free."""
        role = await asyncio.to_thread(self._role, kind)
        surplus = self.running()[kind] - role.needed
        for number in surplus:
            with suppress(ValueError):  # another one ended it
                ray.kill(ray.get_actor(actor_name(kind, number), namespace=self._settings.ray.namespace))
        while surplus & self.running()[kind]:
            await asyncio.sleep(0.05)


async def _helpful(work: Awaitable[Any], seconds: float) -> Any:
    """What only makes a move quicker: its answer, None where there was none in time."""
    try:
        return await asyncio.wait_for(work, seconds)
    except (MunimentError, TimeoutError) as error:
        log.info("a move goes on without help: %s", error)
        return None
