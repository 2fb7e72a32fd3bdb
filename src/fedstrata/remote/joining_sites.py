"""Sites that come while a run goes on: they take part from the next round, where the method allows it.

A newcomer becomes the next client. That is possible where nothing was agreed on with the sites of the beginning, and no
part keeps notes client by client; everywhere else it takes part in the next run, and an event says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from fedstrata.config.experiment import Experiment, Privacy
from fedstrata.core.errors import FedstrataError
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Combiner, Selector
from fedstrata.methods.drivers.rounds import Rounds
from fedstrata.remote.introduction import common_classes
from fedstrata.remote.protocol import PendingError, SiteError
from fedstrata.remote.site_registry import SELDOM, SiteRegistry, ask_facts, note_differences


def closed_because(plan: Plan, experiment: Experiment) -> str | None:
    """Say why nobody can join a run; None: sites can."""
    if experiment.privacy != Privacy():
        return "privacy was agreed on with the sites that the run began with"
    if not isinstance(plan.driver, Rounds):
        return "the method plans its steps for the sites that it began with"
    for part, kind, stage in ((plan.selector, Selector, "selector"), (plan.combiner, Combiner, "combiner")):
        if type(part).init is not kind.init:
            return f"the {stage} keeps notes of every site that the run began with"
    return None


@dataclass
class JoiningSites:
    """Looks for sites that no client is yet, and lets them in; `closed` is why it does not."""

    registry: SiteRegistry
    closed: str | None
    folder: Path
    greeting: Callable[[], Mapping[str, Any]]  # what sites are told with every run, as it is now
    refused: set[str] = field(default_factory=set)  # who is not asked again in this run
    _later: dict[str, float] = field(default_factory=dict)  # when owners who have to approve it are asked again
    _told: set[tuple[str, str]] = field(default_factory=set)  # what was said of whom: once is enough

    def look(self, round: int) -> None:
        """Let in who is there and fits, before a round, counted from 0."""
        out = self.registry.facts.keys() | self.refused
        strangers = [name for name in self.registry.transport.reachable() if name not in out]
        if self.closed is not None:
            for name in strangers:
                self._note("site_waits", name, self.closed)
            return
        self.registry.transport.invite(strangers)
        there = set(self.registry.transport.names()) if strangers else set()
        for name in strangers:
            if name in there and monotonic() >= self._later.get(name, 0.0):
                self._admit(name, round)

    def _admit(self, name: str, round: int) -> None:
        registry = self.registry
        try:
            question = {**registry.question, **self.greeting()}
            facts, wrong = ask_facts(registry.transport, [name], question, registry.deadline)
            for error in wrong.values():
                raise error
            now = facts[name]
            if strange := [label for label in now.classes or () if label not in registry.classes]:
                raise SiteError(f"its data have labels that the run does not know: {strange[:5]}")
            common_classes(registry.facts | {name: now})
        except PendingError as error:
            self._later[name] = monotonic() + SELDOM
            return self._note("approval", name, str(error))
        except FedstrataError as error:
            self.refused.add(name)
            return self._note("site_refused", name, str(error))
        registry.facts[name] = now
        if wrong := registry.begin([name], registry.deadline):
            del registry.facts[name]
            self.refused.add(name)
            return self._note("site_refused", name, str(wrong[name]))
        registry.changed = True
        registry.write(self.folder)
        client = registry.names.index(name)
        registry.note("site_joined", site=name, client=client, round=round + 1, samples=now.samples)
        registry.note("sites", wall={"sites": registry.names})
        return note_differences(name, now, registry.note)

    def _note(self, kind: str, name: str, why: str) -> None:
        if (name, why) not in self._told:
            self._told.add((name, why))
            about = {"sites": [name]} if kind == "approval" else {"site": name}
            self.registry.note(kind, **about, why=why)
