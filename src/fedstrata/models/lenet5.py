"""LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998, in the form that FL papers use."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Natural
from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import no_images


@dataclass(frozen=True)
class LeNet5(Architecture):
    """Two 5 x 5 convolutions (6, 16) with max pooling, then 120-84-classes; ReLU."""

    paper: ClassVar[str] = "LeCun et al., 1998"

    padding: Natural | None = None  # of the first convolution; none given: 2 for grey images, 0 for colour

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; below 16 pixels the second convolution is padded too, or nothing would be left."""
        if len(shape) != 3:
            raise no_images("lenet5", shape)
        channels, height, width = shape
        first = self.padding if self.padding is not None else (2 if channels == 1 else 0)
        second = 2 if min(height, width) < 16 else 0

        def after(side: int) -> int:
            return ((side + 2 * first - 4) // 2 + 2 * second - 4) // 2

        if after(width) < 1 and width in (1, 3):
            raise no_images("lenet5", shape)
        if after(height) < 1 or after(width) < 1:
            raise RequestError(f"lenet5 cannot take images of {height} x {width} with padding = {first}")
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 6, 5, padding=first),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(6, 16, 5, padding=second),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flat=nn.Flatten(),
                fc1=nn.Linear(16 * after(height) * after(width), 120),
                relu3=nn.ReLU(),
                fc2=nn.Linear(120, 84),
                relu4=nn.ReLU(),
                head=nn.Linear(84, classes),
            )
        )
