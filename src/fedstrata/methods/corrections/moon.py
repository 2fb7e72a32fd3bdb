"""Li et al., Model-Contrastive Federated Learning, CVPR 2021 (MOON).

Adds mu * -log(e^{s(z, z_glob) / T} / (e^{s(z, z_glob) / T} + e^{s(z, z_prev) / T})) to the loss of every sample, where
s is the cosine, z a sample's features under the model in training, z_glob under the one received, z_prev under the
client's own model of last time. At a client's first client update there is none, and the term is off.

Features are what goes into the last layer; the authors' projection, two layers between encoder and last layer, is
`model.projection = 256`. z_glob and z_prev are taken in eval mode, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import NonNegative, Positive
from fedstrata.core.plan import Plan


def contrast(z: Tensor, glob: Tensor, prev: Tensor, temperature: float) -> Tensor:
    """Return each sample's contrastive loss: low where z is nearer to the global features than to the old ones."""
    return softplus((cosine(z, prev) - cosine(z, glob)) / temperature)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of each pair of rows; 0, without a gradient, where one has no length."""
    squares = (a * a).sum(1) * (b * b).sum(1)
    return torch.where(squares > 1e-30, (a * b).sum(1) / squares.clamp(min=1e-30).sqrt(), 0.0)


@dataclass(frozen=True)
class Moon(Correction):
    """Features are drawn to those of the received model, and away from those of the client's last one."""

    paper: ClassVar[str] = "Li et al., CVPR 2021"

    mu: NonNegative = 1.0
    temperature: Positive = 0.5

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a model whose features are the samples themselves."""
        if plan.space.featureless:
            return "it compares features, and the model has no layer before its last one"
        return None

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the client's last model, and mu: 0 where there is none."""
        return {"params": Slot((space.P,)), "buffers": Slot((space.Q,)), "mu": Slot()}

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Keep the model that this client update ends with."""
        return {"params": Slot((space.P,)), "buffers": Slot((space.Q,)), "trained": Slot()}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set the last model; at first, the received one stands in its place."""
        trained = bool(context.client_state["trained"])
        own["params"].copy_(context.client_state["params"] if trained else buf.w0)
        own["buffers"].copy_(context.client_state["buffers"] if trained else buf.b0)
        own["mu"].fill_(self.mu if trained else 0.0)

    def add_loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor:
        """Add the contrast."""
        glob, _ = buf.at(buf.w0, buf.b0, batch.x)
        prev, _ = buf.at(own["params"], own["buffers"], batch.x)
        return own["mu"] * (contrast(batch.features, glob, prev, self.temperature) * batch.weight).sum()

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Keep the model."""
        return Done(client_state={"params": buf.w, "buffers": buf.b, "trained": torch.ones_like(own["mu"])})
