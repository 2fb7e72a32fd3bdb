"""Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021 (FedDyn).

Client: minimise f(v) - <g_k, v> + a/2 ||v - w||^2, then g_k <- g_k - a Delta_k. Server: h <- h - (a/N) sum_S Delta_k,
w <- mean_S w_k - h / a. The mean is the configured combiner's; the paper's, and the recipe's, is plain.
The authors' code divides a by N n_k / n at each client (`scale_alpha`) and evaluates mean_S w_k: `evaluate = "mean"`.

It also clips gradients at 10, and adds a v as weight decay after that: only grad f - g_k - a w is clipped. That is
`clip = 10` here. The recipe puts the correction `clip` behind this one instead, which clips all of grad f + a (v - w) -
g_k: the two differ where clipping sets in, and a w alone may be longer than 10 for a large model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Slot, Sums, Tensors
from fedstrata.core.options import Positive
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View
from fedstrata.methods.corrections.clip import shorten


@dataclass
class FedDynState:
    """The server's side of the regularizer."""

    h: Tensor
    mean: Tensor  # the plain mean of the clients' models
    samples: Tensor  # of a client on average, where alpha is scaled


@dataclass(frozen=True)
class FedDyn(Correction, ServerStep):
    """A linear term learned at each client makes local optima agree with the global one."""

    paper: ClassVar[str] = "Acar et al., ICLR 2021"

    alpha: Positive = 0.01
    scale_alpha: bool = False  # smaller where a client has more samples
    evaluate: Literal["next", "mean"] = "next"  # the model to go on with, or the mean of the clients'
    clip: Positive | None = None  # longest gradient before a v is added, as the authors clip; none given: no limit
    frozen: bool = False  # keep g_k and h at zero: a proximal term, for tests and ablations

    @property
    def needs(self) -> frozenset[str]:
        """Sizes, to scale alpha."""
        return frozenset({"sizes"}) if self.scale_alpha else frozenset()

    # ---- client half

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold g_k and this client's alpha."""
        return {"g": Slot((space.P,)), "alpha": Slot()}

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Keep g_k, zero at first."""
        return {"g": Slot((space.P,))}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set both."""
        own["g"].copy_(context.client_state["g"])
        own["alpha"].fill_(self.alpha)
        if self.scale_alpha:
            own["alpha"].mul_(context.down["samples"].to(own["alpha"]) / context.client.samples)

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Add a (w - w0) - g_k."""
        if self.clip is None:
            buf.g.add_(own["alpha"] * (buf.w - buf.w0)).sub_(own["g"])
        else:
            shorten(buf.g.sub_(own["alpha"] * buf.w0).sub_(own["g"]), self.clip).add_(own["alpha"] * buf.w)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Keep g_k - a Delta_k."""
        return Done() if self.frozen else Done(client_state={"g": own["g"] - own["alpha"] * (buf.w - buf.w0)})

    # ---- server half

    def init(self, view: View, model: FlatModel) -> FedDynState:
        """Start at zero."""
        samples = float(view.client_info.sizes.mean()) if self.scale_alpha else 1.0
        return FedDynState(torch.zeros_like(model.params), model.params, torch.tensor(samples, dtype=torch.float64))

    def broadcast(self, state: FedDynState) -> Tensors:
        """Tell the mean number of samples, where alpha is scaled by it."""
        return {"samples": state.samples} if self.scale_alpha else {}

    def step(self, state: FedDynState, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move h, and the model by -h / a."""
        state.mean = proposal.params
        if not self.frozen:
            taking_part = sums.count / view.client_info.clients
            state.h = state.h - self.alpha * taking_part * sums.total["update"]
        return FlatModel(proposal.params - state.h / self.alpha, proposal.buffers)

    def model_to_evaluate(self, state: FedDynState, model: FlatModel) -> FlatModel:
        """Evaluate the mean of the clients' models, if asked for."""
        return FlatModel(state.mean, model.buffers) if self.evaluate == "mean" else model
