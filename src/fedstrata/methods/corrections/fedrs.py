"""Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021.

Trains on logits of which those of labels that the client does not hold are multiplied by a. The authors' code also has
a soft form, a_c = (1 - a) share_c / max share + a, and a last layer without bias: `model.head_bias = false`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_context import Buffers, ClientContext
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Slot, Tensors
from fedstrata.core.options import Fraction
from fedstrata.core.plan import Plan


def scales(counts: np.ndarray, alpha: float, soft: bool) -> np.ndarray:
    """Return by what each label's logit is multiplied."""
    held = counts / max(counts.max(), 1) if soft else counts > 0
    scaled: np.ndarray = (1.0 - alpha) * held + alpha
    return scaled


@dataclass(frozen=True)
class FedRs(Correction):
    """Logits of labels that the client does not hold are scaled down in training."""

    paper: ClassVar[str] = "Li and Zhan, KDD 2021"

    alpha: Fraction = 0.5
    soft: bool = False  # scale every label by its share

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a model whose labels cannot be counted."""
        return None if plan.space.classes else "the model's last layer has no weights that are trained"

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold a scale a label."""
        return {"scale": Slot((space.classes,))}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set the scales from the client's own labels."""
        counts = np.bincount(context.client.labels, minlength=context.client.classes)
        own["scale"].copy_(torch.from_numpy(scales(counts, self.alpha, self.soft)))

    def edit_logits(self, own: Tensors, buf: Buffers, logits: Tensor) -> Tensor:
        """Scale them."""
        return logits * own["scale"]
