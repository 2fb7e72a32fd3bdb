"""A run at real sites: the same experiment, the same run folder, over whatever carries requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.assemble import assemble
from fedstrata.engines.sites.engine import AtSites, Masks
from fedstrata.engines.sites.facts import Away, Facts
from fedstrata.engines.sites.host import COUNTED
from fedstrata.engines.sites.judging import JudgeAtSites
from fedstrata.engines.sites.papers import Papers
from fedstrata.engines.sites.telling import asked, read_reply, read_values, written
from fedstrata.engines.sites.transport import Failure, Transport
from fedstrata.errors import FedstrataError, RequestError
from fedstrata.experiment import Experiment
from fedstrata.plan import Plan
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.runs import Run
from fedstrata.training import begin, resume
from fedstrata.work import Watch

Log = Callable[..., None]


@dataclass
class Elsewhere:
    """Where visits and evaluation happen: at sites that are in touch through a transport."""

    transport: Transport
    names: list[str]
    experiment: Experiment
    deadline: float | None = None
    run: str = ""
    papers: Papers | None = None
    no_stream: str | None = None  # why requests go by messages, where a stream was to carry them

    def engine(self, plan: Plan, federation: Away, note: Log) -> AtSites:
        """Tell every site to take part, and give the engine."""
        masks = self._masks()
        table = written(self.experiment.dump())
        requests = {
            name: asked(
                "begin",
                written(
                    {
                        "run": self.run,
                        "client": i,
                        "sites": self.names,
                        "classes": federation.classes,
                        "speed": facts.speed,
                    }
                ),
                table,
            )
            for i, (name, facts) in enumerate(zip(self.names, federation.facts, strict=True))
        }
        for name, answer in self._all(requests).items():
            _read(answer, name)
        note("sites", wall={"sites": self.names})
        if self.no_stream is not None:
            note("fallback", what="stream", used="messages, which take seconds each", why=self.no_stream)
        return AtSites(self.transport, self.names, plan, note, self.deadline, masks)

    def _masks(self) -> Masks | None:
        privacy = self.experiment.privacy
        if privacy.aggregate == "open":
            return None
        if self.papers is None:
            raise RequestError('privacy.aggregate = "masked" at sites needs keys; see fedstrata deploy keys')
        return Masks(self.papers, self.names, Encoding(privacy.encoding.bits, privacy.encoding.fraction), self.run)

    def judge(self, classes: int) -> JudgeAtSites:
        """Give what scores models."""
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        return JudgeAtSites(self.transport, self.names, classes, evaluate.every, voting, self.deadline)

    def facts(self, needs: frozenset[str]) -> Away:
        """Ask every site what it has, as far as the method needs to know."""
        request = asked("introduce", written({"needs": sorted(needs & COUNTED)}))
        answers = self._all(dict.fromkeys(self.names, request))
        return Away.of({name: _facts(answers[name], name) for name in self.names})

    def _all(self, requests: Mapping[str, bytes]) -> dict[str, bytes | Failure]:
        answers = self.transport.exchange(requests, self.deadline)
        if silent := [name for name in requests if name not in answers]:
            raise RequestError(f"site {silent[0]} does not answer")
        return answers


def run_at_sites(
    transport: Transport,
    experiment: Mapping[str, Any] | str | Path | Experiment,
    out: str | Path,
    sites: int,
    resumed: bool = False,
    deadline: float | None = None,
    watch: Watch | None = None,
    papers: Papers | None = None,
    no_stream: str | None = None,
) -> Run:
    """Run an experiment at the sites that are there, or go on with one."""
    path, described = Path(out), Experiment.of(Path(out) / "experiment.toml" if resumed else experiment)
    for key, asked_for in _not_yet(described).items():
        if asked_for:
            raise RequestError(f"{key} is not carried to real sites yet; leave it out")
    names = sorted(transport.names())
    if len(names) < sites:
        raise RequestError(f"{len(names)} sites are there, and {sites} are wanted: {', '.join(names) or 'none'}")
    at = Elsewhere(transport, names, described, deadline, path.name, papers, no_stream)
    federation = at.facts(frozenset())
    needs = assemble(described, federation).needs
    if needs & COUNTED:
        federation = at.facts(needs)
    if resumed:
        return resume(path, federation=federation, watch=watch, elsewhere=at)
    return begin(described, federation, None, path, watch, at)


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
