"""What a curious server, a curious client and both together learn of label counts from Stratify's messages.

Runs an epoch of batch-data learning, writes down what the server receives, and works out from that transcript between
which bounds each client's number of samples of each placeholder must lie.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.messages import REFUSED, Report, Task
from fedstrata.core.steps import Step
from fedstrata.privacy.setup import protect_engine
from fedstrata.runs.session import build_session
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process

UNKNOWN = 10**9  # a total that nobody is told
PAGE = Path(__file__).parent.parent / "docs" / "privacy.md"
SECTION = re.compile(r"(?<=<!-- python -m studies disclosure --write -->\n).*?(?=<!-- end of what it wrote -->)", re.S)

SETTING = {
    "data.clients": 10,
    "data.partition": {"kind": "dirichlet-class", "alpha": 0.5},
    "method.name": "stratify-batch",
    "model.hidden": (8,),
    "engine.execution": "messages",
}
PRIVATE = {"privacy.labels": "prf", "privacy.aggregate": "masked"}
MODES: dict[str, dict[str, Any]] = {
    "as printed": {
        "method.schedule.replacement": False
    },  # placeholders are only other names: the messages are the same
    "`uniform`": PRIVATE,
    "`binomial`": PRIVATE | {"method.schedule.clients": "binomial"},
}


@dataclass
class Transcript:
    """What the server receives in an epoch, and what it and the clients knew before."""

    holds: np.ndarray  # [clients, placeholders], from the label protocol
    totals: np.ndarray  # N(p), likewise
    replacement: bool  # public, as all of the experiment is
    steps: list[tuple[Step, Sequence[Task], Sequence[Report]]] = field(default_factory=list)
    shown: int = 0  # gradients of single clients
    bytes_up: int = 0

    @property
    def figures(self) -> int:
        """How often it is told a client's loss or the length of its gradient."""
        told = [r for step, _, reports in self.steps if step.combine for r in reports]
        return sum(not (isnan(float(r.loss)) and isnan(float(r.update_norm))) for r in told)


class Overheard:
    """An engine whose reports are written down, as the server gets them."""

    def __init__(self, engine: Any, transcript: Transcript):
        self._engine, self._transcript = engine, transcript

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Listen."""
        reports: list[Report] = self._engine.ask(step, tasks)
        self._transcript.steps.append((step, tasks, reports))
        if step.combine:
            with suppress(RuntimeError):  # single updates are not shown where they are masked
                self._transcript.shown += len(self._engine.each())
        return reports


def listen(asked: dict[str, Any]) -> tuple[Transcript, np.ndarray]:
    """Run an epoch; gives the transcript, and the counts that nobody should read off it."""
    experiment = Experiment.of(None, **SETTING, **asked)
    session = build_session(experiment, build_federation(experiment), None)
    engine = protect_engine(experiment, session.plan, in_process(session), len(session.federation), _nowhere)
    view = session.plan.view(session.client_info, 0, _nowhere)
    info, replacement = view.client_info, bool(session.plan.driver.schedule.replacement)
    transcript = Transcript(info.labels > 0, info.totals, replacement)
    state = session.initial_state()
    run_round(session.plan, state, view, Overheard(engine, transcript))  # type: ignore[arg-type]
    transcript.bytes_up = state.traffic.bytes_up
    return transcript, session.private.federation.counts


@dataclass
class Bounds:
    """Between what each client's count of each placeholder must lie."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def at_first(cls, transcript: Transcript) -> Bounds:
        """Who holds a placeholder has one sample at least."""
        low = transcript.holds.astype(np.int64)
        return cls(low, np.where(low > 0, transcript.totals, 0))

    def learn(self, client: int, stratum: int, low: int, high: int | None = None) -> None:
        """Take in that a count is at least, and perhaps at most, some number."""
        self.low[client, stratum] = max(self.low[client, stratum], low)
        if high is not None:
            self.high[client, stratum] = min(self.high[client, stratum], high)

    def add_up(self, totals: np.ndarray) -> None:
        """Use the totals: what all others have at least, one cannot have; what they have at most, it must have."""
        for _ in range(len(self.low)):
            self.high = np.minimum(self.high, totals - (self.low.sum(0) - self.low))
            self.low = np.maximum(self.low, totals - (self.high.sum(0) - self.high))

    def exact(self, others: np.ndarray) -> int:
        """Count what is known exactly, of some clients."""
        return int(((self.low == self.high) & (self.high > 0))[others].sum())

    def width(self, others: np.ndarray) -> float:
        """Return how many values a count can have, in the median over what some clients may hold."""
        return float(np.median((self.high - self.low + 1)[others][self.high[others] > 0]))


def read(transcript: Transcript, own: tuple[int, np.ndarray] | None = None) -> Bounds:
    """Read what a transcript tells the server, and a client that lends it its own counts."""
    bounds, strata = Bounds.at_first(transcript), len(transcript.totals)
    used: dict[tuple[int, int], int] = {}  # by client and code: a code names a pass over a stratum
    newest: dict[tuple[int, int], int] = {}
    held: dict[tuple[int, int], int] = {}
    batch = -1
    for step, tasks, reports in transcript.steps:
        if step.kind != "reserve":
            for key, count in held.items():
                used[key] = used.get(key, 0) + count
            held = {}
            continue
        by_client: dict[int, Any] = {task.client: task for task in tasks}
        for report in reports:
            config = by_client[report.client].config
            if config["batch"] != batch:
                batch, held = config["batch"], {}
            refused = list(report.metrics[REFUSED])  # type: ignore[arg-type]
            for code in dict.fromkeys(config["labels"]):
                stratum, key = code % strata, (report.client, code)
                granted = config["labels"].count(code) - refused.count(code)
                held[key] = held.get(key, 0) + granted
                count, late = used.get(key, 0) + held[key], code < newest.get((report.client, stratum), 0)
                newest[report.client, stratum] = max(code, newest.get((report.client, stratum), 0))
                if not transcript.replacement and not late:
                    bounds.learn(report.client, stratum, count, count if code in refused else None)
    if own is not None:
        client, counts = own
        for stratum, count in enumerate(counts.tolist()):
            bounds.learn(client, stratum, count, count)
    bounds.add_up(transcript.totals)
    return bounds


def read_alone(transcript: Transcript, client: int, counts: np.ndarray) -> Bounds:
    """Read what a client makes of the messages that it receives: of the others it may be told the totals."""
    received = [task.config for _, tasks, _ in transcript.steps for task in tasks if task.client == client]
    totals = np.full(len(counts), UNKNOWN)
    for config in received:
        if "totals" in config:
            totals[list(config["strata"])] = config["totals"]  # type: ignore[arg-type, call-overload]
    low = np.zeros_like(transcript.holds, dtype=np.int64)
    bounds = Bounds(low, np.broadcast_to(totals - counts, low.shape).copy())
    for stratum, count in enumerate(counts.tolist()):
        bounds.low[client, stratum] = bounds.high[client, stratum] = count
    return bounds


def check(bounds: Bounds, truth: np.ndarray) -> None:
    """Make sure that nobody believes what is not true: an attack that is wrong shows nothing."""
    assert ((bounds.low <= truth) & (truth <= bounds.high)).all()


def main(arguments: Sequence[str]) -> int:
    """Listen, read and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies disclosure", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    asked = parser.parse_args(arguments)
    told = table()
    print(told)
    if asked.write:
        PAGE.write_text(SECTION.sub(lambda _: told, PAGE.read_text()))
    return 0


def table() -> str:
    """Return what each of them learns, as a table."""
    heard = {name: listen(asked) for name, asked in MODES.items()}
    transcript, truth = heard["`uniform`"]
    columns = {"told before": learnt(replace(transcript, steps=[], shown=0, bytes_up=0), truth)}
    columns |= {name: learnt(*told) for name, told in heard.items()}
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(c[name] for c in columns.values())} |" for name in columns["told before"]]
    return "\n".join(lines) + "\n"


def learnt(transcript: Transcript, truth: np.ndarray) -> dict[str, str]:
    """Say what is read off one transcript."""
    server = read(transcript)
    check(server, truth)
    everybody = np.ones(len(truth), dtype=bool)
    alone, together = [], []
    for client, own in enumerate(truth):
        others = np.arange(len(truth)) != client
        for found, bounds in (
            (alone, read_alone(transcript, client, own)),
            (together, read(transcript, (client, own))),
        ):
            check(bounds, truth)
            found.append((bounds, others))
    refused = sum(len(r.metrics.get(REFUSED, ())) for _, _, reports in transcript.steps for r in reports)  # type: ignore[arg-type]
    return {
        "refusals that the server hears": f"{refused}",
        "losses and lengths of single gradients": f"{transcript.figures}",
        "single gradients": f"{transcript.shown}",
        **told("**server**", [(server, everybody)], truth),
        **told("**client**, the one that learns most of others", alone, truth),
        **told("**server with a client**, likewise", together, truth),
        "MB up in the epoch": f"{transcript.bytes_up / 1e6:.1f}",
    }


def told(who: str, found: list[tuple[Bounds, np.ndarray]], truth: np.ndarray) -> dict[str, str]:
    """Say what the one who learns most knows exactly, and between how many values the median count still lies."""
    bounds, of = max(found, key=lambda one: (one[0].exact(one[1]), -one[0].width(one[1])))
    width = bounds.width(of)
    return {
        f"{who}: counts known exactly": f"{bounds.exact(of)} of {int((truth[of] > 0).sum())}",
        f"{who}: values that a count can still have": f"{width:g}" if width < UNKNOWN / 2 else "any",
    }


def _nowhere(*_: object, **__: object) -> None:
    """Events do not matter here."""
