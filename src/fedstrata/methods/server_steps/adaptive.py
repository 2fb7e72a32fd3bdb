"""Reddi et al., Adaptive Federated Optimization, ICLR 2021: FedAdagrad, FedAdam, FedYogi.

With d the combined update: m <- b1 m + (1 - b1) d, then w <- w + lr m / (sqrt(v) + tau), without bias correction.
The three differ in v, which starts at tau^2. Norm statistics are averaged, never scaled.

The paper tunes lr for each task, over three powers of ten. A step moves nearly every weight by about lr, whatever its
size: 0.1 destroys a CNN whose weights are of 0.02. With `lr = "auto"`, ours, it is set once, by the first update d, so
that the step is as long as FedAvg's: |d| over the length of m / (sqrt(v) + tau). Adagrad's v grows by about d^2 every
round, and its steps shrink: its rate is sqrt(10) times that, so that the tenth step is as long as FedAvg's.
`python -m studies server_rates` compares it with fixed rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import BelowOne, Positive
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View


@dataclass
class Moments:
    """First and second moment of the combined updates."""

    m: Tensor
    v: Tensor
    lr: float = 0.0  # what "auto" found; 0 before the first update


@dataclass(frozen=True)
class Adaptive(ServerStep):
    """A server step scaled by a running second moment."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021"
    longer: ClassVar[float] = 1.0  # than FedAvg's the first step is with a rate of its own

    lr: Positive | Literal["auto"] = "auto"
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def second(self, v: Tensor, d2: Tensor) -> Tensor:
        """Return the next second moment."""
        raise NotImplementedError

    def init(self, view: View, model: FlatModel) -> Moments:
        """Start at m = 0 and v = tau^2."""
        return Moments(torch.zeros_like(model.params), torch.full_like(model.params, self.tau**2))

    def step(self, state: Moments, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move by lr m / (sqrt(v) + tau)."""
        d = proposal.params - model.params
        state.m = self.beta1 * state.m + (1 - self.beta1) * d
        state.v = self.second(state.v, d * d)
        direction = state.m / (state.v.sqrt() + self.tau)
        if not state.lr:
            state.lr = self._first_rate(view, d, direction) if self.lr == "auto" else self.lr
        return FlatModel(model.params + state.lr * direction, proposal.buffers)

    def _first_rate(self, view: View, d: Tensor, direction: Tensor) -> float:
        """Return the rate with which this step is as long as FedAvg's, or 0 where nothing moved."""
        length = float(direction.norm())
        rate = self.longer * float(d.norm()) / length if length else 0.0
        if rate:
            view.note("server_lr", round=view.round + 1, lr=rate)
        return rate


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """A server step scaled by the sum of squared updates (FedAdagrad)."""

    longer: ClassVar[float] = 10**0.5

    beta1: BelowOne = 0.0

    def second(self, v: Tensor, d2: Tensor) -> Tensor:
        """Add d^2."""
        return v + d2


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """A server step scaled by a decaying mean of squared updates (FedAdam)."""

    def second(self, v: Tensor, d2: Tensor) -> Tensor:
        """Mix d^2 in."""
        return self.beta2 * v + (1 - self.beta2) * d2


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """A server step whose second moment grows and shrinks by bounded amounts (FedYogi)."""

    def second(self, v: Tensor, d2: Tensor) -> Tensor:
        """Move towards d^2."""
        return v - (1 - self.beta2) * d2 * torch.sign(v - d2)
