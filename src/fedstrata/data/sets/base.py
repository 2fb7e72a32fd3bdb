"""What a data set by name gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.part import Part


@dataclass(frozen=True)
class Arrays:
    """Samples and labels as published, with a test set of their own.

    Images are uint8 [n, channels, height, width] and stay so until the local step, which divides by 255 and applies
    `mean` and `std` by channel. Other features are float32, standardised. Labels may be names or numbers.
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def test(self) -> tuple[Any, ...]:
        """The test set as a federation takes it."""
        return (self.test_x, self.test_y, self.test_groups)


class DataSet(Part):
    """A data set by name: a frozen dataclass of options that can be loaded."""

    licence: ClassVar[str] = ""

    def load(self) -> Arrays:
        """Return the samples."""
        raise NotImplementedError
