"""A company's precedence policies as they were written over time, out of the control store.

What is in force is asked of the store for each request. What it last said is kept for two things: for the many
questions of one request, and for recalls while the store is away.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from muniment.actors.store.control_store import ControlStore
from muniment.actors.store.reach import Reach
from muniment.policies.errors import StoreUnavailable
from muniment.policies.model import Slot
from muniment.policies.precedence_policy import PrecedencePolicy, SlotRules, parse_policy, resolve

_DEFAULT = PrecedencePolicy()
_CACHED = 10_000


class PolicyBook:
    """Policies by version, and which one is in force."""

    def __init__(self, control: ControlStore) -> None:
        self._control = control
        self._parsed: dict[tuple[str, int], PrecedencePolicy] = {}
        self._last: dict[str, tuple[int, PrecedencePolicy]] = {}
        self._reach = Reach()

    def current(self, company: str) -> tuple[int, PrecedencePolicy]:
        """The version in force and the policy; 0 and the default one where nobody wrote any."""
        found = self._ask(company)
        if len(self._last) >= _CACHED and company not in self._last:
            self._last.pop(next(iter(self._last)))
        self._last[company] = found
        return found

    def known(self, company: str) -> tuple[int, PrecedencePolicy]:
        """What ``current`` said last; asked where it was never asked."""
        return self._last.get(company) or self.current(company)

    async def refresh(self, company: str) -> bool:
        """Has ``known`` say what is in force now. False: the store is away, and what was known goes on holding.

        Raises ``StoreUnavailable`` where nothing is known.
        """
        try:
            if self._control.local:
                self.current(company)
            else:
                await self._reach.ask(self.current, company)
        except StoreUnavailable:
            if company not in self._last:
                raise
            return False
        return True

    def _ask(self, company: str) -> tuple[int, PrecedencePolicy]:
        version = self._control.precedence_version(company)
        if version == 0:
            return 0, _DEFAULT
        known = self._parsed.get((company, version))
        if known is None:
            found = self._control.precedence(company)
            if found is None:
                return 0, _DEFAULT
            version, known = found.version, self._parse(company, found.version, found.body)
        return version, known

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
            (found.at, resolve(self._parse(slot.company, found.version, found.body), slot))
            for found in self._control.precedence_versions(slot.company)
        ]
        default = resolve(_DEFAULT, slot)

        def at(moment: datetime) -> SlotRules:
            return next((rules for written, rules in reversed(versions) if written <= moment), default)

        return at

    def _parse(self, company: str, version: int, body: object) -> PrecedencePolicy:
        key = (company, version)
        if key not in self._parsed:
            if len(self._parsed) >= _CACHED:
                self._parsed.clear()
            self._parsed[key] = parse_policy(body)
        return self._parsed[key]
