"""Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017: PACS.

Folders DOMAIN/CLASS of 227 x 227 images, under any path, packed in one archive or not; or a pack, of 64 x 64. The
authors' own split serves another purpose, unseen domains: here a fifth of every domain and class is held out, the same
for everyone. The files lie on Google Drive behind a page that asks: there is no address to download from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.formats.images import IMAGENET_MEAN, IMAGENET_STD, pictures, read_split
from fedstrata.data.packs import check_side, read_npz, read_sprite
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays

HELD_OUT = 0.2
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
IMAGES = {
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}


@dataclass(frozen=True)
class Pacs(Published):
    """Photos, paintings, cartoons and sketches of 7 classes, colour, 9,991 samples, domain as group."""

    paper: ClassVar[str] = "Li et al., ICCV 2017"
    licence: ClassVar[str] = "research use"
    name: ClassVar[str] = "pacs"

    size: Count = 64  # pixels a side; the originals are 227 x 227

    @property
    def key(self) -> str:
        """Each size is stored by itself."""
        return f"{self.name}-{self.size}"

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts as the fixed split cuts them."""
        held = {c: sum(round(HELD_OUT * images[i]) for images in IMAGES.values()) for i, c in enumerate(CLASSES)}
        return {c: sum(images[i] for images in IMAGES.values()) - held[c] for i, c in enumerate(CLASSES)}, held

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a sample, which follows the size, and how many there are."""
        return (3, self.size, self.size), *super().outline()[1:]

    def decode(self, files: Files) -> Arrays | None:
        """Read the folders, or the pack."""
        if (pack := read_npz(files, "pacs_labels.npz.xz")) is not None:
            check_side(files, self.size, 64)
            x = read_sprite(files, "pacs_64px_*.webp", len(pack["y"]), 64)
            y, domains = np.array(CLASSES)[pack["y"]], np.array(tuple(IMAGES))[pack["domain"]]
            train, test = _split(y, domains)
            return Arrays(
                x[train], y[train], x[test], y[test], domains[train], domains[test], IMAGENET_MEAN, IMAGENET_STD
            )
        found = [replace(p, label=p.folder(), group=p.folder(2)) for p in pictures(files) if p.folder(2) in IMAGES]
        if not found:
            return None
        if strange := [p for p in found if p.label not in CLASSES]:
            raise RequestError(f"{files.path}: {strange[0].name} is of class {strange[0].label}, which pacs has not")
        found.sort(key=lambda p: (p.group, p.label, p.name))
        train, test = _split(np.array([p.label for p in found]), np.array([p.group for p in found]))
        return read_split(
            [found[i] for i in train], [found[i] for i in test], self.size, mean=IMAGENET_MEAN, std=IMAGENET_STD
        )


def _split(labels: np.ndarray, domains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cells = np.char.add(np.char.add(domains, "/"), labels)
    return hold_out(np.arange(len(cells)), cells, HELD_OUT, Streams(0)("pacs"))
