"""The server side of a plan: drivers, selectors, combiners, server steps, and what they may see.

A driver or selector is a generator of `Step`s; the loop plays a step and sends its `Outcome` back. Probing,
chains, several exchanges inside a round are only different sequences of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from fedstrata.clientside import LocalPart, Program
from fedstrata.federation import Roster
from fedstrata.messages import Report, Sums, Tag, Task, Tensors, Value
from fedstrata.part import Part
from fedstrata.rng import Rng
from fedstrata.space import Model, Space


@dataclass(frozen=True)
class View:
    """What a server-side part sees of a round."""

    round: int
    rounds: int
    k: int  # clients wanted in this round
    eligible: np.ndarray  # ids that hold data and are available
    roster: Roster
    space: Space
    rng: Callable[..., Rng]  # rng(purpose, step=0, client=-1), keyed with seed and round
    note: Callable[..., None]  # note(kind, **fields): make an event; every fallback is one


@dataclass(frozen=True)
class Ask:
    """One client's part in a step; `config` travels to it."""

    client: int
    config: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One exchange inside a round: the only thing a driver or selector can make happen."""

    asks: tuple[Ask, ...]
    kind: str = "train"  # the client program
    model: bool = True  # send model and broadcast
    combine: bool = True  # the reports make a new model
    source: Literal["server", "peer"] = "server"  # who hands the model over, and is charged for it
    sink: Literal["server", "peer"] = "server"  # a peer's hop is charged once, to the one who receives

    def __post_init__(self) -> None:
        ids = [ask.client for ask in self.asks]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a step asks a client twice: {sorted(ids)}")


@dataclass(frozen=True)
class Outcome:
    """What became of a step: open halves of the reports that arrived, and who is missing."""

    step: Step
    at: int
    reports: tuple[Report, ...]
    missing: tuple[int, ...]


Steps = Generator[Step, Outcome, None]
Choice = Sequence[int] | Generator[Step, Outcome, Sequence[int]]  # a selector may yield probe steps first


def chosen(choice: Choice) -> Generator[Step, Outcome, list[int]]:
    """Let a selector finish, whether it probes or answers at once."""
    ids = (yield from choice) if isinstance(choice, Generator) else choice
    return [int(i) for i in ids]


class Selector(Part):
    """Which clients train."""

    needs: ClassVar[frozenset[str]] = frozenset()  # of the roster: "sizes", "counts", "speeds"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({})  # probes, by Step.kind

    @property
    def parts(self) -> Sequence[LocalPart]:
        """Meters this selector wants at the clients."""
        return ()

    def init(self, view: View) -> Any:
        """Make the state: a dataclass of arrays and plain values, mutated in place, saved with every checkpoint."""
        return None

    def select(self, state: Any, view: View) -> Choice:
        """Give the ids of this round; yield a `Step` to probe first."""
        raise NotImplementedError

    def feedback(self, state: Any, view: View, outcomes: Sequence[Outcome]) -> None:
        """Learn from the round."""


class Driver(Part):
    """The shape of a round: which steps, in which order."""

    needs: ClassVar[frozenset[str]] = frozenset()
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({})

    @property
    def parts(self) -> Sequence[LocalPart]:
        """Meters this driver wants at the clients."""
        return ()

    def init(self, view: View) -> Any:
        """Make the state."""
        return None

    def round(self, state: Any, view: View, select: Callable[[], Choice]) -> Steps:
        """Yield the steps of one round."""
        raise NotImplementedError


class Arrived(Protocol):
    """The reports of a step, as much of them as the server may see."""

    @property
    def reports(self) -> Sequence[Report]:
        """Open halves."""

    def sum(self, weights: Sequence[float] | np.ndarray) -> Sums:
        """Give the weighted sum of what the clients sent, one weight a report."""

    def each(self) -> Sequence[Report]:
        """Give whole reports, one by one; refused where aggregation is masked."""


class Combiner(Part):
    """How updates become one."""

    individual: ClassVar[bool] = False  # True: calls `each`, and is refused under masked aggregation

    def init(self, view: View) -> Any:
        """Make the state."""
        return None

    def combine(self, state: Any, view: View, model: Model, arrived: Arrived) -> Sums:
        """Give the combined update: `total["update"]` is added to the model."""
        raise NotImplementedError


class ServerPart(Part):
    """A server step, or the server half of a correction.

    The proposal starts as model + combined update; each server part in turn may change it.
    """

    def init(self, view: View, model: Model) -> Any:
        """Make the state."""
        return None

    def broadcast(self, state: Any) -> Tensors:
        """Give what travels with the model; the client half finds it in `visit.down`."""
        return {}

    def step(self, state: Any, view: View, model: Model, proposal: Model, sums: Sums) -> Model:
        """Give the next proposal, from the model that was sent, the proposal so far and the sums."""
        return proposal

    def scored(self, state: Any, model: Model) -> Model:
        """Give the model to evaluate, where that is not the one to train on."""
        return model


class System(Part):
    """Devices and network: who is available, whose report arrives."""

    def available(self, view: View) -> np.ndarray:
        """Give the eligible ids that can be asked this round."""
        return view.eligible

    def lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Give the clients whose report is lost after they did the work; `turn` counts steps of this kind."""
        return set()


class Engine(Protocol):
    """Where visits happen: lanes on this machine, or real sites."""

    device: str  # where models are evaluated

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks; give the open half of every report, in task order."""

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent: the only road to `Report.summed`."""

    def each(self) -> Mapping[int, Report]:
        """Give the last step's reports whole."""

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Commit the state of the clients whose report counted; forget the others' new state."""

    def keeps(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Give the state of every client that has any, with the step it is from, for the checkpoint."""

    def restore(self, keeps: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Take client state back from a checkpoint."""

    def close(self) -> None:
        """End lanes and free memory."""
