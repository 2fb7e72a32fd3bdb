"""The server side of a plan: drivers, selectors, combiners, server steps, and what they may see.

A driver or selector is a generator of `Step`s; the loop plays a step and sends its `Outcome` back. Probing,
chains, several exchanges inside a round are only different sequences of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from fedstrata.core.batch_norm import By
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import LocalPart, Program, Sampler
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import WHOLE, Fragment, Report, Sums, Tensors, Value
from fedstrata.core.part import Part
from fedstrata.core.rng import Rng

BY_CHOICE = 'engine.execution = "messages"'  # why client updates are not executed as one: the user said so


@dataclass(frozen=True)
class View:
    """What a server-side part sees of a round."""

    round: int
    rounds: int
    k: int  # clients wanted in this round
    eligible: np.ndarray  # ids that hold data and are available
    client_info: ClientInfo
    space: ParameterSpace
    rng: Callable[..., Rng]  # rng(purpose, step=0, client=-1), keyed with seed and round
    note: Callable[..., None]  # note(kind, **fields): make an event; every fallback is one
    batch_size: int = 1
    epochs: int = 1
    needed: int = 0  # clients wanted in this round before some were asked in reserve
    clock: float = 0.0  # virtual seconds since the run began
    decay: float = 1.0  # this round's step size at the clients, over that of the first
    why_not_fused: str | None = None  # why client updates cannot be executed as one (`FusedSteps`), or None
    part: Fragment = WHOLE  # where in the round the present step is
    fewest: int = 1  # clients whose reports can be summed


@dataclass(frozen=True)
class Scores:
    """How a model does: figures for the log, and the accuracy of each client that was asked, on its own test data."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[int, float] = field(default_factory=dict)


Evaluate = Callable[[FlatModel, View], Scores]  # how a model does in a round; without scores, it was not its turn


@dataclass(frozen=True)
class Ask:
    """One client's part in a step."""

    client: int
    config: Mapping[str, Value] = field(default_factory=dict)  # travels to it; "epochs" changes how long it trains
    weight: float = 1.0  # how often its report counts, for combiners; stays at the server, like
    chance: float | None = None  # how likely it was to be asked

    def __post_init__(self) -> None:
        if type(self.client) is not int:
            try:
                object.__setattr__(self, "client", index(self.client))  # a number of numpy's does not travel
            except TypeError:
                raise ValueError(f"Ask({self.client!r:.60}): a client is named by its id, a whole number") from None
        if not isinstance(self.config, Mapping):
            raise ValueError(f"Ask({self.client}, {self.config!r:.60}): config maps names to values that travel to it")


@dataclass(frozen=True)
class FusedSteps:
    """Many steps whose course is known before they are played, so that an engine may execute them as one.

    Each client's sampler still says which of its samples come, and in which order; here stands whose turn it is.
    What the single steps would have sent is charged as if they had been played.
    """

    who: np.ndarray  # of each client update, in order: a place in `Step.asks`
    runs: np.ndarray  # of each client update: samples
    turns: np.ndarray  # of each client update: which step of its kind it would have been part of
    sizes: np.ndarray  # samples of each batch
    parts: np.ndarray  # of each batch: when in the round, out of `Step.part[1]`
    handed: tuple[int, int, int]  # models (or updates of that size) that went down, up, and from peer to peer
    told: tuple[int, int]  # bytes beside, down and up


@dataclass(frozen=True)
class Step:
    """One exchange inside a round: the only thing a driver or selector can make happen."""

    asks: tuple[Ask, ...]
    kind: str = "train"  # the client program
    model: bool = True  # send model and broadcast
    buffers: bool = True  # send norm statistics with the model
    combine: bool = True  # the reports make a new model
    source: Literal["server", "peer"] = "server"  # who hands the model over, and is charged for it
    sink: Literal["server", "peer"] = "server"  # a peer's hop is charged once, to the one who receives
    together: By | None = None  # clients meet while they compute: how their norm statistics are averaged
    fused: FusedSteps | None = None
    part: Fragment = WHOLE  # where in the round this is: moves learning rates

    def __post_init__(self) -> None:
        if type(self.asks) is not tuple:
            if not isinstance(self.asks, Iterable):
                raise ValueError(f"a step is made of a tuple of Asks, not of {self.asks!r:.60}")
            object.__setattr__(self, "asks", tuple(self.asks))
        if strange := [ask for ask in self.asks if not isinstance(ask, Ask)]:
            raise ValueError(f"a step is made of Asks, and {strange[0]!r:.60} is none; a client is asked by Ask(id)")
        ids = [ask.client for ask in self.asks]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a step asks a client twice: {sorted(ids)}")

    def count_updates(self, clients: Sequence[int]) -> list[int]:
        """Say for how many client updates each of these clients stands: one, unless the step stands for many."""
        if self.fused is None:
            return [1] * len(clients)
        counts = np.bincount(self.fused.who, minlength=len(self.asks)).tolist()
        client_updates = dict(zip((ask.client for ask in self.asks), counts, strict=True))
        return [client_updates[client] for client in clients]


@dataclass(frozen=True)
class Outcome:
    """What became of a step: open halves of the reports that arrived, and who is missing."""

    step: Step
    at: int
    reports: tuple[Report, ...]
    missing: tuple[int, ...]
    seconds: float = 0.0  # on the virtual clock
    bytes_up: int = 0
    bytes_down: int = 0


Steps = Generator[Step, Outcome, None]
Chosen = Sequence[int | Ask]
Choice = Chosen | Generator[Step, Outcome, Chosen]  # a selector may yield probe steps first
Asking = Generator[Step, Outcome, list[Ask]]
Select = Callable[[], Asking]  # what a driver gets of a selector: `asks = yield from select()`


class ServerSide(Part):
    """What a part of the server may ask of the clients."""

    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({})  # probes, by Step.kind
    individual: ClassVar[bool] = False  # True: sees whole updates, and is refused under masked aggregation

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Name what this part reads in the `metrics` of every report of a kind of step: one without it is none."""
        return ()

    @property
    def reads(self) -> str | None:
        """Say in words what this part learns of single clients from their reports; None: nothing."""
        return "every client's whole update" if self.individual else None

    @property
    def needs(self) -> frozenset[str]:
        """What this part reads of the client info: "sizes", "labels", "totals", "counts", "speeds"."""
        return frozenset()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Local parts this part wants at the clients, beside what is there, to report what it reads."""
        return ()


class Selector(ServerSide):
    """Which clients train."""

    tells_chances: ClassVar[bool] = False  # True: every `Ask` says how likely it was

    def init(self, view: View) -> Any:
        """Make the state: a dataclass of arrays and plain values, mutated in place, saved with every checkpoint."""
        return None

    def select(self, state: Any, view: View) -> Choice:
        """Return the ids of this round, or `Ask`s; yield a `Step` to probe first."""
        raise NotImplementedError

    def feedback(self, state: Any, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Learn from the round. With `individual`, the outcomes hold whole reports."""


class Schedule(ServerSide):
    """Which labels the model sees next. A driver that can follows it."""

    @property
    def sampler(self) -> Sampler | None:
        """How clients find the samples that the schedule asks for; None: they are asked for nothing special."""
        return None


class Driver(ServerSide):
    """The shape of a round: which steps, in which order."""

    steps_at_server: ClassVar[bool] = False  # True: reports are gradients, and the optimizer's steps happen here
    side_by_side: ClassVar[bool] = True  # whether a step's reports are those of selected clients, from one model

    @property
    def chained(self) -> bool:
        """Whether the model goes from client to client."""
        return not self.side_by_side and not self.steps_at_server

    @property
    def together(self) -> bool:
        """Whether clients compute together, or steps are played as one.

        Workers of other processes have no part in it.
        """
        return False

    def following(self, schedule: Schedule) -> Driver:
        """Return the driver that takes its steps from a schedule of labels."""
        raise RequestError(
            'method.schedule is not followed by this method.driver; use method.driver = "chain" or "sync"'
        )

    def init(self, view: View) -> Any:
        """Make the state."""
        return None

    def round(self, state: Any, view: View, select: Select) -> Steps:
        """Yield the steps of one round; `asks = yield from select()` gives the selected clients, as `Ask`s by id."""
        raise NotImplementedError


class Arrived(Protocol):
    """The reports of a step, as much of them as the server may see."""

    @property
    def reports(self) -> Sequence[Report]:
        """Open halves."""

    @property
    def weights(self) -> np.ndarray:
        """How often each report counts: 1, unless the selector said otherwise."""

    @property
    def chances(self) -> np.ndarray:
        """How likely each client was to be asked; NaN where the selector does not say."""

    def sum(self, weights: Sequence[float] | np.ndarray) -> Sums:
        """Return the weighted sum of what the clients sent, one weight a report."""

    def each(self) -> Sequence[Report]:
        """Return whole reports, one by one; only for a combiner that is `individual`."""


class Combiner(ServerSide):
    """How updates become one."""

    def init(self, view: View) -> Any:
        """Make the state."""
        return None

    def combine(self, state: Any, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Return the combined update: `total["update"]` is added to the model."""
        raise NotImplementedError


class ServerStep(ServerSide):
    """A server step, or the server half of a correction.

    The proposal starts as model + combined update; each server part in turn may change it.
    """

    def init(self, view: View, model: FlatModel) -> Any:
        """Make the state."""
        return None

    def broadcast(self, state: Any) -> Tensors:
        """Return what travels with the model; the client half finds it in `context.down`."""
        return {}

    def lend(self, state: Any) -> Tensors:
        """Return what a worker needs that plays many steps as one, this part's among them; it is not a message."""
        return self.broadcast(state)

    def step(self, state: Any, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Return the next proposal, from the model that was sent, the proposal so far and the sums."""
        return proposal

    def model_to_evaluate(self, state: Any, model: FlatModel) -> FlatModel:
        """Return the model to evaluate, where that is not the one to train on."""
        return model


class System(ServerSide):
    """Devices and network: who is available, whose report arrives."""

    @property
    def reliable(self) -> bool:
        """Whether steps are played as asked and every report arrives."""
        return False

    def find_available(self, view: View) -> np.ndarray:
        """Return the eligible ids that can be asked this round."""
        return view.eligible

    def adapt(self, view: View, turn: int, step: Step) -> Step:
        """Change what is asked before it is sent: a slow client may be asked for less work."""
        return step

    def count_to_ask(self, k: int) -> int:
        """Return how many clients to ask where k are wanted."""
        return k

    def count_to_wait_for(self, asked: int, needed: int) -> int:
        """Return how many reports of a training step end the wait; `needed` clients are wanted in a round."""
        return asked

    def time_reports(self, view: View, step: Step, size: int, reports: Sequence[Report]) -> Sequence[Report]:
        """Write on every report how many seconds it took; `size` is the bytes of the model's message."""
        return reports

    def find_lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Return the clients whose report is lost after they did the work; `turn` counts steps of this kind."""
        return set()

    def time_step(self, view: View, step: Step, size: int, reports: Sequence[Report], lost: set[int]) -> float:
        """Return the seconds that the step took on the virtual clock."""
        return max((r.seconds for r in reports if r.client not in lost), default=0.0)
