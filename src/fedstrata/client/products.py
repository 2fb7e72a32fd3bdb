"""What a network multiplies, and whether a batch of it is worth more than one core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORTH_THREADS = 1e7  # multiplications of a batch above which sharing them among cores pays


def products_a_sample(module: nn.Module, x: Tensor) -> int:
    """Count multiplications of a forward pass: each weight once for every position that its layer is laid upon."""
    total = 0

    def count(layer: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):  # numbers of a position come last, also of sequences and grids
            positions = out.numel() // layer.out_features
        else:  # weights of a transposed convolution are laid upon its input
            over = given[0] if isinstance(layer, nn.modules.conv._ConvTransposeNd) else out
            positions = over.numel() // over.shape[1]
        total += layer.weight.numel() * positions // len(x)  # type: ignore[operator]

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        module.eval()(x)
    for hook in hooks:
        hook.remove()
    return total
