"""What a data set by name gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.part import Part


@dataclass(frozen=True)
class Arrays:
    """Samples and labels as published, with a test set of their own.

    Attributes
    ----------
    x, y
        Training samples and labels. Images are uint8 [n, channels, height, width] and stay so until the local step,
        which divides by 255 and applies `mean` and `std` by channel. Other features are float32, standardised. Labels
        may be names or numbers.
    test_x, test_y
        The same for the test set.
    groups, test_groups
        Domain, subject or writer of each sample, where there are any.
    mean, std
        Of images, by channel.
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
    """A data set by name: a frozen dataclass of options that can be loaded.

    Write `load`.

    Attributes
    ----------
    licence
        Under which the data are published.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Corners(fedstrata.DataSet):
    ...     '''Points around the corners of a square, one label a corner.'''
    ...
    ...     each: fedstrata.options.Count = 100
    ...
    ...     def load(self):
    ...         corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float32)
    ...         y = np.repeat(np.arange(4), self.each)
    ...         x = corners[y] + np.random.default_rng(0).normal(0, 0.2, (len(y), 2)).astype(np.float32)
    ...         return fedstrata.Arrays(x[::2], y[::2], test_x=x[1::2], test_y=y[1::2])
    >>> overrides = {"data.name": "__main__:Corners", "data.each": 300, "data.clients": 4, "train.rounds": 1}
    >>> run = fedstrata.train(overrides=overrides)  # in a package, "my_package.data:Corners"
    >>> run.events()[0]["samples"]
    600
    """

    licence: ClassVar[str] = ""

    def load(self) -> Arrays:
        """Return the samples.

        Returns
        -------
        Arrays
        """
        raise NotImplementedError
