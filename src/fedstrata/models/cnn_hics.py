"""Chen and Vikalo, Heterogeneity-Guided Client Sampling (HiCS-FL), NeurIPS 2024: the networks of its public code.

Terraform runs on the same two. HiCS draws the weights of convolutions and linear layers from Xavier's uniform
distribution with the gain of ReLU (`weights = "xavier"`); biases stay as PyTorch draws them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedstrata.core.options import BelowOne
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image

Weights = Literal["default", "xavier"]  # not called `init`: model.init is the file to start from


@dataclass(frozen=True)
class CnnHicsCifar10(Architecture):
    """Three 3 x 3 convolutions (32, 64, 64) without padding, with dropout, then 64-classes."""

    paper: ClassVar[str] = "HiCS-FL, NeurIPS 2024"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    dropout: BelowOne = 0.2
    weights: Weights = "default"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; the third convolution has no activation, as in the reference."""
        channels, height, width = image("cnn-hics-cifar10", shape, least=18)
        cells = (((height - 2) // 2 - 2) // 2 - 2) * (((width - 2) // 2 - 2) // 2 - 2)
        network = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                drop1=nn.Dropout(self.dropout),
                conv2=nn.Conv2d(32, 64, 3),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                drop2=nn.Dropout(self.dropout),
                conv3=nn.Conv2d(64, 64, 3),
                drop3=nn.Dropout(self.dropout),
                flat=nn.Flatten(),
                fc=nn.Linear(64 * cells, 64),
                relu3=nn.ReLU(),
                head=nn.Linear(64, classes),
            )
        )
        return _drawn(network, self.weights)


@dataclass(frozen=True)
class CnnHicsFmnist(Architecture):
    """Three 3 x 3 convolutions (32, 32, 64) with PReLU and batch norm, then 64-classes."""

    paper: ClassVar[str] = "HiCS-FL, NeurIPS 2024"

    weights: Weights = "default"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; norm after activation, and no bias in the first convolution only, as in the reference."""
        channels, height, width = image("cnn-hics-fmnist", shape, least=4)
        network = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 3, padding=1, bias=False),
                prelu1=nn.PReLU(),
                norm1=nn.BatchNorm2d(32),
                conv2=nn.Conv2d(32, 32, 3, padding=1),
                prelu2=nn.PReLU(),
                norm2=nn.BatchNorm2d(32),
                pool2=nn.MaxPool2d(2),
                conv3=nn.Conv2d(32, 64, 3, padding=1),
                prelu3=nn.PReLU(),
                norm3=nn.BatchNorm2d(64),
                pool3=nn.MaxPool2d(2),
                flat=nn.Flatten(),
                fc=nn.Linear(64 * (height // 4) * (width // 4), 64),
                relu=nn.ReLU(),
                head=nn.Linear(64, classes),
            )
        )
        return _drawn(network, self.weights)


def _drawn(network: nn.Module, weights: Weights) -> nn.Module:
    for layer in network.modules():
        if weights == "xavier" and isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("relu"))
    return network
