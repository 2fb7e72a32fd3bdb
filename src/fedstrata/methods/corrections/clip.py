"""Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, ICML 2013: gradients of bounded length.

Corrections act in order: before `clip` in the list they are clipped with the gradient, after it they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.core.client_context import Buffers
from fedstrata.core.client_parts import Correction
from fedstrata.core.messages import Tensors
from fedstrata.core.options import Positive


def shorten(g: Tensor, norm: float) -> Tensor:
    """Scale a vector to a length of at most `norm`, in place."""
    return g.mul_((norm / g.norm().clamp(min=1e-12)).clamp(max=1.0))


@dataclass(frozen=True)
class Clip(Correction):
    """Gradients longer than a bound are shortened to it."""

    paper: ClassVar[str] = "Pascanu et al., ICML 2013"

    norm: Positive = 10.0

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Shorten."""
        shorten(buf.g, self.norm)
