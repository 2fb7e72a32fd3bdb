"""A client as its trainer sees it, and the order in which it takes its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedstrata.core.messages import Tensors, Value


@dataclass(frozen=True)
class Client:
    """One client as its own parts see it. Parts speak of positions 0..n-1; only the trainer knows rows.

    Attributes
    ----------
    id
        From 0.
    rows
        Of its samples in the resident data.
    labels
        Class index of each of its samples, by position.
    classes
        How many labels there are at all clients.
    speed
        Relative capacity of its device.
    """

    id: int
    rows: np.ndarray
    labels: np.ndarray
    classes: int
    speed: float = 1.0

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self.rows)


@dataclass(frozen=True)
class Order:
    """Which samples a client trains on, in which order.

    Attributes
    ----------
    epochs
        Positions, one array an epoch.
    batch_size
        How many positions make a batch; the last one of an epoch may be smaller.
    metrics
        Numbers for the report.
    client_state
        What the sampler keeps at the client until its next update.
    samples
        That the report stands for; None: all of the client's.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Order
    >>> Order((np.array([2, 0, 1]), np.array([1, 2, 0])), batch_size=2).batch_size
    2
    """

    epochs: tuple[np.ndarray, ...]
    batch_size: int
    metrics: Mapping[str, Value] = field(default_factory=dict)
    client_state: Tensors = field(default_factory=dict)
    samples: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, tuple | list):
            said = "a tuple with one array of positions for every epoch, such as Order((np.arange(8),), batch_size=4)"
            raise ValueError(f"Order: epochs is {said}, not {type(self.epochs).__name__}")
        if not all(type(epoch) is np.ndarray and epoch.dtype.kind in "iu" for epoch in self.epochs):
            object.__setattr__(self, "epochs", tuple(_positions(epoch) for epoch in self.epochs))
        if any(epoch.ndim != 1 for epoch in self.epochs):
            raise ValueError("Order: an epoch is a row of positions, one after another")
        if self.batch_size < 1 and any(len(epoch) for epoch in self.epochs):
            raise ValueError(f"Order: batch_size = {self.batch_size}; allowed: a whole number from 1")


def _positions(epoch: Any) -> np.ndarray:
    """Read positions from a list; a mask or fractions are none."""
    array = np.asarray(epoch)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"Order: positions are whole numbers from 0, not {array.dtype}; of a mask, np.flatnonzero")
    return array.astype(np.int64)
