"""Random numbers by counter: a hash of (sample, use, element) instead of a generator.

Nothing has to be saved or restored, every engine draws the same bits, and the local step can be captured. A sample's
bits are its own: they do not change with the samples that share its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np
import torch
from torch import Tensor

BITS = 53  # of a number
# What `_hash` does, for a GPU: one kernel instead of more than thirty, in which a small network spends half its time.
KERNEL = """
template <typename T> T sample_bits(T key, T cell, T start) {
  unsigned long long z = (unsigned long long)key + (unsigned long long)start;
  for (int twice = 0; twice < 2; ++twice) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z = z ^ (z >> 31);
    z += twice ? 0ull : (unsigned long long)cell;
  }
  return (T)(z >> 11);
}"""


@dataclass
class Clock:
    """What the bits of a local step are made of: a key a sample, and how often numbers were drawn."""

    keys: Tensor  # [samples] int64
    uses: int = 0

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers from [0, 1), other ones at every use; the first axis is that of the samples."""
        return self._bits(*shape).to(torch.float64) * 2.0**-BITS

    def at_least(self, least: float, *shape: int) -> Tensor:
        """Draw numbers as `uniform` does, and say which are so large."""
        return self._bits(*shape).ge(ceil(least * 2**BITS))

    def _bits(self, *shape: int) -> Tensor:
        self.uses += 1
        numbers, samples = torch.Size(shape).numel(), len(self.keys)
        keys = self.keys if shape[0] % samples == 0 else self.keys[:1]  # a tensor that is not made of samples
        cell = torch.arange(numbers // len(keys), device=keys.device)
        # Which vmap cannot map, and whoever listens to the operations of a step does not hear.
        one_kernel = keys.is_cuda and not (torch._C._functorch.is_batchedtensor(keys) or _is_listened_to())
        make: Callable[..., Tensor] = _kernel() if one_kernel else _hash
        return make(keys.view(-1, 1), cell, start=self.uses * 7_919).view(shape)


def sample_keys(context: int | np.ndarray, step: int | np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the keys of samples by the client update's key, the local step and their places in its batch."""
    with np.errstate(over="ignore"):
        key = np.asarray(context, dtype=np.uint64) + np.uint64(1_000_003) * np.asarray(step, dtype=np.uint64)
        keys: np.ndarray = key + np.uint64(0x9E3779B97F4A7C15) * place.astype(np.uint64)
    return keys.view(np.int64)


def _is_listened_to() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


@cache
def _kernel() -> Callable[..., Tensor]:
    return torch.cuda.jiterator._create_jit_fn(KERNEL, start=0)


def _hash(keys: Tensor, cell: Tensor, start: int) -> Tensor:
    """Hash every key with every cell."""
    return _shift(_mix(_mix(keys + start) + cell), 64 - BITS)


def _mix(z: Tensor) -> Tensor:
    """Splitmix64's finaliser on int64 tensors, whose arithmetic wraps."""
    z = z + -7046029254386353131
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts in the sign; a logical shift does not
