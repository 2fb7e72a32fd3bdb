"""ResNet-9, the DAWNBench network of Page, How to Train Your ResNet, 2018, on which Stratify runs in batch mode.

Every convolution is 3 x 3 without bias, then norm and ReLU; two residual pairs; batch norm or group norm.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image


class Residual(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions make of the input to the input."""
        inner: Tensor = self.second(self.first(x))
        return x + inner


@dataclass(frozen=True)
class ResNet9(Architecture):
    """Eight 3 x 3 convolutions (64 to 512) with two residual pairs, batch or group norm."""

    paper: ClassVar[str] = "Page, How to Train Your ResNet, 2018"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    norm: Literal["bn", "gn"] = "bn"
    groups: Count = 32  # of group norm

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; the last pooling takes 4 x 4, or what is left of images below 32 pixels."""
        channels, height, width = image("resnet9", shape, least=8)
        if self.norm == "gn" and 64 % self.groups:
            raise RequestError(f"model.groups = {self.groups} does not fit: it must divide 64 channels")
        sides = height // 8, width // 8
        last = min(4, sides[0]), min(4, sides[1])
        cells = (sides[0] // last[0]) * (sides[1] // last[1])
        return nn.Sequential(
            OrderedDict(
                stages=nn.Sequential(
                    nn.Sequential(self._conv(channels, 64)),
                    nn.Sequential(self._conv(64, 128, pool=True), self._pair(128)),
                    nn.Sequential(self._conv(128, 256, pool=True)),
                    nn.Sequential(self._conv(256, 512, pool=True), self._pair(512)),
                ),
                pool=nn.MaxPool2d(last),
                flat=nn.Flatten(),
                head=nn.Linear(512 * cells, classes),
            )
        )

    def _pair(self, width: int) -> nn.Module:
        return Residual(self._conv(width, width), self._conv(width, width))

    def _conv(self, inputs: int, outputs: int, pool: bool = False) -> nn.Module:
        norm = nn.BatchNorm2d(outputs) if self.norm == "bn" else nn.GroupNorm(self.groups, outputs)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm=norm, relu=nn.ReLU()
        )
        if pool:
            layers["pool"] = nn.MaxPool2d(2)
        return nn.Sequential(layers)
