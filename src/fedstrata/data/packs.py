"""Data packs: small real subsets for tests and studies, `.npz.xz` archives and sprites of images."""

from __future__ import annotations

import io
from typing import NoReturn

import numpy as np

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data.files import DAMAGE, Files
from fedstrata.data.formats.images import read_image
from fedstrata.data.unpacking import check_npz, most_bytes


class Pack(dict[str, np.ndarray]):
    """The arrays of a pack; one that it lacks is refused under the name of its file."""

    def __init__(self, name: str, arrays: dict[str, np.ndarray]):
        super().__init__(arrays)
        self.name = name

    def __missing__(self, key: str) -> NoReturn:
        raise DamagedError(f"{self.name} has no array {key}; it has: {', '.join(self)}")


def read_npz(files: Files, pattern: str) -> Pack | None:
    """Read an `.npz.xz` archive; None if there is none."""
    name = files.one(pattern)
    if name is None:
        return None
    data = io.BytesIO(files.read(name))
    try:
        check_npz(data, f"{files.path}: {name}", most_bytes(data.getbuffer().nbytes))
        with np.load(data, allow_pickle=False) as archive:
            return Pack(f"{files.path}: {name}", {key: archive[key] for key in archive.files})
    except (ValueError, TypeError, AttributeError, MemoryError, OverflowError, *DAMAGE) as error:  # or a lone array
        raise DamagedError(f"{files.path}: {name} is damaged or no .npz archive: {error}") from None


def read_sprite(files: Files, pattern: str, count: int, side: int) -> np.ndarray:
    """Cut a sprite, 50 images wide, into [n, 3, side, side]."""
    name = files.one(pattern)
    if name is None:
        raise RequestError(f"{files.path} holds the labels of a pack but not its images, {pattern}")
    data = files.read(name)
    try:
        pixels = read_image(data, None, 3)
    except RequestError as error:
        raise DamagedError(f"{files.path}: {name}: {error}") from None
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
