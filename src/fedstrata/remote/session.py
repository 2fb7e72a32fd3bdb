"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.config.build import assemble
from fedstrata.config.experiment import Experiment
from fedstrata.core.client_info import Roster
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.plan import Plan
from fedstrata.data.devices import Devices
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy import FEWEST
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import Arranged, clustered, encoding_of, noise_of, shy
from fedstrata.remote.chain import Relay, unsealable
from fedstrata.remote.clock import Observed
from fedstrata.remote.credentials import Papers
from fedstrata.remote.engine import AtSites, Masks
from fedstrata.remote.evaluator import JudgeAtSites
from fedstrata.remote.introduction import Away, MaskedAway
from fedstrata.remote.protocol import asked, written
from fedstrata.remote.setup import clustered_at, masked_labels_at
from fedstrata.remote.site_registry import Company, heard, introduced, recorded, replies
from fedstrata.remote.site_server import COUNTED
from fedstrata.remote.transport import Transport
from fedstrata.runs.folder import Run
from fedstrata.runs.session import Watch
from fedstrata.runs.training import begin, resume

Log = Callable[..., None]
MASKED = "labels_masked"  # the event that keeps what the server learned of labels


@dataclass
class Elsewhere:
    """Where visits and evaluation happen: at sites that are in touch through a transport."""

    company: Company
    experiment: Experiment
    folder: Path
    papers: Papers | None = None
    resumed: bool = False
    no_stream: str | None = None  # why requests go by messages, where a stream was to carry them
    chained: bool = False  # whether models of a chain pass the server sealed
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # events of getting there

    # ---- before a run

    def federation(self, known: MaskedAway | None = None) -> Away:
        """Give what sites have, as far as the method needs to know; `known` is how labels were masked before."""
        company, federation = self.company, Away.of(self.company.facts, known)
        plan = assemble(self.experiment, federation)
        if not self.resumed:
            refuse(self.experiment, plan, federation)
        self._settle_question(plan, federation)
        if not self.resumed:
            federation = self._told(plan, federation)
        names = company.names if federation.masked is None else federation.masked.sites
        company.facts = dict(zip(names, federation.facts, strict=True))
        company.classes = federation.classes
        company.welcome = lambda name: self._welcome(name, federation)
        return federation

    def _settle_question(self, plan: Plan, federation: Away) -> None:
        """Say what sites are asked about their labels: before the run, and whenever their data changed."""
        company, privacy, needs = self.company, self.experiment.privacy, plan.needs & COUNTED
        if privacy.labels != "none":
            company.fixed = "labels were agreed on when the run began"
            return
        if privacy.clustering != "server" or privacy.histogram_epsilon is not None:
            company.fixed = "what it told of its labels holds for the whole run"
        if privacy.clustering != "server":
            needs -= {"counts"}
            if needs:
                raise RequestError(
                    f'privacy.clustering = "{privacy.clustering}" at sites: another part of the method asks them for '
                    f'their {" and ".join(sorted(needs))}, by name; use privacy.labels = "prf"'
                )
        if needs:
            epsilon = privacy.histogram_epsilon
            company.question = {"needs": sorted(needs), "classes": federation.classes, "epsilon": epsilon}

    def _told(self, plan: Plan, federation: Away) -> Away:
        """Ask sites for what the method needs of their labels."""
        company = self.company
        if self.experiment.privacy.labels != "none":
            known = self._mask_labels(plan)
            return Away.of({name: company.facts[name] for name in known.sites}, known)
        if "needs" not in company.question:
            return federation
        return Away.of(introduced(company.transport, company.names, company.question, company.deadline))

    def arrange(self, now: Arranged) -> None:
        """Let sites do their part of what comes before the first round."""
        privacy, federation = self.experiment.privacy, now.federation
        assert isinstance(federation, Away)
        now.notes += self.notes
        if federation.masked is not None:
            now.note(MASKED, mode=privacy.labels, **asdict(federation.masked))
        if privacy.histogram_epsilon is not None:
            noisy = NoisyHistograms(privacy.histogram_epsilon)
            now.clusters = noisy.describe()
            now.note("histograms_blurred", epsilon=noisy.spent())
        if privacy.clustering == "masked":
            assert isinstance(now.plan.select, Flips)
            papers, epsilon = self._keys('privacy.clustering = "masked"'), privacy.histogram_epsilon
            places = {int(i): {**self._place(i, federation), "epsilon": epsilon} for i in now.roster.holders}
            classes = len(federation.classes)
            clustered(now, clustered_at(self._heard, papers, self.company.names, places, now.plan.select, classes))

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
        company, masks, noise = self.company, self._masks(), noise_of(self.experiment.privacy)
        relay = self._relay(plan, note)
        self.chained = relay is not None
        company.note = note
        company.write(self.folder)
        for name, error in company.begin(company.names, company.deadline).items():
            if not self.resumed:
                raise RequestError(f"site {name}: {error}")
            note("site_refused", site=name, client=company.names.index(name), why=str(error))
        note("sites", wall={"sites": company.names})
        if self.no_stream is not None:
            note("fallback", what="stream", used="messages, which take seconds each", why=self.no_stream)
        return AtSites(company, plan, note, masks, noise, relay)

    def _relay(self, plan: Plan, note: Log) -> Relay | None:
        """Let models of a chain pass the server sealed, where that can be."""
        if not plan.driver.chained:
            return None
        why = "there are no keys; see fedstrata deploy keys" if self.papers is None else unsealable(plan)
        if self.papers is None or why is not None:
            note("fallback", what="models from site to site", used="a server that can read them", why=why)
            return None
        names = self.company.names
        return Relay(names, self.papers.roll(names), self.company.run, plan, note)

    def judge(self, classes: int) -> JudgeAtSites:
        """Give what scores models."""
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        names, papers, roll = self.company.names, self.papers, None
        if papers is not None and len(names) >= FEWEST and papers.sites.keys() >= set(names):
            roll = papers.roll(names)
        return JudgeAtSites(self.company, classes, evaluate.every, voting, shy(self.experiment.privacy), roll)

    # ---- protocols

    def _mask_labels(self, plan: Plan) -> MaskedAway:
        privacy = self.experiment.privacy
        papers = self._keys(f'privacy.labels = "{privacy.labels}"')
        counts = "counts" in plan.needs and privacy.clustering == "server"
        rng = plan.streams("placeholders")
        return masked_labels_at(self._heard, papers, self.company.names, self.company.run, counts, rng, self._noted)

    def _masks(self) -> Masks | None:
        encoding = encoding_of(self.experiment.privacy)
        if encoding is None:
            return None
        return Masks(self._keys('privacy.aggregate = "masked"'), self.company.names, encoding, self.company.run)

    def _keys(self, wish: str) -> Papers:
        if self.papers is None:
            raise RequestError(f"{wish} at sites needs keys; see fedstrata deploy keys")
        return self.papers

    def _place(self, client: int, federation: Away) -> dict[str, Any]:
        """Say what a site must know to read its own data as the run does."""
        masked = federation.masked
        labels = {"classes": federation.classes} if masked is None else {"sealed": masked.sealed[client]}
        return {"run": self.company.run, "client": int(client), "sites": self.company.names, **labels}

    def _welcome(self, name: str, federation: Away) -> bytes:
        """Give what tells a site of the run."""
        place = self._place(self.company.names.index(name), federation)
        about = {**place, "speed": self.company.facts[name].speed, "chained": self.chained}
        return asked("begin", written(about), written(self.experiment.dump()))

    def _heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask before the run, and give the replies that are ones; every site without one is an event."""
        company = self.company

        def refuse(name: str, error: FedstrataError) -> None:
            client = company.names.index(name)
            self._noted("site_refused", round=0, step=0, site=name, client=client, why=str(error))

        return replies(requests, heard(company.transport, requests, fields, company.deadline), refuse)

    def _noted(self, kind: str, **fields: Any) -> None:
        self.notes.append((kind, fields))


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
    no_stream: str | None = None,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one at the sites that it began with."""
    path, described = Path(out), Experiment.of(Path(out) / "experiment.toml" if resumed else experiment)
    possible_at_sites(described)
    deadline = deadline or described.system.deadline or None
    before = recorded(path) if resumed else None
    names = sorted(transport.names()) if before is None else list(before[1])
    if len(names) < sites:
        raise RequestError(f"{len(names)} sites are there, and {sites} are wanted: {', '.join(names) or 'none'}")
    question = {"named": described.privacy.labels == "none"}
    run, facts = before or (secrets.token_hex(16), introduced(transport, names, question, deadline))
    company = Company(transport, run, facts, question, deadline, patience)
    at = Elsewhere(company, described, path, papers, before is not None, no_stream)
    federation = at.federation(None if before is None else _masked_before(Run.open(path)))
    if len(company.names) < sites:
        there = ", ".join(company.names)
        raise RequestError(f"{len(company.names)} sites agreed on labels, and {sites} are wanted: {there}")
    if resumed:
        return resume(path, federation=federation, watch=watch, elsewhere=at)
    return begin(described, federation, None, path, watch, at)


def possible_at_sites(experiment: Experiment) -> None:
    """Refuse what sites cannot do, or what would be passed over in silence."""
    privacy, data = experiment.privacy, experiment.data
    reasons = [
        (
            privacy.labels == "ckks-paper",
            'privacy.labels = "ckks-paper"',
            "its clients share one secret key, which no server can bring them safely",
            'use privacy.labels = "prf"',
        ),
        (
            privacy.clustering == "enclave",
            'privacy.clustering = "enclave"',
            "every site would have to know, from somebody other than the server, which enclave it may trust",
            'use privacy.clustering = "masked"',
        ),
        (
            bool(data.proxy),
            f"data.proxy = {data.proxy}",
            "samples stay at the sites, and the server holds none",
            "leave it out",
        ),
        (
            data.drift is not None or data.stream is not None,
            "data.drift or data.stream",
            "what a site has, and when, is its own",
            "leave them out",
        ),
    ]
    for holds, key, why, instead in reasons:
        if holds:
            raise RequestError(f"{key} is not possible at real sites: {why}; {instead}")


def _masked_before(run: Run) -> MaskedAway | None:
    """Give what the server learned when labels were masked: it stands in the run's events."""
    for event in run.events():
        if event["event"] == MASKED:
            return MaskedAway.read(event)
    return None
