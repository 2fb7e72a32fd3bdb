"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedstrata import __version__
from fedstrata.config.build import build_plan
from fedstrata.config.experiment import Experiment
from fedstrata.config.travel import to_sites
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.engine import Engine
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log, describe_fault
from fedstrata.core.plan import Plan
from fedstrata.data.devices import Devices
from fedstrata.data.feature_checks import may_number_rows
from fedstrata.data.federation import Federation
from fedstrata.data.formats.tabular import some
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy import FEWEST
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import (
    Setup,
    bounds_of,
    clip_of,
    encoding_of,
    hides_label_counts,
    noise_of,
    select_inside,
    take_clusters,
)
from fedstrata.remote.credentials import Credentials, keys_for
from fedstrata.remote.protocol import build_request, to_json
from fedstrata.remote.protocol_version import PROTOCOL
from fedstrata.remote.roll import Roll
from fedstrata.remote.server.away_once import once_while_away
from fedstrata.remote.server.chain import SealedChain, unsealable
from fedstrata.remote.server.checks import longest_reply
from fedstrata.remote.server.clock import Observed
from fedstrata.remote.server.conditions import doubting_sites, possible_at_sites
from fedstrata.remote.server.enclave import start_at_sites
from fedstrata.remote.server.engine import AtSites, Masks
from fedstrata.remote.server.evaluator import SiteEvaluator
from fedstrata.remote.server.features import AGREED, agree_on_features, as_agreed, event_of
from fedstrata.remote.server.federation import MaskedRemoteFederation, RemoteFederation, labels_of_one
from fedstrata.remote.server.few_sites import settle_sites_per_round
from fedstrata.remote.server.first_questions import FirstQuestions, Notes, say_too_few
from fedstrata.remote.server.joining_sites import JoiningSites, closed_because
from fedstrata.remote.server.kept_sums import KeptSums
from fedstrata.remote.server.labels_asked import ask_labels, settle_question
from fedstrata.remote.server.orders import RunControl
from fedstrata.remote.server.proposal import RunProposal
from fedstrata.remote.server.setup import cluster_at
from fedstrata.remote.server.site_registry import SiteNames, SiteRegistry, ask_facts, read_keys, read_sites
from fedstrata.remote.transport import Transport
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import Watch
from fedstrata.runs.stage_choices import choose_stages
from fedstrata.runs.training import begin, resume
from fedstrata.server.bounds import bound_reports

DEADLINE = 3600.0  # seconds for an exchange where nobody says how many: a silent site must not stop a run
MASKED = "labels_masked"  # the event that keeps what the server learned of labels


@dataclass
class SiteClients:
    """Where client updates and evaluation happen: at sites that are in touch through a transport."""

    site_registry: SiteRegistry
    experiment: Experiment
    folder: Path
    credentials: Credentials | None = None
    resumed: bool = False
    no_stream: str | None = None  # why requests go by messages, where a stream was to carry them
    chained: bool = False  # whether models of a chain pass the server sealed
    notes: Notes = field(default_factory=list)  # events of getting there
    control: RunControl | None = None  # what operators say
    wanted: int = 0  # how many sites a new run must have
    absent: frozenset[str] = frozenset()  # who could not come when it began, and may join
    begun: bool = False  # whether sites were told to begin: the plan is looked at before that, too
    known: RemoteFederation | None = None  # what sites said of themselves

    @cached_property
    def _asking(self) -> FirstQuestions:
        return FirstQuestions(self.site_registry, self.notes)

    @cached_property
    def _kept_sums(self) -> KeptSums:
        return KeptSums(Run(self.folder).checkpoints.path)

    # ---- before a run

    def federation(self, known: MaskedRemoteFederation | None = None) -> RemoteFederation:
        """Return what sites have, as far as the method needs to know; `known` is how labels were masked before."""
        site_registry, federation = self.site_registry, RemoteFederation.of(self.site_registry.facts, known)
        first, _ = choose_stages(self.experiment, federation)  # as it would be chosen before sites have told anything
        plan = build_plan(first, federation)
        if not self.resumed:
            refuse(first, plan, federation)
        settle_question(site_registry, self.experiment.privacy, plan, federation)
        if not self.resumed:
            federation = ask_labels(self._asking, self.experiment, self.credentials, plan, federation)
        self.experiment, _ = choose_stages(self.experiment, federation)
        names = site_registry.names if federation.masked is None else federation.masked.sites
        site_registry.facts = dict(zip(names, federation.facts, strict=True))
        site_registry.classes = federation.classes
        self._warn_of_labels()
        self._warn_of_columns(federation)
        federation = self._with_features(federation)
        site_registry.welcome = lambda name: self._welcome(name, federation)
        self.known = federation
        return federation

    def _warn_of_labels(self) -> None:
        """Note labels of one site alone that look like others' by another name; whether they are, only sites know."""
        for name, labels in ({} if self.resumed else labels_of_one(self.site_registry.facts)).items():
            why = (
                f"no other site has {some([str(label) for label in labels], 'label')}; what is the same needs one name"
            )
            self._asking.note("warning", what="labels", site=name, why=f"site {name}: {why}")

    def _warn_of_columns(self, federation: RemoteFederation) -> None:
        """Note columns that are called as numbers of rows are: whether they are, only sites see."""
        if names := [] if self.resumed else may_number_rows(federation.preprocessing.columns):
            drop = json.dumps(names, ensure_ascii=False)
            why = f"rows or patients are numbered by such names; if so, leave out at every site: data.drop = {drop}"
            self._asking.note("warning", what=some(names, "column"), why=why)

    def _with_features(self, federation: RemoteFederation) -> RemoteFederation:
        """Let sites agree on how their features are scaled, or take what was agreed on when the run began."""
        if self.resumed:
            return as_agreed(federation, Run.open(self.folder).events())
        masked = self.experiment.privacy.aggregate == "masked"
        keys = keys_for(self.credentials, 'privacy.aggregate = "masked"') if masked else None
        federation = agree_on_features(
            federation, self._asking.everybody, keys, self.site_registry.names, self._asking.note
        )
        if (event := event_of(federation, masked)) is not None:
            self._asking.note(AGREED, **event)
        return federation

    def set_up(self, setup: Setup) -> None:
        """Let sites do their part of what comes before the first round."""
        privacy, federation = self.experiment.privacy, cast(RemoteFederation, setup.federation)
        setup.notes += self.notes
        if federation.masked is not None:
            setup.note(MASKED, mode=privacy.labels, **asdict(federation.masked))
        if privacy.histogram_epsilon is not None:
            setup.blurred(NoisyHistograms(privacy.histogram_epsilon))
        if privacy.clustering == "server":
            return
        flips, names, classes = setup.plan.selector, self.site_registry.names, len(federation.classes)
        assert isinstance(flips, Flips)
        keys = keys_for(self.credentials, f'privacy.clustering = "{privacy.clustering}"')
        own = {"epsilon": privacy.histogram_epsilon}
        places = {int(i): {**self._place(i, federation), **own} for i in setup.client_info.holders}
        if privacy.clustering == "masked":
            take_clusters(setup, cluster_at(self._asking.heard, keys, names, places, flips, classes))
            return
        plan, enclave = setup.plan, privacy.enclave
        terms = Terms(len(names), classes, plan.rounds, plan.streams.seed, flips, enclave.noise)
        if self.resumed:  # sites that were restarted meanwhile do not know the run
            registry = self.site_registry
            _, wrong = ask_facts(registry.transport, names, registry.question, registry.deadline)
            for name, error in wrong.items():
                raise RequestError(f"site {name}: {error}")
        select_inside(setup, start_at_sites(self._asking.all_heard, keys, names, places, terms, enclave, setup.note))

    def with_real_clock(self, plan: Plan) -> Plan:
        """Return the plan with time as the clock says it."""
        system = plan.system
        return replace(plan, system=Observed(**vars(system))) if isinstance(system, Devices) else plan

    def with_attendance(self, client_info: ClientInfo, plan: Plan) -> ClientInfo:
        """Return what is known of sites with who is there, round by round; their data may change on the way."""
        site_registry, names, federation = self.site_registry, self.site_registry.names, self.known
        assert federation is not None
        refused = {str(fields["site"]) for kind, fields in self.notes if kind == "site_refused"} - self.absent
        closed = closed_because(plan, self.experiment)
        newcomers = JoiningSites(site_registry, closed, self.folder, self._greeting, refused)

        def heed() -> None:
            if self.begun and self.control is not None:
                self.control.heed(site_registry.note)

        def now(round: int) -> ClientInfo:
            nonlocal names
            heed()
            if self.begun:
                newcomers.look(round)
            names = site_registry.names
            attending = site_registry.attending(plan.fewest, heed)
            there = {*self._kept_sums.attendance(round, [i for i, name in enumerate(names) if name in attending])}
            facts = tuple(site_registry.facts.values())
            known = (
                replace(federation, facts=facts, names=tuple(names)).client_info(plan.needs, plan.streams)
                if site_registry.changed
                else client_info
            )
            return replace(known, holders=np.array([i for i in known.holders if i in there], dtype=np.int64))

        return replace(client_info, later=now)

    def without_repeats(self, log: Log) -> Log:
        """Return a log that says once that a site which is away gives no answer."""
        return once_while_away(self.site_registry, log)

    def start_engine(self, plan: Plan, log: Log) -> Engine:
        """Tell every site to take part, and give the engine."""
        site_registry, masks, noise = self.site_registry, self._masks(), noise_of(self.experiment.privacy)
        relay = self._relay(plan, log)
        self.chained = relay is not None
        site_registry.note = log
        site_registry.transport.longest = longest_reply(plan)
        site_registry.write(self.folder)
        site_registry.out.clear()  # who is out was looked at before there was a log to note it in
        site_registry.leave_out(plan.fewest)
        there = [name for name in site_registry.names if name not in site_registry.out]
        wrong = site_registry.begin(there, site_registry.deadline)
        enough = len(there) - len(wrong) >= self.wanted
        for name, error in wrong.items():
            if not (self.resumed or enough):
                raise RequestError(f"site {name}: {error}")
            log("site_refused", site=name, client=site_registry.names.index(name), why=str(error))
        log("sites", wall={"sites": site_registry.names})
        self.begun = True
        if self.no_stream is not None:
            log("fallback", what="stream", used="messages, which take seconds each", why=self.no_stream)
        clip = clip_of(self.experiment, plan)
        engine = AtSites(site_registry, plan, log, masks, noise, relay, clip, self._kept_sums)
        return bound_reports(engine, bounds_of(self.experiment, plan), log, SiteNames(site_registry))

    def _relay(self, plan: Plan, note: Log) -> SealedChain | None:
        """Let models of a chain pass the server sealed, where that can be."""
        if not plan.driver.chained:
            return None
        why = "there are no keys; see fedstrata deploy keys" if self.credentials is None else unsealable(plan)
        if self.credentials is None or why is not None:
            note("fallback", what="models from site to site", used="a server that can read them", why=why)
            return None
        names = self.site_registry.names
        return SealedChain(names, self.credentials.key_directory(names), self.site_registry.run, plan, note)

    def make_evaluator(self, classes: int) -> SiteEvaluator:
        """Return what scores models."""
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        names, credentials, key_directory = self.site_registry.names, self.credentials, None
        if credentials is not None and len(names) >= FEWEST and credentials.sites.keys() >= set(names):
            key_directory = credentials.key_directory(names)
        return SiteEvaluator(
            self.site_registry,
            classes,
            evaluate.every,
            voting,
            hides_label_counts(self.experiment.privacy),
            key_directory,
        )

    def label_directory(self) -> dict[str, Any]:
        """Return names of placeholders as sites sealed them for each other, and each site's own map with the key."""
        masked = None if self.known is None else self.known.masked
        assert masked is not None
        sealed = dict(zip(masked.sites, masked.sealed, strict=True))
        return {"run": self.site_registry.run, "sites": sealed, "names": list(masked.names)}

    def _masks(self) -> Masks | None:
        encoding = encoding_of(self.experiment.privacy)
        if encoding is None:
            return None
        keys, registry = keys_for(self.credentials, 'privacy.aggregate = "masked"'), self.site_registry
        return Masks(keys, registry.names, encoding, registry.run)

    def _place(self, client: int, federation: RemoteFederation) -> dict[str, Any]:
        """Say what a site must know to read its own data as the run does."""
        masked = federation.masked
        labels = {"classes": federation.classes} if masked is None else {"sealed": masked.sealed[client]}
        return {"run": self.site_registry.run, "client": int(client), "sites": self.site_registry.names, **labels}

    def _welcome(self, name: str, federation: RemoteFederation) -> bytes:
        """Return what tells a site of the run."""
        place = self._place(self.site_registry.names.index(name), federation)
        about = {**place, "speed": self.site_registry.facts[name].speed, "chained": self.chained}
        about |= {"preprocessing": federation.preprocessing.to_json(), **self._greeting()}
        if federation.masked is not None and not self.resumed:
            about["names"] = federation.masked.names  # only sites can see that two of them are one label
        return build_request("begin", to_json(about), to_json(to_sites(self.experiment)))

    def _greeting(self) -> dict[str, Any]:
        """Say what a site is told with every run, with the roll that holds now."""
        return greeting(self._roll())

    def _roll(self) -> Roll | None:
        """Return the roll that holds now; None without keys."""
        now = None if self.control is None else self.control.roll()
        return None if self.credentials is None else now or self.credentials.roll

    def shut_out(self) -> dict[str, str]:
        """Say whose keys hold no more with which sites agreed on something for the whole run: it ends with them."""
        privacy = self.experiment.privacy
        agreed = {
            "sums are masked": privacy.aggregate == "masked",
            "labels were masked": privacy.labels != "none",
            "models are sealed": self.chained,
        }
        what = next((what for what, holds in agreed.items() if holds), None)
        if what is None or (roll := self._roll()) is None:
            return {}
        changed = {
            name: "renewed" if name in roll.sites else "revoked"
            for name, key in self.site_registry.keys.items()
            if name in self.site_registry.facts and roll.sites.get(name, b"").hex() != key
        }
        return {name: f"its key was {how}, and {what} with the one that it began with" for name, how in changed.items()}


def run_at_sites(
    transport: Transport,
    experiment: Mapping[str, Any] | str | Path | Experiment,
    out: str | Path,
    sites: int,
    resumed: bool = False,
    deadline: float | None = None,
    watch: Watch | None = None,
    credentials: Credentials | None = None,
    patience: float = 600.0,
    no_stream: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    control: RunControl | None = None,
    named: Callable[[str], None] = lambda _: None,
    miss: Callable[[Collection[str]], None] = lambda _: None,
    absent: Mapping[str, str] | None = None,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one at the sites that it began with.

    `say` is told what happens before there is a run folder for events: who refuses, and whose owner is waited for;
    `named`, by which id sites know the run; `control` is what operators say to it before each of its rounds, and while
    it waits for sites; `miss` is told for which it does. `absent` are sites that said why they cannot come: they may
    join when they can.
    """
    path, asked = Path(out), Path(out) / "experiment.toml" if resumed else experiment
    described = asked if isinstance(asked, Experiment) else Experiment.of(asked)
    if not resumed:
        described = settle_sites_per_round(described, len(transport.names()))
    possible_at_sites(described)
    described = doubting_sites(described)
    deadline = deadline or described.system.deadline or DEADLINE
    before = read_sites(path) if resumed else None
    notes: Notes = []

    def note(kind: str, **fields: Any) -> None:
        notes.append((kind, fields))
        say(describe_fault({"event": kind, **fields}).why)

    run = before[0] if before else secrets.token_hex(16)
    named(run)
    question = {
        "run": run,
        "experiment": to_sites(described),
        **greeting(None if credentials is None else credentials.roll),
    }
    heed = (lambda: None) if control is None else control.heed_unbegun
    proposal = RunProposal(transport, sites, question, deadline, patience, note, heed, miss)
    facts = proposal.make() if before is None else before[1]
    absent = {name: why for name, why in (absent or {}).items() if name not in facts}
    for name, why in absent.items():
        note("site_refused", round=0, step=0, site=name, why=why)
    if len(facts) < sites:
        raise RequestError(f"{len(facts)} sites are there, and {sites} are wanted: {', '.join(facts) or 'none'}")
    roll = {} if credentials is None else {name: key.hex() for name, key in credentials.sites.items()}
    began = roll if before is None else roll | read_keys(path)
    site_registry = SiteRegistry(transport, run, facts, question, deadline, patience, miss=miss, keys=began)
    at = SiteClients(
        site_registry,
        described,
        path,
        credentials,
        before is not None,
        no_stream,
        notes=notes,
        control=control,
        wanted=sites,
        absent=frozenset(absent),
    )
    site_registry.shut_out = at.shut_out
    federation = at.federation(None if before is None else _masked_before(Run.open(path)))
    if len(site_registry.names) < sites:
        raise RequestError(say_too_few(len(site_registry.names), sites, notes))
    if resumed:
        return resume(path, federation=cast(Federation, federation), watch=watch, progress=False, remote=at)
    return begin(at.experiment, cast(Federation, federation), None, path, watch, at)


def greeting(roll: Roll | None) -> dict[str, Any]:
    """Say what a site is told with every run: which fedstrata asks, and the newest roll, where there are keys."""
    said = {"protocol": PROTOCOL, "version": __version__}
    return said if roll is None or not roll.serial else {**said, "roll": roll.text}


def _masked_before(run: Run) -> MaskedRemoteFederation | None:
    """Return what the server learned when labels were masked: it stands in the run's events."""
    for event in run.events():
        if event["event"] == MASKED:
            return MaskedRemoteFederation.read(event)
    return None
