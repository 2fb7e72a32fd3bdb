"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.assemble import assemble
from fedstrata.devices import Devices
from fedstrata.engines.sites.company import Company, introduced, recorded
from fedstrata.engines.sites.engine import AtSites, Masks
from fedstrata.engines.sites.facts import Away
from fedstrata.engines.sites.host import COUNTED
from fedstrata.engines.sites.judging import JudgeAtSites
from fedstrata.engines.sites.observed import Observed
from fedstrata.engines.sites.papers import Papers
from fedstrata.engines.sites.telling import asked, written
from fedstrata.engines.sites.transport import Transport
from fedstrata.errors import RequestError
from fedstrata.experiment import Experiment
from fedstrata.plan import Plan
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.roster import Roster
from fedstrata.runs import Run
from fedstrata.training import begin, resume
from fedstrata.work import Watch

Log = Callable[..., None]


@dataclass
class Elsewhere:
    """Where visits and evaluation happen: at sites that are in touch through a transport."""

    company: Company
    experiment: Experiment
    folder: Path
    papers: Papers | None = None
    resumed: bool = False

    def observed(self, plan: Plan) -> Plan:
        """Give the plan with time as the clock says it."""
        system = plan.system
        return replace(plan, system=Observed(**vars(system))) if isinstance(system, Devices) else plan

    def attended(self, roster: Roster, plan: Plan, federation: Away) -> Roster:
        """Give what is known of sites with who is there, round by round; their data may change on the way."""
        company, names = self.company, self.company.names

        def now(round: int) -> Roster:
            there = company.attending(plan.fewest)
            facts = tuple(company.facts.values())
            known = replace(federation, facts=facts).roster(plan.needs, plan.streams) if company.changed else roster
            return replace(known, holders=np.array([i for i in known.holders if names[i] in there], dtype=np.int64))

        return replace(roster, later=now)

    def engine(self, plan: Plan, federation: Away, note: Log) -> AtSites:
        """Tell every site to take part, and give the engine."""
        company, masks = self.company, self._masks()
        company.note = note
        company.write(self.folder)
        for name, error in company.begin(company.names, company.deadline).items():
            if not self.resumed:
                raise RequestError(f"site {name}: {error}")
            note("site_refused", site=name, client=company.names.index(name), why=str(error))
        note("sites", wall={"sites": company.names})
        return AtSites(company, plan, note, masks)

    def _masks(self) -> Masks | None:
        privacy = self.experiment.privacy
        if privacy.aggregate == "open":
            return None
        if self.papers is None:
            raise RequestError('privacy.aggregate = "masked" at sites needs keys; see fedstrata deploy keys')
        encoding = Encoding(privacy.encoding.bits, privacy.encoding.fraction)
        return Masks(self.papers, self.company.names, encoding, self.company.run)

    def judge(self, classes: int) -> JudgeAtSites:
        """Give what scores models."""
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        return JudgeAtSites(self.company, classes, evaluate.every, voting)


def run_at_sites(
    transport: Transport,
    experiment: Mapping[str, Any] | str | Path | Experiment,
    out: str | Path,
    sites: int,
    resumed: bool = False,
    deadline: float | None = None,
    watch: Watch | None = None,
    papers: Papers | None = None,
    patience: float = 600.0,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one at the sites that it began with."""
    path, described = Path(out), Experiment.of(Path(out) / "experiment.toml" if resumed else experiment)
    for key, asked_for in _not_yet(described).items():
        if asked_for:
            raise RequestError(f"{key} is not carried to real sites yet; leave it out")
    deadline = deadline or described.system.deadline or None
    before = recorded(path) if resumed else None
    names = sorted(transport.names()) if before is None else list(before[1])
    if len(names) < sites:
        raise RequestError(f"{len(names)} sites are there, and {sites} are wanted: {', '.join(names) or 'none'}")
    run, facts = before or (secrets.token_hex(16), introduced(transport, names, frozenset(), deadline))
    federation = Away.of(facts)
    needs = assemble(described, federation).needs & COUNTED
    if needs and before is None:
        federation = Away.of(introduced(transport, names, needs, deadline))
    facts = dict(zip(names, federation.facts, strict=True))
    company = Company(transport, run, facts, federation.classes, needs, deadline, patience)
    company.welcome = lambda name: _welcome(company, described, name)
    at = Elsewhere(company, described, path, papers, before is not None)
    if resumed:
        return resume(path, federation=federation, watch=watch, elsewhere=at)
    return begin(described, federation, None, path, watch, at)


def _welcome(company: Company, experiment: Experiment, name: str) -> bytes:
    """Give what tells a site of the run."""
    about = {
        "run": company.run,
        "client": company.names.index(name),
        "sites": company.names,
        "classes": company.classes,
        "speed": company.facts[name].speed,
    }
    return asked("begin", written(about), written(experiment.dump()))


def _not_yet(experiment: Experiment) -> dict[str, bool]:
    """Say which wishes would not be fulfilled."""
    privacy = experiment.privacy
    return {
        f'privacy.labels = "{privacy.labels}"': privacy.labels != "none",
        f'privacy.clustering = "{privacy.clustering}"': privacy.clustering != "server",
        "privacy.histogram_epsilon": privacy.histogram_epsilon is not None,
        "privacy.dp": privacy.dp is not None,
        "masked sums of batch norm": privacy.aggregate == "masked" and experiment.method.driver["kind"] == "sync",
    }
