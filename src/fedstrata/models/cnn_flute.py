"""Liu et al., Federated Representation Learning in the Under-Parameterized Regime (FLUTE), ICML 2024.

The CIFAR-100 network of its public code, on which Terraform runs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedstrata.core.options import BelowOne
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image


@dataclass(frozen=True)
class CnnFluteCifar100(Architecture):
    """Two 5 x 5 convolutions (64, 128) with max pooling, then 256-128-classes with dropout before the head."""

    paper: ClassVar[str] = "FLUTE, ICML 2024"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    dropout: BelowOne = 0.6

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images."""
        channels, height, width = image("cnn-flute-cifar100", shape, least=16)
        cells = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 64, 5),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(64, 128, 5),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flat=nn.Flatten(),
                fc1=nn.Linear(128 * cells, 256),
                relu3=nn.ReLU(),
                fc2=nn.Linear(256, 128),
                relu4=nn.ReLU(),
                drop=nn.Dropout(self.dropout),
                head=nn.Linear(128, classes),
            )
        )
