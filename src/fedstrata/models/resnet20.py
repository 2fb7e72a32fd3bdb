"""He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2: ResNet-20 for CIFAR.

Shortcuts are option A: where the size changes, every second pixel with zeros for the new channels, no parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import pad

from fedstrata.models.architecture import Architecture
from fedstrata.models.resnet import BasicBlock
from fedstrata.models.shapes import image

WIDTHS = (16, 32, 64)
BLOCKS = 3  # in a stage


class Padded(nn.Module):
    """Halve the sides and fill up with channels of zeros, half of them on either side."""

    def __init__(self, more: int):
        super().__init__()
        self.before, self.after = more // 2, more - more // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the shortcut."""
        return pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class CifarResNet(nn.Module):
    """A 3 x 3 convolution, three stages of blocks, a global average and the head."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0])
        self.stages = nn.Sequential(*(_stage(a, b) for a, b in pairwise((WIDTHS[0], *WIDTHS))))
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        maps = self.stages(self.bn1(self.conv1(x)).relu())
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits


def _stage(inputs: int, width: int) -> nn.Sequential:
    same = inputs == width
    first = BasicBlock(inputs, width, 1 if same else 2, nn.Identity() if same else Padded(width - inputs))
    return nn.Sequential(first, *(BasicBlock(width, width, 1, nn.Identity()) for _ in range(BLOCKS - 1)))


@dataclass(frozen=True)
class ResNet20(Architecture):
    """Residual network of 20 layers (16, 32, 64) for small images, as FedTAN uses."""

    paper: ClassVar[str] = "He et al., CVPR 2016"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images."""
        channels, _, _ = image("resnet20", shape)
        return CifarResNet(channels, classes)
