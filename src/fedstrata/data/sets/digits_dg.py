"""Zhou et al., Deep Domain-Adversarial Image Generation for Domain Generalisation, AAAI 2020: Digits-DG.

Folders DOMAIN/{train,val}/CLASS of 32 x 32 images, 480 and 120 a class and domain; val is the test set here. The files
lie on Google Drive behind a page that asks: there is no address to download from. The packs hold three of its four
domains, and USPS, which option `usps` takes as a fourth: as many samples a domain and class, 120 and 30.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.files import Files
from fedstrata.data.formats.images import Picture, pictures, read_split, scale_images
from fedstrata.data.packs import Pack, read_npz, read_sprite
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays

SIDE = 32
DOMAINS = ("mnist", "mnist_m", "svhn", "syn")
PACKED = {"train": 120, "test": 30}  # a class and domain
MEAN = STD = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class DigitsDg(Published):
    """Digits by hand, on patches, on houses and synthetic, 32 x 32 colour, 24,000 samples, domain as group."""

    paper: ClassVar[str] = "Zhou et al., AAAI 2020"
    licence: ClassVar[str] = "research use; SVHN is non-commercial"
    name: ClassVar[str] = "digits-dg"
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)

    usps: bool = False  # USPS as one more domain

    @property
    def key(self) -> str:
        """Both choices of domains are stored by themselves."""
        return f"{self.name}-usps" if self.usps else self.name

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains asked for."""
        return (*DOMAINS, "usps") if self.usps else DOMAINS

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts: every class and domain has the same."""
        return dict.fromkeys(range(10), 480 * len(self.domains)), dict.fromkeys(range(10), 120 * len(self.domains))

    def decode(self, files: Files) -> Arrays | None:
        """Read the folders, or the packs of digit domains and of MNIST."""
        if files.one("digits_labels.npz.xz") is not None:
            return self._packed(files)
        parts: dict[str, list[Picture]] = {"train": [], "val": []}
        for found in pictures(files):
            label, part, domain = (found.folder(above) for above in (1, 2, 3))
            if domain not in self.domains or part not in parts:
                continue
            if label not in map(str, range(10)):
                raise RequestError(f"{files.path}: {found.name} is of class {label}, which digits-dg has not")
            parts[part].append(Picture(files, found.name, int(label), domain))
        if not parts["train"] or not parts["val"]:
            return None
        there = {str(found.group) for found in parts["train"]}
        if missing := [d for d in self.domains if d not in there]:
            raise RequestError(f"{files.path} holds no images of {', '.join(missing)}, but {', '.join(sorted(there))}")
        return read_split(parts["train"], parts["val"], None, MEAN, STD)

    def _packed(self, files: Files) -> Arrays:
        labels, mnist = _wanted(files, "digits_labels.npz.xz"), _wanted(files, "mnist_10k_2k.npz.xz")
        usps = _wanted(files, "usps_3000_1000.npz.xz") if self.usps else None
        files.say("syn is in no pack: without it")
        domains: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        for name, pack in (("mnist", mnist), ("usps", usps)):
            if pack is not None:
                domains[name] = {part: _drawn(pack[f"x_{part}"], pack[f"y_{part}"], k) for part, k in PACKED.items()}
        cut = 10 * PACKED["train"]
        for name in ("mnist_m", "svhn"):
            y = labels[f"{name}_y"]
            x = read_sprite(files, f"{name}_1200_300.webp", len(y), SIDE)
            domains[name] = {"train": (x[:cut], y[:cut]), "test": (x[cut:], y[cut:])}
        joined = []
        for part in PACKED:
            used = {name: domains[name][part] for name in sorted(domains)}
            x, y = (np.concatenate([pair[i] for pair in used.values()]) for i in range(2))
            joined.append((x, y, np.repeat(list(used), [len(pair[1]) for pair in used.values()])))
        (x, y, groups), (test_x, test_y, test_groups) = joined
        return Arrays(x, y, test_x, test_y, groups, test_groups, MEAN, STD)


def _wanted(files: Files, name: str) -> Pack:
    pack = read_npz(files, name)
    if pack is None:
        both = "give with --from the folder that holds both packs, digit_domains and mnist"
        raise RequestError(f"{files.path} lacks {name}; {both}")
    return pack


def _drawn(x: np.ndarray, y: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Take the first of each class, in colour and in the size of the others."""
    rows = np.sort(np.concatenate([np.flatnonzero(y == label)[:count] for label in range(10)]))
    return scale_images(x[rows], SIDE), y[rows]
