"""Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998: 1,797 images of 8 x 8, inside scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.options import BelowOne
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.sets.base import Arrays, DataSet


@dataclass(frozen=True)
class Digits(DataSet):
    """Handwritten digits, 8 x 8 grey, 10 classes; embedded, no download."""

    paper: ClassVar[str] = "Alpaydin and Kaynak, UCI 1998"
    licence: ClassVar[str] = "CC BY 4.0"

    test: BelowOne = 0.2  # share held out, the same samples for every seed

    def load(self) -> Arrays:
        """Read from scikit-learn; pixels are scaled to [0, 1]."""
        from sklearn.datasets import load_digits  # noqa: PLC0415  slow to import, and only this needs it

        bunch = load_digits()
        x, y = (bunch.images[:, None] / 16).astype(np.float32), bunch.target.astype(np.int64)
        train, test = hold_out(np.arange(len(y)), y, self.test, Streams(0)("digits"))
        return Arrays(x[train], y[train], x[test], y[test])
