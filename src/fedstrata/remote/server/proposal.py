"""A run is proposed to the sites that are there: who takes part, who is left out, and whose owner is waited for.

One site that cannot take part does not stop the others: it is left out with an event as long as as many are left as
were asked for (`--sites`). Where too few are, the run ends, and says which site and why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.events import Log
from fedstrata.remote.introduction import Introduction
from fedstrata.remote.protocol import PendingError
from fedstrata.remote.server.federation import common_classes
from fedstrata.remote.server.site_registry import ask_facts, note_differences, of_itself
from fedstrata.remote.transport import Transport

OFTEN, SELDOM = 0.2, 10.0  # seconds between two looks for the word of owners: more and more seldom
Errors = dict[str, FedstrataError]  # by site


@dataclass(frozen=True)
class RunProposal:
    """A run, as sites are asked whether they take part."""

    transport: Transport
    sites: int  # that are wanted at least
    question: Mapping[str, Any]
    deadline: float | None  # seconds for an exchange
    patience: float  # seconds in which owners must have approved it
    note: Log
    heed: Callable[[], None] = lambda: None  # stops here, if an operator said so
    miss: Callable[[Collection[str]], None] = lambda _: None  # told whose owners are waited for

    def make(self) -> dict[str, Introduction]:
        """Propose it to all sites that are there; give those who take part, with what they said of their data."""
        names = sorted(self.transport.names())
        if len(names) < self.sites:
            there = ", ".join(names) or "none"
            raise RequestError(f"{len(names)} sites are there, and {self.sites} are wanted: {there}")
        try:
            facts, refused = self._agreed(names)
        finally:
            self.miss(())
        refused |= (odd := odd_ones(facts, self.sites))
        for name, error in refused.items():
            self.note("site_refused", round=0, step=0, site=name, why=str(error))
        facts = {name: facts[name] for name in names if name in facts and name not in odd}
        for name, told in facts.items():
            note_differences(name, told, self.note)
        return facts

    def _agreed(self, names: Collection[str]) -> tuple[dict[str, Introduction], Errors]:
        """Ask until everybody has said yes or no."""
        facts, refused = dict[str, Introduction](), Errors()
        until, pause, before = monotonic() + self.patience, OFTEN, set[str]()
        while asked := [name for name in names if name not in facts and name not in refused]:
            said, wrong = ask_facts(self.transport, asked, self.question, self.deadline)
            facts |= said
            pending = {name: error for name, error in wrong.items() if isinstance(error, PendingError)}
            refused |= {name: error for name, error in wrong.items() if name not in pending}
            if (left := len(names) - len(refused)) < self.sites:
                raise RequestError(f"{self.sites} sites are wanted, and {left} are left; {_whys(refused)}")
            if not pending:
                break
            if pending.keys() != before:
                whys = "; ".join(f"{name}: {error}" for name, error in sorted(pending.items()))
                self.note("approval", sites=sorted(pending), why=whys)
                before = {*pending}
            if monotonic() > until:
                raise RequestError(f"not approved after {self.patience:g} seconds (--wait): {_whys(pending)}")
            self._rest(pending, pause)
            pause = min(pause * 1.5, SELDOM)
        return facts, refused

    def _rest(self, pending: Collection[str], seconds: float) -> None:
        """Wait a little before owners are asked again; operators are heard meanwhile."""
        self.miss({*pending})
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            self.heed()
            sleep(min(left, OFTEN))


def odd_ones(facts: Mapping[str, Introduction], least: int) -> Errors:
    """Return the sites whose data do not fit together with those of most, and why, where enough others are left.

    Nobody is odd where no kind of data has more sites than every other: then nobody knows who is wrong.
    """
    if _misfit(facts) is None:
        return {}
    kinds = sorted(_kinds(facts), key=len, reverse=True)
    most = {name: facts[name] for name in facts if name in kinds[0]}
    if len(kinds) < 2 or len(most) == len(kinds[1]) or len(most) < least or _misfit(most) is not None:
        return {}  # whoever puts all of them together says what is wrong
    first = next(iter(most))
    odd = {name: _misfit({first: facts[first], name: facts[name]}) for name in facts if name not in most}
    return {name: of_itself(name, error) for name, error in odd.items() if error is not None}


def _kinds(facts: Mapping[str, Introduction]) -> list[set[str]]:
    """Put sites together whose data fit those of the first among them."""
    left, kinds = dict(facts), list[set[str]]()
    while left:
        first = next(iter(left))
        kinds.append({name for name in left if _misfit({first: facts[first], name: facts[name]}) is None})
        left = {name: told for name, told in left.items() if name not in kinds[-1]}
    return kinds


def _misfit(facts: Mapping[str, Introduction]) -> RequestError | None:
    """Say why sites' data do not fit together; None: they do."""
    try:
        common_classes(facts)
    except RequestError as error:
        return error
    return None


def _whys(errors: Mapping[str, FedstrataError]) -> str:
    return "; ".join(f"site {name}: {error}" for name, error in sorted(errors.items()))
