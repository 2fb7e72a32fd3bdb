"""The client side of a plan: what a part may do inside one client update of one client.

A *client update* is one task at one client, a pure function (task, client state) -> (report, new client state).
A *trainer* (`trainer.py`) is one resident model replica that makes one client update after another. All that differs
between clients lives in the trainer's static buffers, so that the local step of any composed method is one function
over fixed addresses: it can run eagerly, be captured and replayed, or be batched over clients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done, Program
from fedstrata.core.contract import broken, describe
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.inputs import Inputs
from fedstrata.core.messages import WHOLE, Fragment, Slot, Tensors, Value
from fedstrata.core.part import Part
from fedstrata.core.rng import Streams

if TYPE_CHECKING:
    from fedstrata.core.sampler import Sampler


@dataclass(frozen=True)
class Client:
    """One client as its own parts see it. Parts speak of positions 0..n-1; only the trainer knows rows.

    Attributes
    ----------
    id
        From 0.
    rows
        Of its samples in the resident data.
    labels
        Class index of each of its samples, by position.
    classes
        How many labels there are at all clients.
    speed
        Relative capacity of its device.
    """

    id: int
    rows: np.ndarray
    labels: np.ndarray
    classes: int
    speed: float = 1.0

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self.rows)


@dataclass(frozen=True)
class Order:
    """Which samples a client trains on, in which order.

    Attributes
    ----------
    epochs
        Positions, one array an epoch.
    batch_size
        How many positions make a batch; the last one of an epoch may be smaller.
    metrics
        Numbers for the report.
    client_state
        What the sampler keeps at the client until its next update.
    samples
        That the report stands for; None: all of the client's.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Order
    >>> Order((np.array([2, 0, 1]), np.array([1, 2, 0])), batch_size=2).batch_size
    2
    """

    epochs: tuple[np.ndarray, ...]
    batch_size: int
    metrics: Mapping[str, Value] = field(default_factory=dict)
    client_state: Tensors = field(default_factory=dict)
    samples: int | None = None

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


class LocalPart(Part):
    """A correction, a meter or a local optimizer. Override what you need; `own` holds the slots you declared.

    `edit_logits`, `add_loss`, `observe` and `edit_gradient` run inside the local step, which may be captured: no host
    read (`float`, `.item()`, boolean masks), no data-dependent shape, the same operations whatever the client.
    `edit_logits` and `add_loss` are pure; writing is for `observe` and `edit_gradient`. `check_correction` checks all
    this.

    Attributes
    ----------
    opens_tensors
        True: `finish` gives `open_tensors`, which is refused under masked aggregation.

    Examples
    --------
    A meter, which a part at the server asks for in `meters`:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> import fedstrata
    >>> from fedstrata import Done, LocalPart, Selector, Slot
    >>> @dataclass(frozen=True)
    ... class LargestLoss(LocalPart):
    ...     '''Reports the largest loss of a sample.'''
    ...
    ...     def declare_slots(self, space):
    ...         return {"most": Slot()}
    ...
    ...     def fill(self, own, buf, context):
    ...         own["most"].zero_()
    ...
    ...     def observe(self, own, buf, batch):
    ...         own["most"].copy_(torch.maximum(own["most"], (batch.each * batch.weight.sign()).max()))
    ...
    ...     def finish(self, own, buf, context):
    ...         return Done(metrics={"largest_loss": own["most"].clone()})
    >>> @dataclass(frozen=True)
    ... class FirstOnes(Selector):
    ...     '''The first clients train, and say how large their losses are.'''
    ...
    ...     def meters(self, others):
    ...         return (LargestLoss(),)
    ...
    ...     def select(self, state, view):
    ...         return view.eligible[: view.k].tolist()
    >>> run = fedstrata.train(overrides={"method.selector": FirstOnes(), "train.rounds": 1})
    >>> step = run.events()[-1]["steps"][0]
    >>> sorted(step["metrics"]["0"])
    ['largest_loss']
    """

    opens_tensors: ClassVar[bool] = False

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare static buffers: what differs between clients goes into them.

        Parameters
        ----------
        space
            Layout of the model.

        Returns
        -------
        Mapping
            Slots by name.
        """
        return {}

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what `finish` adds to the summed half of the report.

        Parameters
        ----------
        space
            Layout of the model.

        Returns
        -------
        Mapping
            Slots by name.
        """
        return {}

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what stays with the client between client updates; zeros before the first.

        Parameters
        ----------
        space
            Layout of the model.

        Returns
        -------
        Mapping
            Slots by name.
        """
        return {}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Write this client update's values into the slots, on the host.

        Parameters
        ----------
        own
            The declared slots, with what the client before left in them.
        buf
            Buffers of the local step; `buf.w0` is the received model.
        context
            The client and its task.
        """

    def edit_logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Change the logits before the loss.

        Parameters
        ----------
        own, buf
            As in `fill`.
        logits
            Of the batch.

        Returns
        -------
        Tensor
            New logits; the old ones are not changed in place.
        """
        return logits

    def add_loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor | None:
        """Add a term to the loss.

        Parameters
        ----------
        own, buf
            As in `fill`.
        batch
            Padded samples have weight 0.

        Returns
        -------
        Tensor or None
            The term, one number.
        """
        return None

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Accumulate into own slots after the backward pass.

        Parameters
        ----------
        own, buf, batch
            As in `add_loss`.
        """

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Edit the gradient `buf.g` in place; an optimizer moves `buf.w`.

        Parameters
        ----------
        own, buf
            As in `fill`.
        rate
            Step size.
        """

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Report after the last step, without a host read.

        Parameters
        ----------
        own, buf, context
            As in `fill`; `buf.w - buf.w0` is the update.

        Returns
        -------
        Done
            With copies: the buffers serve the next client.
        """
        return Done()


class Correction(LocalPart):
    """How the local step is held back; or a meter, which only looks on.

    Several corrections work in one plan, in the order of their list.

    Write the hooks of `LocalPart` that it needs; for a server half, derive from `ServerStep` as well.
    `check_correction` checks it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Tether(fedstrata.Correction):
    ...     '''Weights are drawn back to the received model.'''
    ...
    ...     strength: fedstrata.options.NonNegative = 0.1
    ...
    ...     def edit_gradient(self, own, buf, rate):
    ...         buf.g.add_(buf.w - buf.w0, alpha=self.strength)
    >>> run = fedstrata.train(overrides={"method.corrections": [Tether(0.5)], "train.rounds": 1})
    >>> run.summary["rounds"]
    1
    """


class Optimizer(LocalPart):
    """How weights follow a gradient: `step` and, if it remembers, `declare_memory` are all there is to write.

    `check_correction(part, optimizer=True)` checks it.

    Attributes
    ----------
    state
        What it remembers between steps is forgotten at the end of a client update ("fresh"), stays with the client
        ("kept"), or travels with the model ("carried"). Memory that came with the model always goes back with it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Signs(fedstrata.Optimizer):
    ...     '''Every weight moves by the step size, against the sign of its gradient.'''
    ...
    ...     def step(self, own, w, g, rate):
    ...         w.sub_(g.sign_().mul_(rate))
    >>> run = fedstrata.train(overrides={"train.optimizer": Signs(), "train.lr": 0.01, "train.rounds": 1})
    >>> run.summary["rounds"]
    1
    """

    state: Literal["fresh", "kept", "carried"] = "fresh"

    def declare_memory(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Declare what is remembered between steps; zeros before the first.

        Parameters
        ----------
        space
            Layout of the model.

        Returns
        -------
        Mapping
            Slots by name.
        """
        return {}

    @abstractmethod
    def step(self, own: Tensors, w: Tensor, g: Tensor, rate: Tensor) -> None:
        """Move the weights, in place.

        Parameters
        ----------
        own
            The declared memory, to be changed in place.
        w
            Weights, flat.
        g
            Their gradient; it may be used up.
        rate
            Step size.
        """
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
        return self.step(own, buf.w, buf.g, rate)  # nothing: whatever else it gives is refused

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Give the memory to whom it belongs."""
        return Done(
            aggregated={name: slot for name, slot in own.items() if name in context.down or self.state == "carried"},
            client_state=own if self.state == "kept" else {},
        )


class LRSchedule(Part):
    """A factor on the clients' step size `train.lr`, by time.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class WarmUp(fedstrata.LRSchedule):
    ...     '''The rate grows over the first rounds.'''
    ...
    ...     over: fedstrata.options.Count = 5
    ...
    ...     def factor(self, round, rounds, unit=1.0):
    ...         return min(1.0, (round + unit) / self.over)
    >>> [WarmUp(4).factor(round, rounds=50) for round in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    >>> run = fedstrata.train(overrides={"train.lr_schedule": WarmUp(), "train.rounds": 1})
    """

    def factor(self, round: float, rounds: int, unit: float = 1.0) -> float:
        """Return the factor at a time.

        Parameters
        ----------
        round
            The time in rounds, from 0; a fraction where a round has several steps.
        rounds
            How many the run has.
        unit
            The time between two steps of the schedule.

        Returns
        -------
        float
        """
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
