"""Huang et al., Densely Connected Convolutional Networks, CVPR 2017: DenseNet-121, FLIPS' network for HAM10000.

Tensors have torchvision's names, but for `classifier.`, here `head.`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image
from fedstrata.models.stem import Stem, is_small, stem_layers

GROWTH = 32
BLOCKS = (6, 12, 24, 16)  # layers of each


class DenseLayer(nn.Module):
    """Make 32 new channels from all there are, and append them."""

    def __init__(self, inputs: int):
        super().__init__()
        inner = 4 * GROWTH
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), nn.Conv2d(inner, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the old channels and the new ones."""
        inner = self.conv1(self.norm1(x).relu())
        return torch.cat([x, self.conv2(self.norm2(inner).relu())], 1)


class DenseNet(nn.Module):
    """A stem, four dense blocks with transitions that halve channels and sides, a global average and the head."""

    def __init__(self, channels: int, classes: int, small: bool):
        super().__init__()
        conv, pool = stem_layers(channels, small)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=conv, norm0=nn.BatchNorm2d(64), relu0=nn.ReLU(), pool0=pool
        )
        width = 64
        for i, depth in enumerate(BLOCKS, 1):
            layers[f"denseblock{i}"] = nn.Sequential(
                OrderedDict((f"denselayer{j + 1}", DenseLayer(width + j * GROWTH)) for j in range(depth))
            )
            width += depth * GROWTH
            if i < len(BLOCKS):
                layers[f"transition{i}"] = _transition(width)
                width //= 2
        layers["norm5"], layers["relu5"] = nn.BatchNorm2d(width), nn.ReLU()
        self.features = nn.Sequential(layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits


def _transition(width: int) -> nn.Module:
    conv = nn.Conv2d(width, width // 2, 1, bias=False)
    return nn.Sequential(OrderedDict(norm=nn.BatchNorm2d(width), relu=nn.ReLU(), conv=conv, pool=nn.AvgPool2d(2)))


@dataclass(frozen=True)
class DenseNet121(Architecture):
    """Densely connected network of 121 layers; a 3 x 3 stem for images of up to 64 pixels."""

    paper: ClassVar[str] = "Huang et al., CVPR 2017"
    natural: ClassVar[tuple[int, ...]] = (3, 224, 224)

    stem: Stem = "auto"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images; three transitions halve a side, and the 7 x 7 stem has divided it by four before."""
        _, height, width = image("densenet121", shape)
        small = is_small(self.stem, height, width)
        channels, _, _ = image("densenet121", shape, least=8 if small else 29)
        return DenseNet(channels, classes, small)
