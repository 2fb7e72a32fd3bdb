"""He et al., Deep Residual Learning for Image Recognition, CVPR 2016: ResNet-18 and ResNet-50.

Tensors have torchvision's names but for `layer1.` ... `layer4.`, here `stages.0.` ... `stages.3.`, and `fc.`, here
`head.`: `model.init` takes a file of torchvision's weights and changes the names so; they need `stem = "7x7"`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedstrata.models.architecture import Architecture
from fedstrata.models.shapes import image
from fedstrata.models.stem import Stem, is_small, stem_layers

Norm = Callable[[int], nn.Module]  # channels -> layer
NORMS: dict[str, Norm] = {
    "bn": nn.BatchNorm2d,
    "gn": lambda channels: nn.GroupNorm(32, channels),
}  # He's, and Wu and He's


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module, norm: Norm = nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions make of the input to the input."""
        inner = self.bn1(self.conv1(x)).relu()
        outer: Tensor = self.bn2(self.conv2(inner)) + self.downsample(x)
        return outer.relu()


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two of 1 x 1, around a shortcut; the 3 x 3 one has the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module, norm: Norm = nn.BatchNorm2d):
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), norm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), norm(outputs)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Add what three convolutions make of the input to the input."""
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        outer: Tensor = self.bn3(self.conv3(inner)) + self.downsample(x)
        return outer.relu()


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """A stem, four stages of blocks, a global average and the head."""

    def __init__(self, block: Block, depths: tuple[int, ...], channels: int, classes: int, small: bool, norm: Norm):
        super().__init__()
        self.conv1, self.pool = stem_layers(channels, small)
        self.bn1 = norm(64)
        outputs = [64 * 2**i * block.expansion for i in range(len(depths))]
        sizes = zip(depths, pairwise([64, *outputs]), (1, 2, 2, 2), strict=True)
        self.stages = nn.Sequential(*(_stage(block, depth, a, b, stride, norm) for depth, (a, b), stride in sizes))
        self.head = nn.Linear(outputs[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        maps = self.stages(self.pool(self.bn1(self.conv1(x)).relu()))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits


def _stage(block: Block, depth: int, inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    """Change the size in the first block, with a 1 x 1 convolution on its shortcut where sizes differ."""
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
    width = outputs // block.expansion
    rest = [block(outputs, width, 1, nn.Identity(), norm) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, width, stride, shortcut, norm), *rest)


@dataclass(frozen=True)
class ResNet18(Architecture):
    """Residual network of 18 layers; a 3 x 3 stem for images of up to 64 pixels."""

    paper: ClassVar[str] = "He et al., CVPR 2016"
    natural: ClassVar[tuple[int, ...]] = (3, 64, 64)

    stem: Stem = "auto"
    norm: Literal["bn", "gn"] = "bn"  # batch norm, or group norm of 32 groups

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images."""
        channels, height, width = image("resnet18", shape)
        return ResNet(BasicBlock, (2, 2, 2, 2), channels, classes, is_small(self.stem, height, width), NORMS[self.norm])


@dataclass(frozen=True)
class ResNet50(Architecture):
    """Residual network of 50 layers with bottlenecks; a 3 x 3 stem for images of up to 64 pixels."""

    paper: ClassVar[str] = "He et al., CVPR 2016"
    natural: ClassVar[tuple[int, ...]] = (3, 32, 32)

    stem: Stem = "auto"
    norm: Literal["bn", "gn"] = "bn"  # batch norm, or group norm of 32 groups

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build for images."""
        channels, height, width = image("resnet50", shape)
        return ResNet(Bottleneck, (3, 4, 6, 3), channels, classes, is_small(self.stem, height, width), NORMS[self.norm])
