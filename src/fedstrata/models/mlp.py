"""Fully connected networks."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import nn

from fedstrata.core.options import Count
from fedstrata.models.architecture import Architecture


@dataclass(frozen=True)
class Mlp(Architecture):
    """Fully connected layers with ReLU."""

    hidden: tuple[Count, ...] = (64,)
    norm: Literal["none", "batch"] = "none"  # before every ReLU

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, then one layer after another."""
        widths = [math.prod(shape), *self.hidden]
        layers: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
        for i, (a, b) in enumerate(pairwise(widths)):
            layers[f"layer{i}"] = nn.Linear(a, b)
            if self.norm == "batch":
                layers[f"norm{i}"] = nn.BatchNorm1d(b)
            layers[f"relu{i}"] = nn.ReLU()
        layers["head"] = nn.Linear(widths[-1], classes)
        return nn.Sequential(layers)


@dataclass(frozen=True)
class HarMlp(Architecture):
    """Fully connected 128-64-classes, for the 561 features of UCI-HAR."""

    paper: ClassVar[str] = "ours: FedPBS names no network"
    natural: ClassVar[tuple[int, ...]] = (561,)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, then one layer after another."""
        return Mlp((128, 64)).build(shape, classes)


@dataclass(frozen=True)
class CovtypeMlp(Architecture):
    """Fully connected 32-16-8-classes, for the 54 features of COVTYPE."""

    paper: ClassVar[str] = "NIID-Bench, Li et al., ICDE 2022"
    natural: ClassVar[tuple[int, ...]] = (54,)

    wide: bool = False  # 256-256: Stratify's accuracy is out of reach of the small one

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flatten, then one layer after another."""
        return Mlp((256, 256) if self.wide else (32, 16, 8)).build(shape, classes)
