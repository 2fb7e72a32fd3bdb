"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedstrata import __version__
from fedstrata.config.build import build_plan
from fedstrata.config.experiment import Experiment, Trust
from fedstrata.config.travel import to_sites
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.engine import Engine
from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.events import describe_fault
from fedstrata.core.plan import Plan
from fedstrata.data.devices import Devices
from fedstrata.data.federation import Federation
from fedstrata.methods.selectors.flips import Flips
from fedstrata.privacy import FEWEST
from fedstrata.privacy.enclave.launch import Setting
from fedstrata.privacy.enclave.policy import Terms
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.labels.kept import kept_beside
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import (
    Setup,
    bounds_of,
    clip_of,
    clustered,
    encoding_of,
    hides_label_counts,
    noise_of,
    select_inside,
    tells_counts,
)
from fedstrata.remote.chain import SealedChain, unsealable
from fedstrata.remote.checks import longest_reply
from fedstrata.remote.clock import Observed
from fedstrata.remote.counts_asked import COUNTED
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.enclave import start_at_sites
from fedstrata.remote.engine import AtSites, Masks
from fedstrata.remote.evaluator import SiteEvaluator
from fedstrata.remote.features import AGREED, agree_on_features, as_agreed, event_of
from fedstrata.remote.few_sites import settle_sites_per_round
from fedstrata.remote.introduction import MaskedRemoteFederation, RemoteFederation
from fedstrata.remote.joining_sites import JoiningSites, closed_because
from fedstrata.remote.kept_sums import KeptSums
from fedstrata.remote.orders import RunControl
from fedstrata.remote.protocol import PolicyError, build_request, to_json, within
from fedstrata.remote.protocol_version import PROTOCOL
from fedstrata.remote.roll import Roll
from fedstrata.remote.setup import clustered_at, masked_labels_at, renumbered_at
from fedstrata.remote.site_registry import (
    SiteNames,
    SiteRegistry,
    ask_facts,
    by_client,
    heard,
    proposed,
    recorded,
    replies,
)
from fedstrata.remote.transport import Transport
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import Watch
from fedstrata.runs.settle import settle
from fedstrata.runs.training import begin, resume
from fedstrata.server.bounds import bound_reports

Log = Callable[..., None]
Refuse = Callable[[str, FedstrataError], None]
DEADLINE = 3600.0  # seconds for an exchange where nobody says how many: a silent site must not stop a run
MASKED = "labels_masked"  # the event that keeps what the server learned of labels
LENGTH = 10.0  # to which sites shorten their update under masks, unless the experiment says another
SAMPLES = 2.0  # times the median, that no site counts for more of


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
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # events of getting there
    control: RunControl | None = None  # what operators say
    begun: bool = False  # whether sites were told to begin: the plan is looked at before that, too
    known: RemoteFederation | None = None  # what sites said of themselves

    @cached_property
    def _kept_sums(self) -> KeptSums:
        return KeptSums(Run(self.folder).checkpoints.path)

    # ---- before a run

    def federation(self, known: MaskedRemoteFederation | None = None) -> RemoteFederation:
        """Return what sites have, as far as the method needs to know; `known` is how labels were masked before."""
        site_registry, federation = self.site_registry, RemoteFederation.of(self.site_registry.facts, known)
        first, _ = settle(self.experiment, federation)  # as it would be chosen before sites have told anything
        plan = build_plan(first, federation)
        if not self.resumed:
            refuse(first, plan, federation)
        self._settle_question(plan, federation)
        if not self.resumed:
            federation = self._told(plan, federation)
        self.experiment, _ = settle(self.experiment, federation)
        names = site_registry.names if federation.masked is None else federation.masked.sites
        site_registry.facts = dict(zip(names, federation.facts, strict=True))
        site_registry.classes = federation.classes
        federation = self._with_features(federation)
        site_registry.welcome = lambda name: self._welcome(name, federation)
        self.known = federation
        return federation

    def _settle_question(self, plan: Plan, federation: RemoteFederation) -> None:
        """Say what sites are asked about their labels: before the run, and whenever their data changed."""
        site_registry, privacy, needs = self.site_registry, self.experiment.privacy, plan.needs & COUNTED
        if privacy.labels != "none":
            site_registry.fixed = "labels were agreed on when the run began"
            return
        if privacy.clustering != "server" or privacy.histogram_epsilon is not None:
            site_registry.fixed = "what it told of its labels holds for the whole run"
        if privacy.clustering != "server":
            needs -= {"counts"}
            if needs:
                raise RequestError(
                    f'privacy.clustering = "{privacy.clustering}" at sites: another part of the method asks them for '
                    f'their {" and ".join(sorted(needs))}, by name; use privacy.labels = "prf"'
                )
        if needs:
            told = {"needs": sorted(needs), "classes": federation.classes}
            site_registry.question = {**site_registry.question, **told}

    def _told(self, plan: Plan, federation: RemoteFederation) -> RemoteFederation:
        """Ask sites for what the method needs of their labels."""
        site_registry = self.site_registry
        if self.experiment.privacy.labels != "none":
            known = self._mask_labels(plan)
            return RemoteFederation.of({name: site_registry.facts[name] for name in known.sites}, known)
        if "needs" not in site_registry.question:
            return federation
        facts, wrong = ask_facts(
            site_registry.transport, site_registry.names, site_registry.question, site_registry.deadline
        )
        for name, error in wrong.items():
            if not isinstance(error, PolicyError):
                raise RequestError(f"site {name}: {error}")
            self._noted("site_refused", round=0, step=0, site=name, why=str(error))
        if not facts:
            raise RequestError(_too_few(0, 1, self.notes))
        site_registry.facts = facts
        return RemoteFederation.of(facts)

    def _with_features(self, federation: RemoteFederation) -> RemoteFederation:
        """Let sites agree on how their features are scaled, or take what was agreed on when the run began."""
        if self.resumed:
            return as_agreed(federation, Run.open(self.folder).events())
        masked = self.experiment.privacy.aggregate == "masked"
        keys = self._keys('privacy.aggregate = "masked"') if masked else None
        federation = agree_on_features(federation, self._everybody, keys, self.site_registry.names)
        if (event := event_of(federation, masked)) is not None:
            self._noted(AGREED, **event)
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
        credentials, epsilon = self._keys(f'privacy.clustering = "{privacy.clustering}"'), privacy.histogram_epsilon
        places = {int(i): {**self._place(i, federation), "epsilon": epsilon} for i in setup.client_info.holders}
        if privacy.clustering == "masked":
            clustered(setup, clustered_at(self._heard, credentials, names, places, flips, classes))
            return
        plan, setting = setup.plan, Setting(**privacy.enclave.model_dump())
        terms = Terms(len(names), classes, plan.rounds, plan.streams.seed, flips, setting.noise)
        if self.resumed:  # sites that were restarted meanwhile do not know the run
            registry = self.site_registry
            _, wrong = ask_facts(registry.transport, names, registry.question, registry.deadline)
            for name, error in wrong.items():
                raise RequestError(f"site {name}: {error}")
        select_inside(setup, start_at_sites(self._all_heard, credentials, names, places, terms, setting, setup.note))

    def with_real_clock(self, plan: Plan) -> Plan:
        """Return the plan with time as the clock says it."""
        system = plan.system
        return replace(plan, system=Observed(**vars(system))) if isinstance(system, Devices) else plan

    def with_attendance(self, client_info: ClientInfo, plan: Plan) -> ClientInfo:
        """Return what is known of sites with who is there, round by round; their data may change on the way."""
        site_registry, names, federation = self.site_registry, self.site_registry.names, self.known
        assert federation is not None
        refused = {str(fields["site"]) for kind, fields in self.notes if kind == "site_refused"}
        closed = closed_because(plan, self.experiment)
        newcomers = JoiningSites(site_registry, closed, self.folder, self._greeting, refused)

        def now(round: int) -> ClientInfo:
            nonlocal names
            if self.begun and self.control is not None:
                self.control.heed(site_registry.note)
            if self.begun:
                newcomers.look(round)
            names = site_registry.names
            attending = site_registry.attending(plan.fewest)
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
        """Return a log that says once that a site which is away gives no answer; its return is an event of its own."""
        said: set[str] = set()

        def once(kind: str, **fields: Any) -> None:
            away, names = self.site_registry.away, self.site_registry.names
            said.intersection_update(away)
            if kind == "dropped" and fields.get("why") == "no answer":
                new = [client for client in fields["clients"] if names[client] not in said]
                said.update(names[client] for client in new if names[client] in away)
                if not new:
                    return
                fields = {**fields, "clients": new}
            log(kind, **fields)

        return once

    def start_engine(self, plan: Plan, log: Log) -> Engine:
        """Tell every site to take part, and give the engine."""
        site_registry, masks, noise = self.site_registry, self._masks(), noise_of(self.experiment.privacy)
        relay = self._relay(plan, log)
        self.chained = relay is not None
        site_registry.note = log
        site_registry.transport.longest = longest_reply(plan)
        site_registry.write(self.folder)
        for name, error in site_registry.begin(site_registry.names, site_registry.deadline).items():
            if not self.resumed:
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

    # ---- protocols

    def _mask_labels(self, plan: Plan) -> MaskedRemoteFederation:
        privacy = self.experiment.privacy
        credentials = self._keys(f'privacy.labels = "{privacy.labels}"')
        counts = tells_counts(privacy, plan.needs)
        rng, run = plan.streams("placeholders"), self.site_registry.run
        names = self.site_registry.names
        try:
            known = masked_labels_at(self._heard, credentials, names, run, counts, rng, self._noted)
        except FedstrataError as error:
            raise RequestError("; ".join([str(error), *_refusals(self.notes)])) from None
        if (init := self.experiment.model.init) is None:
            return known
        event, earlier = kept_beside(init), recorded(Path(init).parent)
        if earlier is None or "sites" not in event:
            raise RequestError(f'model.init = "{init}": its run had other clients than these sites')
        return renumbered_at(self._heard, known, run, earlier[0], MaskedRemoteFederation.read(event))

    def _masks(self) -> Masks | None:
        encoding = encoding_of(self.experiment.privacy)
        if encoding is None:
            return None
        return Masks(
            self._keys('privacy.aggregate = "masked"'), self.site_registry.names, encoding, self.site_registry.run
        )

    def _keys(self, wish: str) -> Credentials:
        if self.credentials is None:
            raise RequestError(f"{wish} at sites needs keys; see fedstrata deploy keys")
        return self.credentials

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
        return build_request("begin", to_json(about), to_json(to_sites(self.experiment)))

    def _greeting(self) -> dict[str, Any]:
        """Say what a site is told with every run, with the roll that holds now."""
        now = None if self.control is None else self.control.roll()
        return greeting(None if self.credentials is None else now or self.credentials.roll)

    def _heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask before the run, and give the replies that are ones; every site without one is an event."""
        site_registry = self.site_registry

        def refuse(name: str, error: FedstrataError) -> None:
            client = site_registry.names.index(name)
            self._noted("site_refused", round=0, step=0, site=name, client=client, why=str(error))

        return self._replies(requests, fields, refuse)

    def _all_heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask before the run, all of them or nobody."""

        def refuse(name: str, error: FedstrataError) -> None:
            raise RequestError(f"site {name}: {error}")

        return self._replies(requests, fields, refuse)

    def _replies(self, requests: Mapping[str, bytes], fields: int, refuse: Refuse) -> dict[str, tuple[bytes, ...]]:
        site_registry = self.site_registry
        ours = {name: within(site_registry.run, request) for name, request in requests.items()}
        return replies(ours, heard(site_registry.transport, ours, fields, site_registry.deadline), refuse)

    def _everybody(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Ask all sites before the run, by client; one that does not answer ends it."""
        names = self.site_registry.names
        said = by_client(names, lambda asked: self._heard(asked, 1))(requests)
        for client in requests:
            if client not in said:
                whys = [fields["why"] for _, fields in self.notes if fields.get("site") == names[client]]
                raise RequestError(f"site {names[client]}: {whys[-1]}; all sites are needed to begin, try again")
        return said

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
    credentials: Credentials | None = None,
    patience: float = 600.0,
    no_stream: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    control: RunControl | None = None,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one at the sites that it began with.

    `say` is told what happens before there is a run folder for events: who refuses, and whose owner is waited for;
    `control` is what operators say to the run before each of its rounds.
    """
    path, asked = Path(out), Path(out) / "experiment.toml" if resumed else experiment
    described = asked if isinstance(asked, Experiment) else Experiment.of(asked)
    if not resumed:
        described = settle_sites_per_round(described, len(transport.names()))
    possible_at_sites(described)
    described = doubting_sites(described)
    deadline = deadline or described.system.deadline or DEADLINE
    before = recorded(path) if resumed else None
    notes: list[tuple[str, dict[str, Any]]] = []

    def note(kind: str, **fields: Any) -> None:
        notes.append((kind, fields))
        say(describe_fault({"event": kind, **fields}).why)

    run = before[0] if before else secrets.token_hex(16)
    question = {
        "run": run,
        "experiment": to_sites(described),
        **greeting(None if credentials is None else credentials.roll),
    }
    facts = proposed(transport, sites, question, deadline, patience, note) if before is None else before[1]
    if len(facts) < sites:
        raise RequestError(f"{len(facts)} sites are there, and {sites} are wanted: {', '.join(facts) or 'none'}")
    site_registry = SiteRegistry(transport, run, facts, question, deadline, patience)
    at = SiteClients(
        site_registry, described, path, credentials, before is not None, no_stream, notes=notes, control=control
    )
    federation = at.federation(None if before is None else _masked_before(Run.open(path)))
    if len(site_registry.names) < sites:
        raise RequestError(_too_few(len(site_registry.names), sites, notes))
    if resumed:
        return resume(path, federation=cast(Federation, federation), watch=watch, progress=False, remote=at)
    return begin(at.experiment, cast(Federation, federation), None, path, watch, at)


def greeting(roll: Roll | None) -> dict[str, Any]:
    """Say what a site is told with every run: which fedstrata asks, and the newest roll, where there are keys."""
    said = {"protocol": PROTOCOL, "version": __version__}
    return said if roll is None or not roll.serial else {**said, "roll": roll.text}


def _too_few(there: int, wanted: int, notes: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Say that too few sites are left, and why."""
    return "; ".join([f"{wanted} sites are wanted, and {there} are left", *_refusals(notes)])


def _refusals(notes: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Say why sites were left out before the run; those with the same reason together."""
    reasons: dict[str, dict[str, None]] = {}  # sites in their order, each once
    for kind, about in notes:
        if kind == "site_refused":
            reasons.setdefault(about["why"], {})[about["site"]] = None
    return [f"site{'s' * (len(who) > 1)} {', '.join(who)}: {why}" for why, who in reasons.items()]


def possible_at_sites(experiment: Experiment) -> None:
    """Refuse what sites cannot do, or what would be passed over in silence."""
    to_sites(experiment)
    privacy, data = experiment.privacy, experiment.data
    reasons = [
        (
            privacy.labels == "ckks-paper",
            'privacy.labels = "ckks-paper"',
            "its clients share one secret key, which no server can bring them safely",
            'use privacy.labels = "prf"',
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


def doubting_sites(experiment: Experiment) -> Experiment:
    """Return the experiment with what `auto` means where a client may be anybody: one site must not own the model."""
    privacy, trust = experiment.privacy, experiment.trust
    clip: Any = "none" if privacy.dp is not None else LENGTH if privacy.aggregate == "masked" else "median"
    doubt = Trust(
        clip=clip if trust.clip == "auto" else trust.clip,
        samples=SAMPLES if trust.samples == "auto" else trust.samples,
    )
    return experiment.model_copy(update={"trust": doubt})


def _masked_before(run: Run) -> MaskedRemoteFederation | None:
    """Return what the server learned when labels were masked: it stands in the run's events."""
    for event in run.events():
        if event["event"] == MASKED:
            return MaskedRemoteFederation.read(event)
    return None
