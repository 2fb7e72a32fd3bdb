"""Data packs: small real subsets for tests and studies, `.npz.xz` archives and sprites of images."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from fedstrata.data.files import Files


def read_npz(files: Files, pattern: str) -> dict[str, np.ndarray] | None:
    """Read an `.npz.xz` archive; None if there is none."""
    name = files.one(pattern)
    return None if name is None else dict(np.load(io.BytesIO(files.read(name)), allow_pickle=False))


def read_sprite(files: Files, pattern: str, count: int, side: int) -> np.ndarray:
    """Cut a sprite, 50 images wide, into [n, 3, side, side]."""
    name = files.one(pattern)
    assert name is not None
    pixels = np.asarray(Image.open(io.BytesIO(files.read(name))).convert("RGB"))
    rows = pixels.shape[0] // side
    tiles = pixels.reshape(rows, side, 50, side, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
    return np.ascontiguousarray(tiles[:count])
