"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.assemble import assemble
from fedstrata.engines.sites.arranging import clustered_at, masked_labels_at
from fedstrata.engines.sites.engine import AtSites, Masks
from fedstrata.engines.sites.facts import Away, Facts, MaskedAway
from fedstrata.engines.sites.host import COUNTED
from fedstrata.engines.sites.judging import JudgeAtSites
from fedstrata.engines.sites.papers import Papers
from fedstrata.engines.sites.telling import SiteError, asked, read_reply, read_values, written
from fedstrata.engines.sites.transport import Failure, Transport
from fedstrata.errors import FedstrataError, RequestError
from fedstrata.experiment import Experiment
from fedstrata.plan import Plan
from fedstrata.privacy import FEWEST
from fedstrata.privacy.arranged import Arranged, clustered, encoding_of, noise_of, shy
from fedstrata.privacy.histograms import NoisyHistograms
from fedstrata.privacy.refusals import refuse
from fedstrata.runs import Run
from fedstrata.select.flips import Flips
from fedstrata.training import begin, resume
from fedstrata.work import Watch

Log = Callable[..., None]
MASKED = "labels_masked"  # the event that keeps what the server learned of labels


@dataclass
class Elsewhere:
    """Where visits and evaluation happen: at sites that are in touch through a transport."""

    transport: Transport
    names: list[str]
    experiment: Experiment
    deadline: float | None = None
    run: str = ""
    papers: Papers | None = None
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # events of getting there

    # ---- before a run

    def federation(self, known: MaskedAway | None = None) -> Away:
        """Ask every site what it has, as far as the method needs to know; `known` is how labels were masked before."""
        privacy = self.experiment.privacy
        masked = privacy.labels != "none"
        facts = self._facts({"named": not masked})
        plan = assemble(self.experiment, (federation := Away.of(facts, known)))
        refuse(self.experiment, plan, federation)
        if masked:
            known = known or self._mask_labels(plan)
            self.names = list(known.sites)
            return Away.of({name: facts[name] for name in known.sites}, known)
        needs = plan.needs & COUNTED
        if privacy.clustering != "server":
            needs -= {"counts"}
            if needs:
                raise RequestError(
                    f'privacy.clustering = "{privacy.clustering}" at sites: another part of the method asks them for '
                    f'their {" and ".join(sorted(needs))}, by name; use privacy.labels = "prf"'
                )
        if not needs:
            return federation
        request = {"needs": sorted(needs), "classes": federation.classes, "epsilon": privacy.histogram_epsilon}
        return Away.of(self._facts(request))

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
            clustered(now, clustered_at(self._heard, papers, self.names, places, now.plan.select, classes))

    def engine(self, plan: Plan, federation: Away, note: Log) -> AtSites:
        """Tell every site to take part, and give the engine."""
        masks, noise = self._masks(), noise_of(self.experiment.privacy)
        table = written(self.experiment.dump())
        requests = {
            name: asked("begin", written({**self._place(i, federation), "speed": facts.speed}), table)
            for i, (name, facts) in enumerate(zip(self.names, federation.facts, strict=True))
        }
        for name, answer in self._all(requests).items():
            if untested := int(read_values(_read(answer, name)).get("untested", 0)):
                why = f"site {name} does not train on their labels, and has no placeholders for them"
                note("fallback", what="test samples", left_out=untested, why=why)
        note("sites", wall={"sites": self.names})
        return AtSites(self.transport, self.names, plan, note, self.deadline, masks, noise)

    def judge(self, classes: int) -> JudgeAtSites:
        """Give what scores models."""
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        masked = self.papers is not None and len(self.names) >= FEWEST
        how = voting, self.deadline, shy(self.experiment.privacy), masked
        return JudgeAtSites(self.transport, self.names, classes, evaluate.every, *how)

    # ---- protocols

    def _mask_labels(self, plan: Plan) -> MaskedAway:
        privacy = self.experiment.privacy
        papers = self._keys(f'privacy.labels = "{privacy.labels}"')
        counts = "counts" in plan.needs and privacy.clustering == "server"
        rng = plan.streams("placeholders")
        return masked_labels_at(self._heard, papers, self.names, self.run, counts, rng, self._noted)

    def _masks(self) -> Masks | None:
        encoding = encoding_of(self.experiment.privacy)
        if encoding is None:
            return None
        return Masks(self._keys('privacy.aggregate = "masked"'), self.names, encoding, self.run)

    def _keys(self, wish: str) -> Papers:
        if self.papers is None:
            raise RequestError(f"{wish} at sites needs keys; see fedstrata deploy keys")
        return self.papers

    def _place(self, client: int, federation: Away) -> dict[str, Any]:
        """Say what a site must know to read its own data as the run does."""
        masked = federation.masked
        labels = {"classes": federation.classes} if masked is None else {"sealed": masked.sealed[client]}
        return {"run": self.run, "client": int(client), "sites": self.names, **labels}

    # ---- words

    def _facts(self, request: Mapping[str, Any]) -> dict[str, Facts]:
        answers = self._all(dict.fromkeys(self.names, asked("introduce", written(request))))
        return {name: _facts(answers[name], name) for name in self.names}

    def _all(self, requests: Mapping[str, bytes]) -> dict[str, bytes | Failure]:
        answers = self.transport.exchange(requests, self.deadline)
        if silent := [name for name in requests if name not in answers]:
            raise RequestError(f"site {silent[0]} does not answer")
        return answers

    def _heard(self, requests: Mapping[str, bytes], fields: int) -> dict[str, tuple[bytes, ...]]:
        """Ask, and give the replies that are ones; every site without one is an event."""
        answers, said = self.transport.exchange(requests, self.deadline), {}
        for name in requests:
            answer = answers.get(name, Failure("it did not answer in time"))
            try:
                if isinstance(answer, Failure):
                    raise SiteError(answer.reason)
                said[name] = read_reply(answer, fields)
            except FedstrataError as error:
                self._noted("site_refused", round=0, step=0, site=name, client=self.names.index(name), why=str(error))
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
    papers: Papers | None = None,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one."""
    path, described = Path(out), Experiment.of(Path(out) / "experiment.toml" if resumed else experiment)
    possible_at_sites(described)
    known = _masked_before(Run.open(path)) if resumed else None
    names = sorted(transport.names() if known is None else known.sites)
    if missing := set(names).difference(transport.names()):
        raise RequestError(f"site {min(missing)} is not there, and the run began with it")
    if len(names) < sites:
        raise RequestError(f"{len(names)} sites are there, and {sites} are wanted: {', '.join(names) or 'none'}")
    at = Elsewhere(transport, names, described, deadline, path.name, papers)
    federation = at.federation(known)
    if len(at.names) < sites:
        raise RequestError(f"{len(at.names)} sites agreed on labels, and {sites} are wanted: {', '.join(at.names)}")
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


def _facts(answer: bytes | Failure, name: str) -> Facts:
    told = read_values(_read(answer, name))
    if told.pop("site", None) != name:
        raise RequestError(f"site {name} introduces itself by another name")
    return Facts.read(told, name)


def _read(answer: bytes | Failure, name: str) -> bytes:
    if isinstance(answer, Failure):
        raise RequestError(f"site {name}: {answer.reason}")
    try:
        return read_reply(answer, 1)[0]
    except FedstrataError as error:
        raise RequestError(f"site {name}: {error}") from None
