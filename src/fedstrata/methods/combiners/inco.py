"""Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to Heterogeneity in FL, ICLR 2024 (InCo).

After averaging, deeper blocks of a residual stage learn from its first: g0 is the combined update of the last
3 x 3 convolution of block 0, g that of a convolution of the same shape in a later block. For every kernel

    sigma = clamp(|<g0, g>| / (||g0||^2 + 1e-7), 0, 5),   g' = (g / ||g|| + sigma g0 / ||g0||) (||g|| + ||g0||) / 2,

clamped to +-0.1. All other layers are averaged only. A model without stages of blocks, such as FedBSS' CNN, has no such
layer: there InCo is FedAvg, and an event says so.

The authors average plainly: `by = "uniform"`, which the recipe takes. Stages are recognised by names,
`<stage>.<block>.<...>.weight`, as in this project's ResNets and torchvision's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel, ParameterSpace, Segment
from fedstrata.core.messages import Sums
from fedstrata.core.options import Positive
from fedstrata.core.server_parts import Arrived
from fedstrata.core.steps import View
from fedstrata.methods.combiners.size import SizeWeighted

INSIDE_A_BLOCK = re.compile(r"^(?P<stage>(?:.*\.)?(?:stages\.|layer)\d+)\.(?P<block>\d+)\.(?P<layer>.+)\.weight$")


def references(space: ParameterSpace) -> list[tuple[Segment, Segment]]:
    """Return each convolution that learns, with the one it learns from."""
    first: dict[str, Segment] = {}
    pairs = []
    for place in space.params:
        found = INSIDE_A_BLOCK.match(place.name)
        if found is None or place.shape[2:] != (3, 3) or "downsample" in found["layer"]:
            continue
        if found["block"] == "0":
            first[found["stage"]] = place  # the last of the block stays
        elif found["stage"] in first and first[found["stage"]].shape == place.shape:
            pairs.append((place, first[found["stage"]]))
    return pairs


def mix_reference(g: Tensor, g0: Tensor, clamp: float) -> Tensor:
    """Mix a reference into an update, kernel by kernel; a kernel that did not move, on either side, stays as it is."""
    a, a0 = g.norm(dim=(-2, -1), keepdim=True), g0.norm(dim=(-2, -1), keepdim=True)
    sigma = ((g0 * g).sum((-2, -1), keepdim=True).abs() / (a0.square() + 1e-7)).clamp(0.0, 5.0)
    mixed = (g / a + sigma * g0 / a0) * (a + a0) / 2
    return torch.where((a > 0) & (a0 > 0), mixed.clamp(-clamp, clamp), g)


@dataclass(frozen=True)
class InCo(SizeWeighted):
    """Deeper residual blocks also learn from the first block of their stage; else by size, or a plain mean."""

    paper: ClassVar[str] = "Chan et al., ICLR 2024"

    clamp: Positive = 0.1  # largest number in an update of these layers
    by: Literal["size", "uniform"] = "size"  # what clients count for

    def init(self, view: View) -> None:
        """Say where there is nothing to do."""
        if not references(view.space):
            used = "the mean by size" if self.by == "size" else "the plain mean"
            view.note("fallback", what="inco", used=used, why="the model has no stages of residual blocks")

    def weights(self, arrived: Arrived) -> np.ndarray:
        """Return n_k / sum n, or 1 / |S|."""
        plain: np.ndarray = arrived.weights / arrived.weights.sum()
        return super().weights(arrived) if self.by == "size" else plain

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Average, then mix."""
        sums = super().combine(state, view, model, arrived)
        pairs = references(view.space)
        if not pairs:
            return sums
        mean, update = sums.total["update"], sums.total["update"].clone()
        for place, reference in pairs:
            place.of(update).copy_(mix_reference(place.of(mean), reference.of(mean), self.clamp))
        return replace(sums, total={**sums.total, "update": update})
