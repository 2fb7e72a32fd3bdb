"""What a data set by name gives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.contract import broken, describe, expect
from fedstrata.core.errors import PartError
from fedstrata.core.part import Part
from fedstrata.data.preprocessing import Preprocessing
from fedstrata.data.scaling import Scale


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
    preprocessing
        What was done to raw inputs, where these are not the raw ones; with `scale`, what is still to be done.
    scale
        How features are brought to one scale once clients hold them: "federated", "per-client", "none". None: they are.
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    preprocessing: Preprocessing | None = None
    scale: Scale | None = None

    @property
    def test(self) -> tuple[Any, ...]:
        """The test set as a federation takes it."""
        return (self.test_x, self.test_y, self.test_groups)


def expect_arrays(part: object, arrays: Any) -> Arrays:
    """Return what a data set loaded if it has the shapes and types of one; what the values are is looked at later."""
    allowed = "Arrays(x, y, test_x, test_y, ...)"
    known = expect(part, "load", arrays, Arrays, allowed)

    def refuse(said: str) -> PartError:
        return broken(part, "load", f"gave Arrays {said}")

    for name in ("x", "y", "test_x", "test_y", "groups", "test_groups"):
        value = getattr(known, name)
        if not isinstance(value, np.ndarray) and (value is not None or not name.endswith("groups")):
            raise refuse(f"with {describe(value)} as {name}; allowed: an array")
    for x, y, groups, of in (("x", "y", "groups", "training"), ("test_x", "test_y", "test_groups", "test")):
        features, labels, named = getattr(known, x), getattr(known, y), getattr(known, groups)
        if features.ndim < 2 or features.dtype.kind not in "biuf":
            allowed = "numbers of shape [samples, ...], such as [n, features] or [n, channels, height, width]"
            raise refuse(f"with {describe(features)} as {x}; allowed: {allowed}")
        if labels.ndim != 1 or len(labels) != len(features):
            raise refuse(f"with {len(features)} {of} samples, and {describe(labels)} as {y}; allowed: one label each")
        if named is not None and (named.ndim != 1 or len(named) != len(labels)):
            raise refuse(f"with {len(labels)} {of} samples, and {describe(named)} as {groups}; allowed: one each")
    if known.x.shape[1:] != known.test_x.shape[1:] or known.x.dtype != known.test_x.dtype:
        raise refuse(f"with {describe(known.x)} as x and {describe(known.test_x)} as test_x; samples must be alike")
    if (known.groups is None) != (known.test_groups is None):
        raise refuse("with groups of training or of test samples; allowed: both, or neither")
    _check_scale(known, refuse)
    return known


def _check_scale(arrays: Arrays, refuse: Callable[[str], PartError]) -> None:
    if (arrays.mean is None) != (arrays.std is None):
        raise refuse("with mean or std; allowed: both, or neither")
    channels = arrays.x.shape[1]
    for name in ("mean", "std"):
        values = getattr(arrays, name)
        if values is not None and (len(values) not in (1, channels) or not np.isfinite(values).all()):
            raise refuse(f"with {name} = {values}; allowed: a number for each of the {channels} channels")
    if arrays.std is not None and min(arrays.std) <= 0:
        raise refuse(f"with std = {arrays.std}; allowed: numbers above 0")


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

    @property
    def names_clients(self) -> bool:
        """Whether samples come with the client that holds them, who then keeps them unless a partition is asked for."""
        return False

    @property
    def label_names(self) -> Mapping[Any, str]:
        """What the publisher calls the labels, where these are numbers or short: shown beside them, never in place."""
        return {}

    @abstractmethod
    def load(self) -> Arrays:
        """Return the samples.

        Returns
        -------
        Arrays
        """
        raise NotImplementedError
