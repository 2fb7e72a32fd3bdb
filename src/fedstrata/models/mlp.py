"""Fully connected networks."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fedstrata.models.architecture import Architecture
from fedstrata.options import Count


@dataclass(frozen=True)
class Mlp(Architecture):
    """Fully connected layers with ReLU."""

    hidden: tuple[Count, ...] = (64,)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, then one layer after another."""
        widths = [math.prod(shape), *self.hidden]
        layers: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
        for i, (a, b) in enumerate(pairwise(widths)):
            layers[f"layer{i}"], layers[f"relu{i}"] = nn.Linear(a, b), nn.ReLU()
        layers["head"] = nn.Linear(widths[-1], classes)
        return nn.Sequential(layers)
