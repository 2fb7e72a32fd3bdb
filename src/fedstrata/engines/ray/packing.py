"""Tensors as Ray carries them: arrays, which lie in the object store as they are and are mapped without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.messages import Tensors

Packed = Mapping[str, tuple[np.ndarray, str]]  # by name: the bits, and the type that numpy may not know


def pack(tensors: Tensors) -> dict[str, tuple[np.ndarray, str]]:
    """Return arrays for tensors, wherever they lie."""
    return {name: (_bits(t.detach().cpu()).numpy(), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}


def unpack(packed: Packed, copy: bool = True) -> dict[str, Tensor]:
    """Return tensors; without a copy, nobody may write to them."""
    return {name: _map(a.copy() if copy else a).view(getattr(torch, dtype)) for name, (a, dtype) in packed.items()}


def packed_bytes(packed: Packed) -> int:
    """Return what arrays take in the object store."""
    return sum(array.nbytes for array, _ in packed.values())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _map(array: np.ndarray) -> Tensor:
    """Return the tensor over an array; what the object store holds is read-only, and nobody writes to it here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(array)


def map_array(array: np.ndarray) -> Tensor:
    """Return a tensor over an array in shared memory, which is only read."""
    return _map(array)
