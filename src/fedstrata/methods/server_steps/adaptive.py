"""Reddi et al., Adaptive Federated Optimization, ICLR 2021: FedAdagrad, FedAdam, FedYogi.

With d the combined update: m <- b1 m + (1 - b1) d, then w <- w + lr m / (sqrt(v) + tau), without bias correction.
The three differ in v, which starts at tau^2. Norm statistics are averaged, never scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class Adaptive(ServerStep):
    """A server step scaled by a running second moment."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021"

    lr: Positive = 0.1
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
        return FlatModel(model.params + self.lr * state.m / (state.v.sqrt() + self.tau), proposal.buffers)


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """A server step scaled by the sum of squared updates (FedAdagrad)."""

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
