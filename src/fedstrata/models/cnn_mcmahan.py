"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Two 5 x 5 convolutions (32, 64), each with max pooling, then 512 and the head; FedBSS widens the pooling window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image


@dataclass(frozen=True)
class CnnMcmahan(Architecture):
    """Two 5 x 5 convolutions (32, 64) with 2 x 2 max pooling, then 512-classes."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images: padding keeps the size, pooling halves it twice."""
        channels, height, width = image("cnn-mcmahan", shape, least=4)
        return _network(channels, (height // 4) * (width // 4), classes, lambda: nn.MaxPool2d(2))


@dataclass(frozen=True)
class CnnFedbss(Architecture):
    """The CNN of McMahan et al. with 3 x 3 max pooling."""

    paper: ClassVar[str] = "FedBSS, after McMahan et al., AISTATS 2017"

    stride: Literal[2, 3] = 2  # the paper leaves it open; 3 is what PyTorch does when nothing is said

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; windows that overlap (stride 2) are padded so that 28 becomes 14 and 7, as in McMahan."""
        padding = 1 if self.stride == 2 else 0
        channels, height, width = image("cnn-fedbss", shape, least=1 if padding else 9)

        def after(side: int) -> int:
            for _ in range(2):
                side = (side + 2 * padding - 3) // self.stride + 1
            return side

        cells = after(height) * after(width)
        return _network(channels, cells, classes, lambda: nn.MaxPool2d(3, self.stride, padding))


def _network(channels: int, cells: int, classes: int, pool: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=pool(),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=pool(),
            flat=nn.Flatten(),
            fc=nn.Linear(64 * cells, 512),
            relu3=nn.ReLU(),
            head=nn.Linear(512, classes),
        )
    )
