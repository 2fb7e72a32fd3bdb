"""Random numbers by counter: a hash of (key, step, use, element) instead of a generator.

Nothing has to be saved or restored, every engine draws the same bits, and the local step can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Clock:
    """What the bits of a local step are made of: the visit's key, the step, and how often numbers were drawn in it."""

    key: Tensor  # [1] int64
    t: Tensor  # [1] int64
    uses: int = 0

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers from [0, 1), other ones at every use."""
        self.uses += 1
        numbers = torch.Size(shape).numel()
        cell = torch.arange(numbers, device=self.key.device)
        bits = _mix(_mix(self.key + self.t * 1_000_003 + self.uses * 7_919) + cell)
        return (_shift(bits, 11).to(torch.float64) * 2.0**-53).view(shape)


def _mix(z: Tensor) -> Tensor:
    """Splitmix64's finaliser on int64 tensors, whose arithmetic wraps."""
    z = z + -7046029254386353131
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts in the sign; a logical shift does not
