"""Data packs: small real subsets for tests and studies, `.npz.xz` archives and sprites of images."""

from __future__ import annotations

import io

import numpy as np

from fedstrata.data.files import Files
from fedstrata.data.images import read_image
from fedstrata.errors import RequestError


def read_npz(files: Files, pattern: str) -> dict[str, np.ndarray] | None:
    """Read an `.npz.xz` archive; None if there is none."""
    name = files.one(pattern)
    return None if name is None else dict(np.load(io.BytesIO(files.read(name)), allow_pickle=False))


def read_sprite(files: Files, pattern: str, count: int, side: int) -> np.ndarray:
    """Cut a sprite, 50 images wide, into [n, 3, side, side]."""
    name = files.one(pattern)
    if name is None:
        raise RequestError(f"{files.path} holds the labels of a pack but not its images, {pattern}")
    pixels = read_image(files.read(name), None, 3)
    rows = pixels.shape[1] // side
    if pixels.shape[1:] != (rows * side, 50 * side) or rows * 50 < count:
        raise RequestError(f"{files.path}: {name} is not a sprite of {count} images of {side} x {side}, 50 a row")
    tiles = pixels.reshape(3, rows, side, 50, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
    return np.ascontiguousarray(tiles[:count])


def check_side(files: Files, asked: int, side: int) -> None:
    """Refuse another size than the pack's: to scale twice is not what scaling the originals gives."""
    if asked != side:
        raise RequestError(
            f"size = {asked}: the pack at {files.path} holds images of {side} x {side}; "
            f"ask for size = {side}, or give the published files"
        )
