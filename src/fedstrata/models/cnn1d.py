"""1-D CNNs for signals: heart beats as in FLIPS, motion windows as in FedPBS.

FLIPS cites Lin et al., FedCluster, INFOCOM Workshops 2022, for its ECG network, and FedPBS names none: the layers of
both are ours, in the sizes that are usual for MIT-BIH and UCI-HAR.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import nn

from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import signal


@dataclass(frozen=True)
class EcgCnn1d(Architecture):
    """Three convolutions of width 5 (32, 64, 128) with max pooling, then 128-classes, for heart beats."""

    paper: ClassVar[str] = "FLIPS, after Lin et al., 2022"
    natural: ClassVar[tuple[int, ...]] = (1, 187)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for signals; a plain row is one channel."""
        return _network("ecg-cnn1d", shape, classes, widths=(32, 64, 128), kernel=5)


@dataclass(frozen=True)
class HarCnn1d(Architecture):
    """Two convolutions of width 9 (64, 128) with max pooling, then 128-classes, for windows of motion sensors."""

    paper: ClassVar[str] = "ours: FedPBS names no network"
    natural: ClassVar[tuple[int, ...]] = (9, 128)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for signals; a plain row is one channel."""
        return _network("har-cnn1d", shape, classes, widths=(64, 128), kernel=9)


def _network(model: str, shape: tuple[int, ...], classes: int, widths: tuple[int, ...], kernel: int) -> nn.Module:
    shrink = 2 ** len(widths)  # padding keeps the length, every pooling halves it
    channels, length, rows = signal(model, shape, least=shrink)
    layers: OrderedDict[str, nn.Module] = OrderedDict(rows=rows)
    for i, (inputs, outputs) in enumerate(pairwise((channels, *widths)), 1):
        layers[f"conv{i}"] = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
        layers[f"relu{i}"], layers[f"pool{i}"] = nn.ReLU(), nn.MaxPool1d(2)
    layers["flat"] = nn.Flatten()
    layers["fc"], layers["relu"] = nn.Linear(widths[-1] * (length // shrink), 128), nn.ReLU()
    layers["head"] = nn.Linear(128, classes)
    return nn.Sequential(layers)
