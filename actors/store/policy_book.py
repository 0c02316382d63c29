"""What is written for a company's memory, out of the control store: its policies, and its gate's threshold.

What is in force is asked of the store for each recall and each group of writes. What it last said is kept for three
things: a policy is read again only where it changed; the many questions of one request are about one state; and recalls
go on while the store is away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from muniment.actors.store.control_store import Calibration, ControlStore, InForce, Versioned
from muniment.actors.store.reach import SharedReach
from muniment.policies.errors import NotFound, StoreUnavailable
from muniment.policies.memory_policy import MemoryPolicy
from muniment.policies.model import Slot
from muniment.policies.precedence_policy import PrecedencePolicy, SlotRules, parse_policy, resolve
from muniment.policies.routing import default_threshold

_DEFAULT = PrecedencePolicy()
_DEFAULT_MEMORY = MemoryPolicy()
_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class _Page:
    """A company's state: what tells it apart from others, and what is written in it."""

    state: InForce
    version: int
    precedence: PrecedencePolicy
    memory: MemoryPolicy
    calibrations: Mapping[str, Calibration]


class PolicyBook:
    """What is in force for each company, and precedence policies as they were written over time."""

    def __init__(self, control: ControlStore) -> None:
        self._control = control
        self._parsed: dict[tuple[str, int, datetime], PrecedencePolicy] = {}
        self._last: dict[str, _Page] = {}
        self._wanted: set[str] = set()
        self._reach = SharedReach(self._ask_all, self._take_wanted)

    def current(self, company: str) -> tuple[int, PrecedencePolicy]:
        """The version of the precedence policy in force and the policy; 0 and the default one where nobody wrote any.

        Asks the store, and with it whatever else is in force.
        """
        page = self._ask(company)
        return page.version, page.precedence

    def known(self, company: str) -> tuple[int, PrecedencePolicy]:
        """The same, as it was when the company was last asked about; asked where it never was."""
        page = self._known(company)
        return page.version, page.precedence

    def memory(self, company: str) -> MemoryPolicy:
        """The memory policy, as it was when the company was last asked about; asked where it never was."""
        return self._known(company).memory

    def threshold(self, company: str, model: str) -> float:
        """The gate's threshold under an embedding model, as it was when the company was last asked about."""
        found = self.calibration(company, model)
        return default_threshold(model) if found is None else found.threshold

    def calibration(self, company: str, model: str) -> Calibration | None:
        """What the company's threshold was found by, None where it is the model's own."""
        return self._known(company).calibrations.get(model)

    def require_open(self, company: str, since: int | None) -> None:
        """Raises ``NotFound`` where the company, as it was when it was last asked about, was erased or is being so.

        ``since``: when it was made, as the caller's key says; another company may have the name by now.
        """
        made = self._known(company).state[-1]
        if made is None or since not in (None, made):
            raise NotFound("there is no such company")

    async def refresh(self, company: str) -> bool:
        """Has ``known``, ``memory`` and ``threshold`` say what is in force now.

        False: the store is away, and what was known goes on holding. Raises ``StoreUnavailable`` where nothing is.
        """
        try:
            if self._control.local:
                self._ask(company)
            else:
                self._wanted.add(company)
                failed = await self._reach.ask()
                if company in failed:
                    raise failed[company]
        except StoreUnavailable:
            if company not in self._last:
                raise
            return False
        return True

    def _known(self, company: str) -> _Page:
        return self._last.get(company) or self._ask(company)

    def _ask(self, company: str) -> _Page:
        return self._page(company, self._control.in_force([company])[company])

    def _take_wanted(self) -> tuple[set[str]]:
        wanted, self._wanted = self._wanted, set()
        return (wanted,)

    def _ask_all(self, companies: set[str]) -> dict[str, Exception]:
        """Asks about all at once; why a company's state could not be read is for those alone who asked about it."""
        failed: dict[str, Exception] = {}
        for company, state in self._control.in_force(companies).items():
            try:
                self._page(company, state)
            except Exception as error:  # noqa: BLE001 - raised by ``refresh``
                failed[company] = error
        return failed

    def _page(self, company: str, state: InForce) -> _Page:
        page = self._last.get(company)
        if page is None or page.state != state:
            precedence, memory = self._control.precedence(company), self._control.memory_policy(company)
            page = _Page(
                state,
                0 if precedence is None else precedence.version,
                _DEFAULT if precedence is None else self._parse(company, precedence),
                _DEFAULT_MEMORY if memory is None else MemoryPolicy.model_validate(memory.body),
                self._control.calibrations(company),
            )
            if len(self._last) >= _CACHED and company not in self._last:
                self._last.pop(next(iter(self._last)))
            self._last[company] = page
        return page

    def rules(self, slot: Slot) -> SlotRules:
        """What the policy in force says of a slot."""
        return resolve(self.current(slot.company)[1], slot)

    def rules_for(self, company: str) -> Callable[[Slot], SlotRules]:
        """What the policy in force says of any slot of a company; asked of the store once."""
        _, policy = self.current(company)
        return lambda slot: resolve(policy, slot)

    def rules_at(self, slot: Slot) -> Callable[[datetime], SlotRules]:
        """The slot's rules as the policy stood at a moment; before the first one was written, the default's."""
        versions = [
            (found.at, resolve(self._parse(slot.company, found), slot))
            for found in self._control.precedence_versions(slot.company)
        ]
        default = resolve(_DEFAULT, slot)

        def at(moment: datetime) -> SlotRules:
            return next((rules for written, rules in reversed(versions) if written <= moment), default)

        return at

    def _parse(self, company: str, found: Versioned) -> PrecedencePolicy:
        key = (company, found.version, found.at)
        if key not in self._parsed:
            if len(self._parsed) >= _CACHED:
                self._parsed.clear()
            self._parsed[key] = parse_policy(found.body)
        return self._parsed[key]
