"""The client side of a plan: what a part may do inside one visit of one client.

A *visit* is one task at one client, a pure function (task, client state) -> (report, new client state).
A *lane* (`lane.py`) is one resident model replica that makes one visit after another. All that differs between
clients lives in the lane's static buffers, so that the local step of any composed method is one function
over fixed addresses: it can run eagerly, be captured and replayed, or be batched over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.flat_model import Space
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import WHOLE, Fragment, Slot, Task, Tensors, Value, scoped
from fedstrata.core.part import Part
from fedstrata.core.records import revised
from fedstrata.core.rng import Rng, Streams


@dataclass(frozen=True)
class Client:
    """One client as its own parts see it. Parts speak of positions 0..n-1; only the lane knows rows."""

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


class Peek(NamedTuple):
    """How the received model does on a client's own samples, in eval mode."""

    losses: np.ndarray
    probabilities: np.ndarray


class Gradient(NamedTuple):
    """Of the sum of some samples' losses, under the received model."""

    sum: Tensor
    loss: Tensor  # mean over the samples


class Draw(Protocol):
    """A client's random streams."""

    def __call__(self, purpose: str, *, round: int = ..., step: int = ...) -> Rng:
        """Give the stream of this visit, keyed (seed, purpose, round, step, client); or one that outlives it."""


@dataclass(frozen=True)
class Visit:
    """One task at one client: everything a client-side part may look at."""

    client: Client
    task: Task
    keep: Tensors  # this client's own state, read only; scoped to the part that asks
    down: Tensors  # the server's broadcast, likewise
    epochs: int
    batch_size: int
    rate: float  # step size of this round
    rng: Draw
    peek: Callable[..., Peek]  # peek(positions=None): all samples, or those at some positions
    gradient: Callable[[np.ndarray], Gradient]  # of the samples at some positions, in training mode
    spread: Callable[[Of, np.ndarray | None], float]  # how much samples differ under the received model
    rounds: int = 1
    planned: int = 0  # size of its batches, known once the sampler has planned
    steps: int = 0  # likewise
    rate_sum: float = 0.0

    def batch(self) -> np.ndarray:
        """Draw one batch to look at; of equal size, it is the same in a probe and in the training that follows."""
        samples = self.client.samples
        size = min(self.planned or self.batch_size, samples)
        return np.sort(self.rng("probe").choice(samples, size, replace=False))

    def variance(self, of: Of) -> float:
        """Tell how much the samples of one batch differ under the received model, in eval mode."""
        return self.spread(of, self.batch())

    def scoped(self, part: str) -> Visit:
        """Show a part its own state and broadcast under its own names."""
        if not any("/" in name for names in (self.keep, self.down) for name in names):
            return self
        return revised(self, keep=scoped(self.keep, part), down=scoped(self.down, part))


@dataclass(frozen=True)
class Order:
    """Which samples a client trains on, in which order: positions, one array an epoch."""

    epochs: tuple[np.ndarray, ...]
    batch_size: int
    meta: Mapping[str, Value] = field(default_factory=dict)
    keep: Tensors = field(default_factory=dict)
    samples: int | None = None  # that the report stands for; None: all of the client's


@dataclass(frozen=True)
class Done:
    """What a part or a program gives back at the end of a visit."""

    meta: Mapping[str, Value | Tensor] = field(default_factory=dict)  # open numbers; 0-d tensors are read later
    summed: Tensors = field(default_factory=dict)  # only their weighted sum reaches the server
    shown: Tensors = field(default_factory=dict)  # open tensors
    keep: Tensors = field(default_factory=dict)  # this client's new state
    samples: int | None = None  # that the report stands for; None: all of the client's
    loss: Tensor | float = 0.0  # their mean loss
    work: float = 0.0  # samples that went through the model, forward and back, beside those that were looked at


@dataclass
class Buffers:
    """All that the local step touches. Shapes and addresses are fixed; contents are filled before a visit."""

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
    `fedstrata.testing.check_local_part` checks all this.
    """

    shows: ClassVar[bool] = False  # True: `finish` shows tensors, which is refused under masked aggregation

    def lane(self, space: Space) -> Mapping[str, Slot]:
        """Declare static buffers."""
        return {}

    def up(self, space: Space) -> Mapping[str, Slot]:
        """Declare what `finish` adds to the summed half of the report."""
        return {}

    def keep(self, space: Space) -> Mapping[str, Slot]:
        """Declare what stays with the client between visits; zeros before the first."""
        return {}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        """Write this visit's values into the slots, on the host."""

    def logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Change the logits before the loss."""
        return logits

    def loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor | None:
        """Add a term to the loss."""
        return None

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Accumulate into own slots after the backward pass."""

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Edit the gradient `buf.g`; an optimizer moves `buf.w`."""

    def finish(self, own: Tensors, buf: Buffers, visit: Visit) -> Done:
        """Report after the last step, without a host read. Give copies: the buffers serve the next client."""
        return Done()


class Sampler(Part):
    """Which of a client's samples, in which order."""

    def width(self, batch_size: int, largest: int, fastest: float = 1.0) -> int:
        """Largest batch this sampler may ask for, from the largest client's samples and the fastest one's speed."""
        return min(batch_size, largest)

    def plan(self, visit: Visit) -> Order:
        """Give the order of this visit; `visit.peek()` costs one forward pass over the client's data."""
        raise NotImplementedError

    @property
    def programs(self) -> Mapping[str, Program]:
        """What a client can do with its samples beside training on them, by `Step.kind`."""
        return {}


Program = Callable[[Visit], Done]  # what a client does for a task that is not training: a probe, a reservation


class Optimizer(LocalPart):
    """How weights follow a gradient: `slots` and `move` are all there is to write.

    What it remembers between steps is forgotten at the end of a visit (`fresh`), stays with the client (`kept`), or
    travels with the model (`carried`). Memory that came with the model always goes back with it.
    """

    state: Literal["fresh", "kept", "carried"] = "fresh"

    def slots(self, space: Space) -> Mapping[str, Slot]:
        """Declare what is remembered between steps; zeros before the first."""
        return {}

    def move(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Move the weights `w`, in place; `g` may be used up."""
        raise NotImplementedError

    def lane(self, space: Space) -> Mapping[str, Slot]:
        """Hold the memory."""
        return self.slots(space)

    def keep(self, space: Space) -> Mapping[str, Slot]:
        """Keep it at the client, if asked for."""
        return self.slots(space) if self.state == "kept" else {}

    def up(self, space: Space) -> Mapping[str, Slot]:
        """Send it on, if asked for."""
        return self.slots(space) if self.state == "carried" else {}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        """Start from what came with the model, from what was kept, or at rest."""
        for name, slot in own.items():
            before = visit.down.get(name, visit.keep.get(name) if self.state == "kept" else None)
            if before is None:
                slot.zero_()
            else:
                slot.copy_(before)

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Move the lane's weights."""
        self.move(own, buf.w, buf.g, rate)

    def finish(self, own: Tensors, buf: Buffers, visit: Visit) -> Done:
        """Give the memory to whom it belongs."""
        return Done(
            summed={name: slot for name, slot in own.items() if name in visit.down or self.state == "carried"},
            keep=own if self.state == "kept" else {},
        )


class Rate(Protocol):
    """Step size by time."""

    def at(self, round: int, part: Fragment = WHOLE) -> float:
        """Give the step size of a round, or of one of its equal parts."""


@dataclass(frozen=True)
class Local:
    """The client side of a plan, whole: rebuilt at every lane and site from the experiment."""

    build: Callable[[], nn.Module]
    head: str
    inputs: Inputs
    sampler: Sampler
    parts: Mapping[str, LocalPart]  # corrections and meters, in order; the name scopes their tensors
    optimizer: Optimizer
    programs: Mapping[str, Program]
    epochs: int
    batch_size: int
    rate: Rate
    streams: Streams
    dtype: torch.dtype
    rounds: int = 1
    half: bool = False  # layers compute in bfloat16, weights stay as they are

    @property
    def chain(self) -> dict[str, LocalPart]:
        """Parts in the order of their gradient hooks: the optimizer is last."""
        return {**self.parts, "optimizer": self.optimizer}
