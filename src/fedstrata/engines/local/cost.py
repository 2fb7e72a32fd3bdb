"""A rough guess of how long a run takes on one core, to decide whether processes pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.core.client_parts import ClientPlan
from fedstrata.data.federation import Federation

SECONDS_A_STEP = 5e-4  # what a local step costs whatever its size
PRODUCTS_A_SECOND = 1e10  # of one core on small convolutions


@dataclass(frozen=True)
class Guess:
    """What a run costs, from the model's multiplications, the mean client and the number of client updates."""

    products: int  # of a sample's forward pass
    seconds: float  # of the whole run on one core

    @classmethod
    def of(cls, local: ClientPlan, federation: Federation, client_updates: int) -> Guess:
        """Guess."""
        samples = len(federation.train_split.rows) / len(federation)
        steps = local.epochs * samples / local.batch_size
        products = products_a_sample(local.build().to(local.dtype), local.inputs(federation.train.x[:2], local.dtype))
        step = steps * SECONDS_A_STEP + 3 * products * local.epochs * samples / PRODUCTS_A_SECOND
        return cls(products, client_updates * step)


def products_a_sample(module: nn.Module, x: Tensor) -> int:
    """Count multiplications of a forward pass: each weight once for every position of its layer's output."""
    total = 0

    def count(layer: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal total
        total += layer.weight.numel() * out[0, 0].numel()  # type: ignore[operator]

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module.eval()(x)
    return total
