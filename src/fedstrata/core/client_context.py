"""What a client-side part sees of one client update, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedstrata.core.messages import Task, Tensors, Value
from fedstrata.core.rng import Rng

if TYPE_CHECKING:
    from fedstrata.core.client_parts import Client


Of = Literal["loss", "gradient", "head-gradient"]  # in what samples may differ: gradients of all layers, or of the last


class SampleScores(NamedTuple):
    """How the received model does on a client's own samples, in eval mode.

    Attributes
    ----------
    losses
        Cross-entropy of each sample, [n].
    probabilities
        Of each label, [n, classes].
    """

    losses: np.ndarray
    probabilities: np.ndarray


class Gradient(NamedTuple):
    """Of the sum of some samples' losses, under the received model.

    Attributes
    ----------
    sum
        The gradient, flat.
    loss
        Mean over the samples.
    """

    sum: Tensor
    loss: Tensor


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
    """One task at one client: everything a client-side part may look at.

    Attributes
    ----------
    client
        Its samples and labels.
    task
        What the server asks for, `task.config` included.
    client_state
        This client's own state, read only; scoped to the part that asks.
    down
        The server's broadcast, likewise.
    epochs, batch_size
        How long to train, and on how many samples at a time.
    rate
        Step size of this round.
    rng
        `rng(purpose)` gives a numpy generator of this client update.
    score_samples
        `score_samples(positions=None)` gives losses and probabilities of all samples, or of those at some positions,
        under the received model. It costs one forward pass over them.
    gradient
        `gradient(positions)`, of the samples at some positions, in training mode.
    sample_variance
        `sample_variance(of, positions)`: how much samples differ under the received model in their "loss", "gradient"
        or "head-gradient"; None: all samples.
    rounds
        How many the run has.
    planned
        Size of its batches, known once the sampler has planned.
    steps
        Local steps, likewise.
    last_steps
        Those of the last epoch, likewise.
    rate_sum
        Sum of the step sizes, likewise.
    probe_work
        What looking at samples cost so far.
    """

    client: Client
    task: Task
    client_state: Tensors
    down: Tensors
    epochs: int
    batch_size: int
    rate: float
    rng: Draw
    score_samples: Callable[..., SampleScores]
    gradient: Callable[[np.ndarray], Gradient]
    sample_variance: Callable[[Of, np.ndarray | None], float]
    rounds: int = 1
    planned: int = 0
    steps: int = 0
    last_steps: int = 0
    rate_sum: float = 0.0
    probe_work: ProbeWork = field(default_factory=ProbeWork)

    def batch(self) -> np.ndarray:
        """Draw one batch to look at; of equal size, it is the same in a probe and in the training that follows.

        Returns
        -------
        numpy.ndarray
            Positions, in order.
        """
        samples = self.client.samples
        size = min(self.planned or self.batch_size, samples)
        return np.sort(self.rng("probe").choice(samples, size, replace=False))

    def batch_variance(self, of: Of) -> float:
        """Tell how much the samples of one batch differ under the received model, in eval mode.

        Parameters
        ----------
        of
            In what: "loss", "gradient" (of all layers) or "head-gradient" (of the last).

        Returns
        -------
        float
        """
        return self.sample_variance(of, self.batch())


@dataclass(frozen=True)
class Done:
    """What a part or a program gives back at the end of a client update.

    Attributes
    ----------
    metrics
        Open numbers for the report; 0-d tensors are read later.
    aggregated
        Tensors of which only the weighted sum reaches the server; declared by `declare_aggregated`.
    open_tensors
        Tensors that the server sees; a part that gives any says `opens_tensors`.
    client_state
        This client's new state; declared by `declare_client_state`.
    samples
        That the report stands for; None: all of the client's. Only programs say this, like the next two.
    loss
        Mean loss of these samples.
    work
        Samples that went through the model, forward and back, beside those that were looked at.
    """

    metrics: Mapping[str, Value | Tensor] = field(default_factory=dict)
    aggregated: Tensors = field(default_factory=dict)
    open_tensors: Tensors = field(default_factory=dict)
    client_state: Tensors = field(default_factory=dict)
    samples: int | None = None
    loss: Tensor | float = 0.0
    work: float = 0.0


@dataclass
class Buffers:
    """All that the local step touches. Shapes and addresses are fixed; contents are filled before a client update.

    Attributes
    ----------
    x, y
        Resident data, of all clients.
    w
        Weights, flat.
    g
        Gradient, flat; the module's `.grad` are views.
    b
        Norm statistics and other float buffers, flat.
    w0, b0
        The model as received.
    index
        Ring of batches: [ring, width] rows of the data.
    weight
        [ring, width] sample weights; 0 is padding.
    keys
        [ring, width] what each sample's random bits are made of.
    rate
        [ring] step sizes.
    t
        [1] place of the next batch in the ring.
    loss
        [] sum of cross-entropies so far.
    head
        The last layer, inside `w`.
    at
        `at(params, buffers, x)` gives features and logits of another model, in eval mode.
    """

    x: Tensor
    y: Tensor
    w: Tensor
    g: Tensor
    b: Tensor
    w0: Tensor
    b0: Tensor
    index: Tensor
    weight: Tensor
    keys: Tensor
    rate: Tensor
    t: Tensor
    loss: Tensor
    head: slice
    at: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Batch(NamedTuple):
    """One batch inside the local step.

    Attributes
    ----------
    x, y
        Samples as the network sees them, and their labels.
    weight
        Of each sample; 0 is padding.
    features
        Input of the head.
    logits
        Its output.
    each
        Cross-entropy of every sample.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    features: Tensor
    logits: Tensor
    each: Tensor


Program = Callable[[ClientContext], Done]  # what a client does for a task that is not training: a probe, a reservation
