"""Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022 (FedLC).

Trains on logits lowered by T n_k(c)^(-1/4): the rarer a label at the client, the more. A label that it does not hold
counts 1e-8 times, which lowers its logit by 100 T and so takes it out. Departure: the paper's sum leaves the true label
out of the denominator, and so has no lower bound; training on it collapses. Here the sum is whole; the literal form is
`exclude_true`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_context import Batch, Buffers, ClientContext
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import NonNegative
from fedstrata.core.plan import Plan


def margins(counts: np.ndarray, temperature: float) -> np.ndarray:
    """Return by how much each label's logit is lowered."""
    lowered: np.ndarray = temperature * np.maximum(counts, 1e-8) ** -0.25
    return lowered


@dataclass(frozen=True)
class FedLc(Correction):
    """Logits of labels that are rare at the client are lowered in training."""

    paper: ClassVar[str] = "Zhang et al., ICML 2022"

    temperature: NonNegative = 1.0
    exclude_true: bool = False  # leave the true label out of the denominator, as the paper writes it

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a model whose labels cannot be counted."""
        return None if plan.space.classes else "the model's last layer has no weights that are trained"

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold a margin a label."""
        return {"margin": Slot((space.classes,))}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set the margins from the client's own labels."""
        counts = np.bincount(context.client.labels, minlength=context.client.classes)
        own["margin"].copy_(torch.from_numpy(margins(counts, self.temperature)))

    def edit_logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Lower them."""
        return logits - own["margin"]

    def add_loss(self, own: Tensors, buf: Buffers, batch: Batch) -> Tensor | None:
        """Put the literal loss in the place of the cross-entropy."""
        if not self.exclude_true:
            return None
        true = batch.y[:, None]
        others = batch.logits.scatter(1, true, -torch.inf).logsumexp(1)
        return ((others - batch.logits.gather(1, true)[:, 0] - batch.each) * batch.weight).sum()
