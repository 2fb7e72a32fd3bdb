"""Random numbers by counter: a hash of (sample, use, element) instead of a generator.

Nothing has to be saved or restored, every engine draws the same bits, and the local step can be captured. A sample's
bits are its own: they do not change with the samples that share its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass
class Clock:
    """What the bits of a local step are made of: a key a sample, and how often numbers were drawn."""

    keys: Tensor  # [samples] int64
    uses: int = 0

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers from [0, 1), other ones at every use; the first axis is that of the samples."""
        self.uses += 1
        numbers, samples = torch.Size(shape).numel(), len(self.keys)
        keys = self.keys if shape[0] % samples == 0 else self.keys[:1]  # a tensor that is not made of samples
        cell = torch.arange(numbers // len(keys), device=keys.device)
        bits = _mix(_mix(keys + self.uses * 7_919).view(-1, 1) + cell)
        return (_shift(bits, 11).to(torch.float64) * 2.0**-53).view(shape)


def sample_keys(context: int | np.ndarray, step: int | np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the keys of samples by the client update's key, the local step and their places in its batch."""
    with np.errstate(over="ignore"):
        key = np.asarray(context, dtype=np.uint64) + np.uint64(1_000_003) * np.asarray(step, dtype=np.uint64)
        keys: np.ndarray = key + np.uint64(0x9E3779B97F4A7C15) * place.astype(np.uint64)
    return keys.view(np.int64)


def _mix(z: Tensor) -> Tensor:
    """Splitmix64's finaliser on int64 tensors, whose arithmetic wraps."""
    z = z + -7046029254386353131
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts in the sign; a logical shift does not
