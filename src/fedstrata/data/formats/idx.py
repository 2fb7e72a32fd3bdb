"""The idx format of MNIST: a big-endian header, then the array."""

from __future__ import annotations

from math import prod

import numpy as np

from fedstrata.core.errors import DamagedError

DIMS = 32  # the most that any numpy takes
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(data: bytes, name: str) -> np.ndarray:
    """Decode an idx file."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise DamagedError(f"{name} is not an idx file")
    dims = data[3]
    shape = np.frombuffer(data, ">i4", dims, 4) if len(data) >= 4 + 4 * dims else np.zeros(0)
    kind = np.dtype(TYPES[data[2]])
    size = 4 + 4 * dims + prod(shape.tolist()) * kind.itemsize  # in whole numbers without bound: products may be huge
    if len(shape) != dims or (shape < 0).any() or dims > DIMS or len(data) != size:
        raise DamagedError(f"{name} is truncated: {len(data)} bytes instead of {size}")
    return np.frombuffer(data, kind, offset=4 + 4 * dims).reshape(shape).astype(kind.newbyteorder("="))
