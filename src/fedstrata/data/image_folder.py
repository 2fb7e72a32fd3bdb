"""Folders of images: CLASS/image or CLIENT/CLASS/image, optionally under train/ and test/."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedstrata.errors import RequestError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
GREY = {"1", "L", "LA"}

Read = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # images, classes, clients


def read_folder(path: Path) -> tuple[Read, Read | None]:
    """Read a folder of images as uint8 [n, channels, height, width], all of one size."""
    found = _found(path)
    if not found:
        raise RequestError(f"{path} holds no images; expected CLASS/image.png or CLIENT/CLASS/image.png")
    size, channels = _form(found)
    parted = {name.relative_to(path).parts[0] for name in found} == {"train", "test"}
    if not parted:
        return _read(path, found, size, channels), None
    train, test = (_read(path / part, _found(path / part), size, channels) for part in ("train", "test"))
    return train, test


def _found(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))


def _form(names: list[Path]) -> tuple[tuple[int, int], int]:
    """Give the size that all images have, and 1 channel if all are grey, otherwise 3."""
    sizes: dict[tuple[int, int], Path] = {}
    modes: dict[str, Path] = {}
    for name in names:
        try:
            with Image.open(name) as image:
                sizes.setdefault(image.size, name)
                modes.setdefault(image.mode, name)
        except (OSError, UnidentifiedImageError) as error:
            raise RequestError(f"{name} cannot be read as an image: {error}") from None
    if len(sizes) > 1:
        said = ", ".join(f"{w} x {h} ({name})" for (w, h), name in list(sizes.items())[:3])
        raise RequestError(f"images must all have the same size; there are {len(sizes)} sizes: {said}")
    if deep := [mode for mode in modes if mode[0] in "IF"]:
        raise RequestError(f"{modes[deep[0]]} has more than 8 bits a channel; store such data as arrays in an .npz")
    return next(iter(sizes)), 1 if set(modes) <= GREY else 3


def _read(root: Path, names: list[Path], size: tuple[int, int], channels: int) -> Read:
    folders = [name.relative_to(root).parts[:-1] for name in names]
    if len(depths := {len(f) for f in folders}) > 1 or not depths <= {1, 2}:
        odd = next((n for n, f in zip(names, folders, strict=True) if len(f) != max(len(g) for g in folders)), names[0])
        raise RequestError(f"{root} must hold CLASS/image.png or CLIENT/CLASS/image.png throughout; {odd} is elsewhere")
    x = np.empty((len(names), channels, size[1], size[0]), np.uint8)
    for row, name in enumerate(names):
        try:
            with Image.open(name) as image:
                pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        except OSError as error:
            raise RequestError(f"{name} is damaged or incomplete: {error}") from None
        x[row] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
    clients = np.array([f[0] for f in folders]) if depths == {2} else None
    return x, np.array([f[-1] for f in folders]), clients
