"""Engines around engines: what comes between the loop and the clients changes a few answers, and leaves the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedstrata.core.engine import AllReduceSum, ClientStates, Engine
from fedstrata.core.messages import Report, Sums, Tag, Task, fast_replace, weighted_sum
from fedstrata.core.steps import Step


class WrappedEngine:
    """Leaves everything to the engine inside."""

    def __init__(self, engine: Engine):
        self._engine, self.device, self.can_fuse = engine, engine.device, engine.can_fuse

    @property
    def all_reduce_sum(self) -> AllReduceSum | None:
        """How clients that meet in the middle of a step add up; None: in the open."""
        return self._engine.all_reduce_sum

    @all_reduce_sum.setter
    def all_reduce_sum(self, add: AllReduceSum | None) -> None:
        self._engine.all_reduce_sum = add

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report."""
        return self._engine.ask(step, tasks)

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent."""
        return self._engine.collect(weights)

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        return self._engine.each()

    def overhead_bytes(self) -> tuple[int, int]:
        """Return what the last step's sum took beside what its messages declare."""
        return self._engine.overhead_bytes()

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit client state."""
        self._engine.settle(accepted, tag)

    def client_states(self) -> ClientStates:
        """Return client state."""
        return self._engine.client_states()

    def restore(self, client_states: ClientStates) -> None:
        """Take client state back."""
        self._engine.restore(client_states)

    def close(self) -> None:
        """End the workers."""
        self._engine.close()


class RevisedEngine(WrappedEngine):
    """Puts other reports in the place of some; `revise` says which."""

    def __init__(self, engine: Engine):
        super().__init__(engine)
        self._revised: Mapping[int, Report] = {}

    def revise(self, step: Step, tasks: Sequence[Task], reports: Sequence[Report]) -> Mapping[int, Report]:
        """Return whole reports by client; `reports` are the open halves of those of the engine inside."""
        raise NotImplementedError

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report."""
        reports = self._engine.ask(step, tasks)
        self._revised = self.revise(step, tasks, reports)
        return [self._revised[r.client].open() if r.client in self._revised else r for r in reports]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what counts as sent."""
        if not self._revised:
            return self._engine.collect(weights)
        sums, met = weighted_sum(self.each(), weights), self._engine.collect({})
        return fast_replace(sums, total={**met.total, **sums.total})  # statistics of norms that no single client sent

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        return {**self._engine.each(), **self._revised}
