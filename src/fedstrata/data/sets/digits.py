"""Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998: 1,797 images of 8 x 8, inside scikit-learn."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedstrata.core.options import BelowOne
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.sets.base import Arrays, DataSet

SHAPE, DARKEST = (1, 8, 8), 16.0


@dataclass(frozen=True)
class Digits(DataSet):
    """Handwritten digits, 8 x 8 grey, 10 classes; embedded, no download."""

    paper: ClassVar[str] = "Alpaydin and Kaynak, UCI 1998"
    licence: ClassVar[str] = "CC BY 4.0"

    test: BelowOne = 0.2  # share held out, the same samples for every seed

    def load(self) -> Arrays:
        """Read scikit-learn's file, without importing scikit-learn, which takes a second; pixels become [0, 1]."""
        (package,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr,misc]
        with gzip.open(Path(package) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
            table = np.loadtxt(file, delimiter=",")
        x, y = (table[:, :-1].reshape(-1, *SHAPE) / DARKEST).astype(np.float32), table[:, -1].astype(np.int64)
        train, test = hold_out(np.arange(len(y)), y, self.test, Streams(0)("digits"))
        return Arrays(x[train], y[train], x[test], y[test], preprocessing=Preprocessing(shape=SHAPE, scale=DARKEST))
