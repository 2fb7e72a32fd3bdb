"""Sites that come while a run goes on: they take part from the next round, where the method allows it.

A newcomer becomes the next client. That is possible where nothing was agreed on with the sites of the beginning, and no
part keeps notes client by client; everywhere else it takes part in the next run, and an event says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Privacy
from fedstrata.core.errors import FedstrataError
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Combiner, Selector
from fedstrata.methods.drivers.rounds import Rounds
from fedstrata.remote.protocol import PendingError, SiteError, build_request, to_json
from fedstrata.remote.server.federation import common_classes
from fedstrata.remote.server.proposal import SELDOM
from fedstrata.remote.server.site_registry import Said, SiteRegistry, ask_sites, note_differences, read_facts

# Seconds. A run waits for who is not yet in it before a round, so not for long, and not often for one that is silent.
ANSWER = 20.0  # in which newcomers say what they have
BEGIN = 60.0  # in which one that fits takes the run up
SILENT = 300.0  # until one that did not answer is asked again


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
        due = [name for name in strangers if name in there and monotonic() >= self._later.get(name, 0.0)]
        for name, told in self._ask(due).items():
            self._admit(name, told, round)

    def _ask(self, names: Sequence[str]) -> dict[str, Said]:
        """Ask newcomers what they have, all at once; one that does not answer is asked again later."""
        request = build_request("introduce", to_json({**self.registry.question, **self.greeting()}))
        seconds = self._within(ANSWER)
        said = ask_sites(self.registry.transport, dict.fromkeys(names, request), 1, seconds)
        for name in names:
            if name not in said:
                self._later[name] = monotonic() + SILENT
                self._note("warning", name, f"it did not answer in {seconds:g} seconds, and is asked again later")
        return {name: said[name] for name in names if name in said}

    def _within(self, seconds: float) -> float:
        return seconds if self.registry.deadline is None else min(seconds, self.registry.deadline)

    def _admit(self, name: str, told: Said, round: int) -> None:
        registry = self.registry
        try:
            if isinstance(told, FedstrataError):
                raise told
            now = read_facts(name, told[0])
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
        if wrong := registry.begin([name], self._within(BEGIN)):
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
            about: dict[str, Any] = {"sites": [name]} if kind == "approval" else {"site": name}
            about |= {"what": f"newcomer {name}"} if kind == "warning" else {}
            self.registry.note(kind, **about, why=why)
