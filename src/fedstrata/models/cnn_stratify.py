"""Stratify's simple CNN, for single-sample rounds, PACS, Digits-DG and COVTYPE.

The paper does not describe it. Ours: four 3 x 3 convolutions, each with ReLU and pooling, a global average, one
hidden layer. No batch norm, because a round may hold one sample; group norm on request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import nn

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image, signal

WIDTHS = (32, 64, 128, 256)
LEAST = 2 ** len(WIDTHS)  # every block halves a side


@dataclass(frozen=True)
class CnnStratify(Architecture):
    """Four convolutions (32, 64, 128, 256), global average, then 256-classes; 1-D for signals and tables."""

    paper: ClassVar[str] = "ours: Stratify does not describe its CNN"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    norm: Literal["none", "gn"] = "none"
    groups: Count = 32  # of group norm

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images, or for signals and rows of features with 1-D layers."""
        if self.norm == "gn" and WIDTHS[0] % self.groups:
            raise RequestError(f"model.groups = {self.groups} does not fit: it must divide {WIDTHS[0]} channels")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        flat = len(shape) < 3
        if flat:
            channels, _, layers["rows"] = signal("cnn-stratify", shape, LEAST)
        else:
            channels, _, _ = image("cnn-stratify", shape, LEAST)
        for i, (inputs, outputs) in enumerate(pairwise((channels, *WIDTHS)), 1):
            layers[f"conv{i}"] = (nn.Conv1d if flat else nn.Conv2d)(inputs, outputs, 3, padding=1)
            if self.norm == "gn":
                layers[f"norm{i}"] = nn.GroupNorm(self.groups, outputs)
            layers[f"relu{i}"] = nn.ReLU()
            layers[f"pool{i}"] = (nn.MaxPool1d if flat else nn.MaxPool2d)(2)
        layers["mean"] = (nn.AdaptiveAvgPool1d if flat else nn.AdaptiveAvgPool2d)(1)
        layers["flat"] = nn.Flatten()
        layers["fc"], layers["relu"] = nn.Linear(WIDTHS[-1], 256), nn.ReLU()
        layers["head"] = nn.Linear(256, classes)
        return nn.Sequential(layers)
