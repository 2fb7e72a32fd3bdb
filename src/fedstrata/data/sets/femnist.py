"""Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; Cohen et al., EMNIST, 2017.

The json files that LEAF's `preprocess.sh` writes from NIST's handwriting: `train/` and `test/`, or only
`all_data/all_data_*.json`, of which a tenth of every writer's samples is then held out, as LEAF does. FLIPS uses ten
letters of it, a to j.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.statistics import brightness

SAMPLES = 805_263
HELD_OUT = 0.1
LETTERS = range(36, 46)  # LEAF counts digits, then A-Z, then a-z


@dataclass(frozen=True)
class Femnist(Published):
    """Handwritten characters, 28 x 28 grey, 62 classes (10 with letters), 805,263 samples, writer as group."""

    paper: ClassVar[str] = "Caldas et al., 2018"
    licence: ClassVar[str] = "public domain (NIST Special Database 19); LEAF is BSD 2-Clause"
    name: ClassVar[str] = "femnist"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)

    letters: bool = False  # true: only the ten letters a to j, as FLIPS uses them

    def load(self) -> Arrays:
        """Map the samples into memory; letters are picked out of the whole set."""
        arrays = super().load()
        if not self.letters:
            return arrays
        train, test = (np.flatnonzero(np.isin(y, LETTERS)) for y in (arrays.y, arrays.test_y))
        if not len(train):
            raise RequestError("data.letters = true, but the femnist in the data folder holds none of the letters a-j")
        assert arrays.groups is not None
        assert arrays.test_groups is not None
        return replace(
            arrays,
            x=arrays.x[train],
            y=arrays.y[train],
            groups=arrays.groups[train],
            test_x=arrays.test_x[test],
            test_y=arrays.test_y[test],
            test_groups=arrays.test_groups[test],
        )

    @property
    def label_names(self) -> Mapping[Any, str]:
        """The characters, in LEAF's order: digits, capitals, small letters."""
        return dict(enumerate(digits + ascii_uppercase + ascii_lowercase))

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a sample, and about how many there are: letters as if all classes were as frequent."""
        samples = SAMPLES * len(LETTERS) // 62 if self.letters else SAMPLES
        test = round(HELD_OUT * samples)
        return self.shape, samples - test, test

    def decode(self, files: Files) -> Arrays | None:
        """Read LEAF's json files."""
        files = files.reach("train/*.json", "all_data_*.json")
        parts = [files.find(f"{part}/*.json") for part in ("train", "test")]
        if all(parts):
            (x, y, writers), (test_x, test_y, test_writers) = (_read(files, names) for names in parts)
            return Arrays(x, y, test_x, test_y, writers, test_writers, *brightness(x))
        if not (names := files.find("all_data_*.json", "all_data.json")):
            return None
        x, y, writers = _read(files, names)
        codes = np.unique(writers, return_inverse=True)[1]
        train, test = hold_out(np.arange(len(y)), codes, HELD_OUT, Streams(0)(self.name))
        return Arrays(x[train], y[train], x[test], y[test], writers[train], writers[test], *brightness(x[train]))

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Check the classes; LEAF can also be told to write only some of the writers."""
        labels = np.concatenate([arrays.y, arrays.test_y])
        if len(strange := labels[(labels < 0) | (labels > 61)]):
            raise RequestError(f"{path}: {self.name} has no class {strange[0]}")
        return super().check(arrays, path) or len(labels) < SAMPLES


def _read(files: Files, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read json files of many writers."""
    x, y, writers = [], [], []
    for name in names:
        where = f"{files.path}: {name}"
        try:
            content = json.loads(files.read(name))
            for writer, count in zip(content["users"], content["num_samples"], strict=True):
                images, labels = _read_writer(content["user_data"][writer], count, f"{where}, writer {writer}")
                x.append(images)
                y.append(labels)
                writers += [writer] * len(labels)
        except (KeyError, TypeError, ValueError) as error:
            said = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise RequestError(f"{where} is not a file of LEAF, or is damaged: {said}") from None
    return np.concatenate(x), np.concatenate(y), np.array(writers)


def _read_writer(data: Any, count: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    images = np.array(data["x"], dtype=np.float32).reshape(-1, 1, 28, 28)
    labels = np.array(data["y"], dtype=np.int64)
    if not len(images) == len(labels) == count:
        raise RequestError(f"{where}: {len(images)} images and {len(labels)} labels instead of {count}")
    if len(images) and not 0 <= images.min() <= images.max() <= 1:
        raise RequestError(f"{where}: pixels from {images.min()} to {images.max()} instead of 0 to 1")
    return np.rint(images * 255).astype(np.uint8), labels
