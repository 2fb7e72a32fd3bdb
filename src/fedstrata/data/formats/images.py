"""Images from files: a folder or an archive of JPEG, PNG and the like, read one at a time into one array.

Published sets and users' own folders share this. Where a size is given, images are scaled to that square without
regard to their proportions, as the studies do (`Resize((224, 224))`); without one, all must have the same size.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedstrata.core.errors import RequestError
from fedstrata.data import store
from fedstrata.data.files import DAMAGE, Files
from fedstrata.data.sets.base import Arrays
from fedstrata.data.unpacking import PIXELS

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}
IN_MEMORY = 1 << 30  # bytes; a larger array lies in a file without a name until it is stored
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Picture:
    """An image that has not been read yet, with its label and its group if it has one."""

    files: Files
    name: str
    label: str | int = ""
    group: str | None = None

    def folder(self, above: int = 1) -> str:
        """Return the name of the folder the image lies in, or of one further up; empty where there is none."""
        parts = self.name.split("/")
        return parts[-1 - above] if len(parts) > above else ""


def pictures(*places: Files) -> list[Picture]:
    """List the images in some places, without hidden ones and what macOS leaves in archives."""
    return [
        Picture(files, name)
        for files in places
        for name in files.names
        if name.lower().endswith(SUFFIXES)
        and not any(part.startswith((".", "__MACOSX")) for part in name.split("/") if part != ".")
    ]


@contextmanager
def open_image(data: bytes) -> Iterator[Image.Image]:
    """Open an image whose pixels are not read yet; errors that reading it raises inside are put into words.

    Its header says how many pixels it has, and nobody else knows: a few kilobytes can stand for gigabytes. Formats are
    those that we list: Pillow knows some that start other programs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we have a bound of our own
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        with image:
            if image.width * image.height > PIXELS:
                raise RequestError(f"the image has {image.width} x {image.height} pixels; allowed: {PIXELS:,} in all")
            yield image
    except UnidentifiedImageError:
        raise RequestError("this is not an image, or of a format that is not known") from None
    except (*DAMAGE, SyntaxError, ValueError, TypeError, LookupError, struct.error) as error:
        raise RequestError(f"the image is damaged: {error}") from None
    except (Image.DecompressionBombError, MemoryError, OverflowError) as error:
        raise RequestError(f"the image is too large: {error}") from None


Size = int | tuple[int, int]  # pixels to scale to: of a square, or width and height


def read_image(data: bytes, size: Size | None, channels: int) -> np.ndarray:
    """Decode an image into uint8 [channels, height, width]; 1 channel is grey, 3 are red, green and blue."""
    wanted = (size, size) if isinstance(size, int) else size
    with open_image(data) as image:
        if image.mode.startswith(("I", "F")):
            raise RequestError(f"images of 8 bits a channel are expected, this has mode {image.mode}")
        # Transparency in a palette must not be dropped before the colours are known.
        pixels = (image.convert("RGBA") if image.mode == "P" else image).convert(MODES[channels])
        if wanted is not None and pixels.size != wanted:
            pixels = pixels.resize(wanted, Image.Resampling.BICUBIC)
    array = np.asarray(pixels)
    return np.ascontiguousarray(array.reshape(*array.shape[:2], channels).transpose(2, 0, 1))


def read_images(*parts: Sequence[Picture], size: Size | None = None, channels: int = 3) -> list[np.ndarray]:
    """Read lists of images, such as train and test, each into uint8 [n, channels, height, width]."""
    first = next((picture for part in parts for picture in part), None)
    if first is None:
        width, height = size if isinstance(size, tuple) else (size or 0, size or 0)
        return [np.zeros((0, channels, height, width), np.uint8) for _ in parts]
    shape = _read(first, size, channels).shape
    arrays = [_room((len(part), *shape)) for part in parts]
    total, done = sum(map(len, parts)), 0
    for part, array in zip(parts, arrays, strict=True):
        for row, picture in enumerate(part):
            pixels = _read(picture, size, channels)
            if pixels.shape != shape:
                (h, w), (other_h, other_w) = shape[1:], pixels.shape[1:]
                raise RequestError(
                    f"images have different sizes: {first.name} is {w} x {h}, {picture.name} is {other_w} x {other_h}; "
                    f"give a size to scale all of them to, such as data.size = {min(w, h, other_w, other_h)}"
                )
            array[row] = pixels
            done += 1
            if done % max(total // 10, 1000) == 0:
                picture.files.say(f"{done:,} of {total:,} images")
    return arrays


def read_split(
    train: Sequence[Picture],
    test: Sequence[Picture],
    size: int | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Arrays:
    """Read colour images with their labels and groups."""
    if not train or not test:
        raise RequestError(
            f"there are no images for the {'test' if train else 'training'} set: the files are incomplete"
        )
    x, test_x = read_images(train, test, size=size)
    y, test_y = (np.array([p.label for p in part]) for part in (train, test))
    groups, test_groups = (
        np.array([p.group for p in part]) if any(p.group for p in train) else None for part in (train, test)
    )
    return Arrays(x, y, test_x, test_y, groups, test_groups, mean, std)


def scale_images(images: np.ndarray, size: int) -> np.ndarray:
    """Scale uint8 [n, height, width] grey or [n, 3, height, width] colour images to colour [n, 3, size, size]."""
    colour = images if images.ndim == 4 else np.repeat(images[:, None], 3, axis=1)
    out = np.empty((len(colour), 3, size, size), np.uint8)
    for row, image in enumerate(colour.transpose(0, 2, 3, 1)):
        square = Image.fromarray(np.ascontiguousarray(image)).resize((size, size), Image.Resampling.BICUBIC)
        out[row] = np.asarray(square).transpose(2, 0, 1)
    return out


def size_of(picture: Picture) -> tuple[int, int]:
    """Return width and height of an image, without reading its pixels."""
    data = picture.files.read(picture.name)
    with _naming(picture), open_image(data) as image:
        return image.size


def _read(picture: Picture, size: Size | None, channels: int) -> np.ndarray:
    data = picture.files.read(picture.name)
    with _naming(picture):
        return read_image(data, size, channels)


@contextmanager
def _naming(picture: Picture) -> Iterator[None]:
    """Put its name before what is wrong with an image."""
    try:
        yield
    except RequestError as error:
        place = picture.files.path
        named = str(place / picture.name) if place.is_dir() else f"{place}: {picture.name}"
        raise RequestError(f"{named}: {error}") from None


def _room(shape: tuple[int, ...]) -> np.ndarray:
    """Make an array to be filled: in memory, or where the data set will be stored anyway."""
    if np.prod(shape, dtype=np.int64) <= IN_MEMORY:
        return np.empty(shape, np.uint8)
    try:
        store.folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.folder()) as file:  # has no name: nothing stays behind
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash when pixels are written
                os.posix_fallocate(file.fileno(), 0, int(np.prod(shape, dtype=np.int64)))
            return np.memmap(file, np.uint8, "w+", shape=shape)
    except OSError as error:
        raise RequestError(
            f"the data folder {store.folder()} cannot be written: {error}; set FEDSTRATA_DATA to another"
        ) from None
