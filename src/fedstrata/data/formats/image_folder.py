"""Folders of images: CLASS/image or CLIENT/CLASS/image, optionally under train/ and test/."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.files import Files
from fedstrata.data.formats.images import Picture, open_image, pictures, read_images

GREY = {"1", "L", "LA"}

Listed = tuple[list[Picture], np.ndarray, np.ndarray | None]  # images, classes, clients


def list_folder(path: Path) -> tuple[Listed, Listed | None]:
    """List the images of a folder, and apart from them those of its test set if it has one; none is read."""
    found = pictures(Files(path))
    if not found:
        raise RequestError(f"{path} holds no images; expected CLASS/image.png or CLIENT/CLASS/image.png")
    split = {part: [p for p in found if p.name.startswith(f"{part}/")] for part in ("train", "test")}
    parts = list(split.values()) if all(split.values()) and sum(map(len, split.values())) == len(found) else [found]
    listed = [(part, *_owners(path, part, above=len(parts) - 1)) for part in parts]
    return listed[0], listed[1] if len(listed) > 1 else None


def has_client_folders(path: Path) -> bool:
    """Say whether images lie in folders by client and class, by the first folder that holds any."""
    parts = {child.name: child for child in path.iterdir() if child.is_dir()}
    outer = parts["train"] if parts.keys() == {"train", "test"} else path
    for folder in sorted(child for child in outer.iterdir() if child.is_dir() and not child.name.startswith(".")):
        if inner := [child.is_dir() for child in folder.iterdir() if not child.name.startswith(".")]:
            return any(inner)
    return False


def read_folder(*parts: list[Picture], size: int | None = None) -> list[np.ndarray]:
    """Read lists of images as uint8 [n, channels, height, width], all of one size or scaled to it."""
    return read_images(*parts, size=size, channels=_channels([picture for part in parts for picture in part]))


def _channels(found: list[Picture]) -> int:
    """Return 1 if all images are grey, otherwise 3. Files are read whole, but no image is decoded."""
    for picture in found:
        data = picture.files.read(picture.name)
        try:
            with open_image(data) as image:
                if image.mode not in GREY:
                    return 3
        except RequestError as error:
            raise RequestError(f"{picture.name} cannot be read as an image: {error}") from None
    return 1


def _owners(path: Path, part: list[Picture], above: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Read classes, and clients if there are any, off the folders below the first `above` ones."""
    folders = [p.name.split("/")[above:-1] for p in part]
    if len(depths := {len(f) for f in folders}) > 1 or not depths <= {1, 2}:
        deepest = max(map(len, folders))
        odd = next((p.name for p, f in zip(part, folders, strict=True) if len(f) != deepest), part[0].name)
        raise RequestError(f"{path} must hold CLASS/image.png or CLIENT/CLASS/image.png throughout; {odd} is elsewhere")
    clients = np.array([f[0] for f in folders]) if depths == {2} else None
    return np.array([f[-1] for f in folders]), clients
