"""He et al., Deep Residual Learning for Image Recognition, CVPR 2016: how deep networks begin.

The 7 x 7 stem divides a side by four, which leaves nothing of small images: those get a 3 x 3 one without pooling.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

Stem = Literal["auto", "3x3", "7x7"]
SMALL = 64  # the longest side, in pixels, that "auto" calls small


def is_small(stem: Stem, height: int, width: int) -> bool:
    """Say whether the 3 x 3 stem is to be used."""
    return stem == "3x3" or (stem == "auto" and max(height, width) <= SMALL)


def stem_layers(channels: int, small: bool) -> tuple[nn.Conv2d, nn.Module]:
    """Return the first convolution, to 64 channels, and the pooling that comes after its norm and ReLU."""
    if small:
        return nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.Identity()
    return nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False), nn.MaxPool2d(3, stride=2, padding=1)
