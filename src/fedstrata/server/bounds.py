"""What the server believes of a report, beside those of the others: it may come from somebody who lies.

Sun et al., Can You Really Backdoor Federated Learning?, 2019, shorten updates that are too long. Here every tensor that
a client sends is shortened to the median length in its step, whatever the combiner, and nobody counts for more samples
than a multiple of the median. Of two in the middle the smaller one is the median, so that one liar of two does not set
it. Both are events that name who it was. This is for clients that train side by side: a chain has one report a step,
and gradients of a global batch differ in length by their nature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median_low
from typing import Any, Literal

from fedstrata.core.engine import Engine
from fedstrata.core.events import Log
from fedstrata.core.messages import FIGURES, Report, Sums, Task, fast_replace, shorten
from fedstrata.core.steps import Step
from fedstrata.core.wrapped_engine import RevisedEngine


@dataclass(frozen=True)
class Bounds:
    """How far a report is believed; None: however far it goes."""

    length: Literal["median"] | float | None = None  # of what a client sends
    samples: float | None = None  # that it counts for, as a multiple of the median
    masked: float | None = None  # the length that clients keep to where nobody sees single updates


def bound_reports(engine: Engine, bounds: Bounds, log: Log, names: Sequence[str] | None = None) -> Engine:
    """Put the bounds between an engine and the loop; `names` are those of sites."""
    return engine if bounds == Bounds() else BoundedEngine(engine, bounds, log, names)


class BoundedEngine(RevisedEngine):
    """Shortens updates and lowers counts that are out of proportion."""

    def __init__(self, engine: Engine, bounds: Bounds, log: Log, names: Sequence[str] | None):
        super().__init__(engine)
        self._bounds, self._log, self._names = bounds, log, names
        self._tasks: Sequence[Task] = ()

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report, as far as it is believed."""
        self._tasks = tasks
        return self._lower(tasks, super().ask(step, tasks)) if _side_by_side(step) else super().ask(step, tasks)

    def revise(self, step: Step, tasks: Sequence[Task], reports: Sequence[Report]) -> Mapping[int, Report]:
        """Shorten what is too long."""
        usable = [r.client for r in reports if r.finite]
        if self._bounds.length is None or not _side_by_side(step) or not usable:
            return {}
        whole, revised = self._engine.each(), dict[int, Report]()
        for name in whole[usable[0]].aggregated if self._bounds.length == "median" else ["update"]:
            lengths = {client: float(whole[client].aggregated[name].double().norm()) for client in usable}
            moved = [length for length in lengths.values() if length]
            most = self._bounds.length if isinstance(self._bounds.length, float) else median_low(moved or [0.0])
            long = [client for client, length in lengths.items() if length > most]
            for client in long:
                report = revised.get(client, whole[client])
                shortened = {**report.aggregated, name: shorten(report.aggregated[name], most)}
                revised[client] = fast_replace(report, aggregated=shortened)
            if long:
                self._note("clipped", tasks, long, what=name, lengths=[lengths[c] for c in long], to=most)
        return revised

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what counts as sent; of what clients shorten themselves, only their mean length tells."""
        sums = super().collect(weights)
        if self._bounds.masked is not None and FIGURES in sums.total:
            _, mean = sums.mean(FIGURES).tolist()
            if mean > self._bounds.masked:
                self._note("clipped", self._tasks, [], what="update", lengths=[], mean=mean, to=self._bounds.masked)
        return sums

    def _lower(self, tasks: Sequence[Task], reports: list[Report]) -> list[Report]:
        """Lower counts of samples that are out of proportion."""
        told = [r.samples for r in reports if r.samples]
        if self._bounds.samples is None or not told:
            return reports
        most = ceil(self._bounds.samples * median_low(told))
        if many := [r for r in reports if r.samples > most]:
            self._note("samples_bounded", tasks, [r.client for r in many], said=[r.samples for r in many], to=most)
        return [fast_replace(r, samples=min(r.samples, most)) for r in reports]

    def _note(self, kind: str, tasks: Sequence[Task], clients: list[int], **fields: Any) -> None:
        sites = {} if self._names is None else {"sites": [self._names[client] for client in clients]}
        self._log(kind, round=tasks[0].round + 1, step=tasks[0].step, clients=clients, **sites, **fields)


def _side_by_side(step: Step) -> bool:
    """Say whether a step's reports are those of clients that trained on their own, and can be compared."""
    return step.combine and step.kind == "train" and step.fused is None and len(step.asks) > 1
