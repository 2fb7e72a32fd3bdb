"""The client side of a plan: what a part may do inside one client update of one client.

A *client update* is one task at one client, a pure function (task, client state) -> (report, new client state).
A *trainer* (`trainer.py`) is one resident model replica that makes one client update after another. All that differs
between clients lives in the trainer's static buffers, so that the local step of any composed method is one function
over fixed addresses: it can run eagerly, be captured and replayed, or be batched over clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.contract import broken, describe
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import WHOLE, Fragment, Slot, Task, Tensors, Value, fast_replace, scope
from fedstrata.core.part import Part
from fedstrata.core.rng import Rng, Streams


@dataclass(frozen=True)
class Client:
    """One client as its own parts see it. Parts speak of positions 0..n-1; only the trainer knows rows."""

    id: int
    rows: np.ndarray  # into the resident data
    labels: np.ndarray
    classes: int
    speed: float = 1.0

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self.rows)


Of = Literal["loss", "gradient", "head-gradient"]  # in what samples may differ: gradients of all layers, or of the last


class SampleScores(NamedTuple):
    """How the received model does on a client's own samples, in eval mode."""

    losses: np.ndarray
    probabilities: np.ndarray


class Gradient(NamedTuple):
    """Of the sum of some samples' losses, under the received model."""

    sum: Tensor
    loss: Tensor  # mean over the samples


@dataclass
class ProbeWork:
    """What looking at samples cost: those that went forward and back; forward alone is about a third of that."""

    samples: float = 0.0


class Draw(Protocol):
    """A client's random streams."""

    def __call__(self, purpose: str, *, round: int = ..., step: int = ...) -> Rng:
        """Return the stream of this client update, keyed (seed, purpose, round, step, client).

        Another `round` or `step` gives one that outlives it.
        """


@dataclass(frozen=True)
class ClientContext:
    """One task at one client: everything a client-side part may look at."""

    client: Client
    task: Task
    client_state: Tensors  # this client's own state, read only; scoped to the part that asks
    down: Tensors  # the server's broadcast, likewise
    epochs: int
    batch_size: int
    rate: float  # step size of this round
    rng: Draw
    score_samples: Callable[
        ..., SampleScores
    ]  # scores samples(positions=None): all samples, or those at some positions
    gradient: Callable[[np.ndarray], Gradient]  # of the samples at some positions, in training mode
    sample_variance: Callable[[Of, np.ndarray | None], float]  # how much samples differ under the received model
    rounds: int = 1
    planned: int = 0  # size of its batches, known once the sampler has planned
    steps: int = 0  # likewise
    rate_sum: float = 0.0
    probe_work: ProbeWork = field(default_factory=ProbeWork)

    def batch(self) -> np.ndarray:
        """Draw one batch to look at; of equal size, it is the same in a probe and in the training that follows."""
        samples = self.client.samples
        size = min(self.planned or self.batch_size, samples)
        return np.sort(self.rng("probe").choice(samples, size, replace=False))

    def batch_variance(self, of: Of) -> float:
        """Tell how much the samples of one batch differ under the received model, in eval mode."""
        return self.sample_variance(of, self.batch())

    def scope(self, part: str) -> ClientContext:
        """Show a part its own state and broadcast under its own names."""
        if not any("/" in name for names in (self.client_state, self.down) for name in names):
            return self
        return fast_replace(self, client_state=scope(self.client_state, part), down=scope(self.down, part))


@dataclass(frozen=True)
class Order:
    """Which samples a client trains on, in which order: positions, one array an epoch."""

    epochs: tuple[np.ndarray, ...]
    batch_size: int
    metrics: Mapping[str, Value] = field(default_factory=dict)
    client_state: Tensors = field(default_factory=dict)
    samples: int | None = None  # that the report stands for; None: all of the client's

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, tuple | list):
            said = "a tuple with one array of positions for every epoch, such as Order((np.arange(8),), batch_size=4)"
            raise ValueError(f"Order: epochs is {said}, not {type(self.epochs).__name__}")
        if not all(type(epoch) is np.ndarray and epoch.dtype.kind in "iu" for epoch in self.epochs):
            object.__setattr__(self, "epochs", tuple(_positions(epoch) for epoch in self.epochs))
        if any(epoch.ndim != 1 for epoch in self.epochs):
            raise ValueError("Order: an epoch is a row of positions, one after another")
        if self.batch_size < 1 and any(len(epoch) for epoch in self.epochs):
            raise ValueError(f"Order: batch_size = {self.batch_size}; allowed: a whole number from 1")


def _positions(epoch: Any) -> np.ndarray:
    """Read positions from a list; a mask or fractions are none."""
    array = np.asarray(epoch)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"Order: positions are whole numbers from 0, not {array.dtype}; of a mask, np.flatnonzero")
    return array.astype(np.int64)


@dataclass(frozen=True)
class Done:
    """What a part or a program gives back at the end of a client update."""

    metrics: Mapping[str, Value | Tensor] = field(default_factory=dict)  # open numbers; 0-d tensors are read later
    aggregated: Tensors = field(default_factory=dict)  # only their weighted sum reaches the server
    open_tensors: Tensors = field(default_factory=dict)  # open tensors
    client_state: Tensors = field(default_factory=dict)  # this client's new state
    samples: int | None = None  # that the report stands for; None: all of the client's
    loss: Tensor | float = 0.0  # their mean loss
    work: float = 0.0  # samples that went through the model, forward and back, beside those that were looked at


@dataclass
class Buffers:
    """All that the local step touches. Shapes and addresses are fixed; contents are filled before a client update."""

    x: Tensor  # resident data, all clients
    y: Tensor
    w: Tensor  # weights, flat
    g: Tensor  # gradient, flat; the module's .grad are views
    b: Tensor  # norm statistics and other float buffers, flat
    w0: Tensor  # the model as received
    b0: Tensor
    index: Tensor  # ring of batches: [ring, width] rows of the data
    weight: Tensor  # [ring, width] sample weights; 0 is padding
    keys: Tensor  # [ring, width] what each sample's random bits are made of
    rate: Tensor  # [ring] step sizes
    t: Tensor  # [1] local step
    loss: Tensor  # [] sum of cross-entropies so far
    head: slice
    at: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (params, buffers, x) -> features, logits; eval


class Batch(NamedTuple):
    """One batch inside the local step."""

    x: Tensor
    y: Tensor
    weight: Tensor
    features: Tensor  # input of the head
    logits: Tensor
    each: Tensor  # cross-entropy of every sample


class LocalPart(Part):
    """A correction, a meter or a local optimizer. Override what you need; `own` holds the slots you declared.

    `logits`, `loss`, `observe` and `grad` run inside the local step, which may be captured: no host read
    (`float`, `.item()`, boolean masks), no data-dependent shape, the same operations whatever the client.
    `logits` and `loss` are pure; writing is for `observe` and `grad`.
    `fedstrata.testing.check_correction` checks all this.
    """

    opens_tensors: ClassVar[bool] = False  # True: `finish` shows tensors, which is refused under masked aggregation

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare static buffers."""
        return {}

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what `finish` adds to the summed half of the report."""
        return {}

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what stays with the client between client updates; zeros before the first."""
        return {}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Write this client update's values into the slots, on the host."""

    def edit_logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Change the logits before the loss."""
        return logits

    def add_loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor | None:
        """Add a term to the loss."""
        return None

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Accumulate into own slots after the backward pass."""

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Edit the gradient `buf.g`; an optimizer moves `buf.w`."""

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Report after the last step, without a host read. Give copies: the buffers serve the next client."""
        return Done()


class Correction(LocalPart):
    """How the local step is held back; or a meter, which only looks on.

    Several corrections work in one plan, in the order of their list.
    """


class Sampler(Part):
    """Which of a client's samples, in which order."""

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """Largest batch this sampler may ask for, from the largest client's samples and the fastest one's speed."""
        return min(batch_size, largest)

    def plan(self, context: ClientContext) -> Order:
        """Return the order of this client update.

        `context.score_samples()` costs one forward pass over the client's data.
        """
        raise NotImplementedError

    @property
    def programs(self) -> Mapping[str, Program]:
        """What a client can do with its samples beside training on them, by `Step.kind`."""
        return {}


Program = Callable[[ClientContext], Done]  # what a client does for a task that is not training: a probe, a reservation


class Optimizer(LocalPart):
    """How weights follow a gradient: `slots` and `move` are all there is to write.

    What it remembers between steps is forgotten at the end of a client update (`fresh`), stays with the client
    (`kept`), or travels with the model (`carried`). Memory that came with the model always goes back with it.
    """

    state: Literal["fresh", "kept", "carried"] = "fresh"

    def declare_memory(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what is remembered between steps; zeros before the first."""
        return {}

    def step(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Move the weights `w`, in place; `g` may be used up."""
        raise NotImplementedError

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the memory."""
        return self.declare_memory(space)

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Keep it at the client, if asked for."""
        return self.declare_memory(space) if self.state == "kept" else {}

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Send it on, if asked for."""
        return self.declare_memory(space) if self.state == "carried" else {}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Start from what came with the model, from what was kept, or at rest."""
        for name, slot in own.items():
            before = context.down.get(name, context.client_state.get(name) if self.state == "kept" else None)
            if before is None:
                slot.zero_()
            else:
                slot.copy_(before)

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Move the trainer's weights."""
        self.step(own, buf.w, buf.g, rate)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Return the memory to whom it belongs."""
        return Done(
            aggregated={name: slot for name, slot in own.items() if name in context.down or self.state == "carried"},
            client_state=own if self.state == "kept" else {},
        )


class LRSchedule(Part):
    """A factor on the base rate, by share of the run."""

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Return the factor at a time in rounds from 0; `unit` is the time between two steps of the schedule."""
        return 1.0


@dataclass(frozen=True)
class LearningRate:
    """Step size by time: a base rate under a schedule."""

    base: float
    schedule: LRSchedule
    rounds: int

    def at(self, round: int, part: Fragment = WHOLE) -> float:
        """Return the step size of a round, or of one of its equal parts."""
        place, parts = part
        factor: float = self.schedule.factor(round + place / parts, self.rounds, 1 / parts)
        if not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
            allowed = "a finite number from 0, by which train.lr is multiplied"
            raise broken(self.schedule, "factor", f"gave {describe(factor)} in round {round + 1}; allowed: {allowed}")
        return self.base * factor


@dataclass(frozen=True)
class ClientPlan:
    """The client side of a plan, whole: rebuilt at every trainer and site from the experiment."""

    build: Callable[[], nn.Module]
    head: str
    inputs: Inputs
    sampler: Sampler
    parts: Mapping[str, LocalPart]  # corrections and meters, in order; the name scopes their tensors
    optimizer: Optimizer
    programs: Mapping[str, Program]
    epochs: int
    batch_size: int
    rate: LearningRate
    streams: Streams
    dtype: torch.dtype
    rounds: int = 1
    half: bool = False  # layers compute in bfloat16, weights stay as they are

    @property
    def chain(self) -> dict[str, LocalPart]:
        """Parts in the order of their gradient hooks: the optimizer is last."""
        return {**self.parts, "optimizer": self.optimizer}
