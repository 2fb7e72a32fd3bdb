"""Between clients and server: updates are clipped, noised and summed so that nobody sees a single one.

An engine as the loop knows it, around another one whose reports it keeps to itself. What a client does at a real site
before anything leaves it (`protect.py`), this does in its place; the protocol's parties are separate objects that
exchange bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedstrata.core.engine import Engine
from fedstrata.core.events import Log
from fedstrata.core.messages import Report, Sums, Task, Tensors, fast_replace
from fedstrata.core.rng import Rng, Streams
from fedstrata.core.steps import Step
from fedstrata.core.wrapped_engine import WrappedEngine
from fedstrata.privacy import FEWEST
from fedstrata.privacy.frames import never
from fedstrata.privacy.masked_sum import MaskedStep, StepSum
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.protect import hide_figures, protect_report, protect_update, sum_figures
from fedstrata.privacy.simulated import identities, job_of, secrets
from fedstrata.privacy.sums.all_reduce import TOO_FEW, MaskedAllReduce
from fedstrata.privacy.sums.fixed_point import Encoding, TooLargeError
from fedstrata.privacy.sums.secure_sum import Parties, in_memory


class ProtectedEngine(WrappedEngine):
    """An engine whose updates leave their clients clipped, noised or masked."""

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        clients: int,
        encoding: Encoding | None,
        noise: UpdateNoise | None,
        hides_figures: bool,
        note: Log,
        clip: float | None = None,
    ):
        super().__init__(engine)
        self._streams, self._encoding, self._noise, self._note = streams, encoding, noise, note
        self._hides_figures, self._clip = hides_figures, clip
        self._tasks: Sequence[Task] = ()
        self._sum = StepSum(noise, self._draw, clip)
        if encoding is not None:
            self._server, self._clients, self._key_directory = identities(streams, clients)
            engine.all_reduce_sum = self._all_reduce

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report, as far as it may be told."""
        self._tasks, self._sum = tasks, StepSum(self._noise, self._draw, self._clip)
        try:
            if self._encoding is not None and step.together is not None and len(tasks) < FEWEST:
                raise TooLargeError(TOO_FEW)
            reports: list[Report] = self._engine.ask(step, tasks)
        except TooLargeError as error:  # in a meeting: everybody's computation is lost
            clients = [task.client for task in tasks]
            self._note("dropped", round=tasks[0].round + 1, step=tasks[0].step, clients=clients, why=str(error))
            return []
        if not step.combine:
            return reports
        if self._noise is not None:  # an update that is not finite counts as zero: who sent one must not show
            reports = [fast_replace(report, finite=True) for report in reports]
        reports = [protect_report(report, self._noise) for report in reports]
        if self._noise is None and self._encoding is not None:
            reports = self._encodable(reports)
        return [hide_figures(report) for report in reports] if self._hides_figures else reports

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent: once, because two sums would tell their difference."""
        whole = self._engine.each()
        if self._hides_figures and self._noise is None:
            assert self._encoding is not None
            most = self._encoding.most(len(self._tasks))
            whole = {client: sum_figures(whole[client], most) for client in weights}
        values = {client: self._leaving(client, whole[client].aggregated) for client in weights}
        layout: Tensors = next((report.aggregated for report in whole.values()), {})
        sums = self._masked(weights, values, layout) if self._encoding else self._sum.sum_open(weights, values, layout)
        if (met := self._engine.collect({}).total.get("statistics")) is None:
            return sums
        return fast_replace(sums, total={**sums.total, "statistics": met})

    def each(self) -> Mapping[int, Report]:
        """Refuse: nobody sees a single update."""
        raise RuntimeError("single updates are not shown where they are masked or noised")

    def overhead_bytes(self) -> tuple[int, int]:
        """Return the bytes of masks, keys and shares."""
        return self._sum.overhead

    # ---- the clients' half

    def _leaving(self, client: int, aggregated: Tensors) -> np.ndarray:
        """Return what leaves a client, before weights and masks."""
        return protect_update(aggregated, self._noise, self._encoding, lambda: self._draw(client), self._clip)

    def _encodable(self, reports: list[Report]) -> list[Report]:
        """Leave out who would have to send a number that the words cannot hold; every client left out is an event."""
        assert self._encoding is not None
        whole, most = self._engine.each(), self._encoding.most(len(self._tasks))
        large = [r.client for r in reports if r.finite and _largest(whole[r.client].aggregated) > most]
        if large:
            task = self._tasks[0]
            why = f"a number above {most:g} does not fit privacy.encoding; use more bits or a smaller fraction"
            self._note("dropped", round=task.round + 1, step=task.step, clients=large, why=why)
        return [report for report in reports if report.client not in large]

    # ---- the protocols

    def _masked(self, weights: Mapping[int, float], values: Mapping[int, np.ndarray], layout: Tensors) -> Sums:
        """Let the step's clients, all of which live here, add up under masks."""
        assert self._encoding is not None
        parties, job = self._parties("sum", self._tasks)
        step = MaskedStep(self._server, self._key_directory, self._encoding, job, list(parties.clients))
        return self._sum.sum_masked(weights, layout, step, lambda task: in_memory(task, parties, values), never)

    def _all_reduce(self, tasks: Sequence[Task]) -> MaskedAllReduce:
        return MaskedAllReduce(*self._parties("meeting", tasks))

    def _parties(self, purpose: str, tasks: Sequence[Task]) -> tuple[Parties, bytes]:
        """Return the clients of a step their keys and secrets for a protocol, and its number."""
        where = {"round": tasks[0].round, "step": tasks[0].step}
        clients = {task.client: self._clients[task.client] for task in tasks}
        parties = Parties(
            self._server, clients, self._key_directory, lambda client: secrets(self._streams, purpose, client, **where)
        )
        return parties, job_of(self._streams, purpose, **where)

    def _draw(self, client: int = -1) -> Rng:
        """Return where noise comes from: a client's, or the server's own."""
        first = self._tasks[0]
        return self._streams("noise", first.round, first.step, client)


def _largest(tensors: Tensors) -> float:
    return max((float(t.abs().max()) for t in tensors.values() if t.numel()), default=0.0)
