"""Between host and device without waiting: memory that the device can read by itself is taken from torch's own pool."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def copy_to_device(values: np.ndarray, to: Tensor) -> None:
    """Copy from the host to a tensor; the host goes on at once."""
    host = torch.from_numpy(values)
    if not to.is_cuda:
        to.copy_(host)
        return
    pinned = torch.empty(host.shape, dtype=to.dtype, pin_memory=True)
    to.copy_(pinned.copy_(host), non_blocking=True)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Bring a tensor to a device; the host goes on at once."""
    return tensor.pin_memory().to(device, non_blocking=True) if not tensor.is_cuda else tensor.to(device)


def to_host(tensor: Tensor) -> Tensor:
    """Bring a tensor to the host, and wait for it."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
