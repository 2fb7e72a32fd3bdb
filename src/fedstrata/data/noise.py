"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench).

Noise on what clients train on: wrong labels (FedBSS, AAAI 2025), or features disturbed more at one client than at
another (NIID-Bench). Test samples stay as they are. What happens to a sample is drawn at the place of its row in a
stream of its own purpose: it depends on the seed, the row and the rate, never on the values of other samples.
Departures: NIID-Bench draws feature noise anew in every epoch, here a sample has one; its tiles leave a margin
where they do not divide the image, and its row of a tile is off where they do not fit; here tiles cover the image.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.contract import broken, describe
from fedstrata.core.errors import RequestError
from fedstrata.core.options import Fraction, NonNegative
from fedstrata.core.part import Part
from fedstrata.core.rng import Streams

PARTS = {
    "label-noise": "fedstrata.data.noise:LabelNoise",
    "feature-noise": "fedstrata.data.noise:FeatureNoise",
}


class Noise(Part):
    """What goes wrong with the training samples of clients, after they were dealt out.

    Write `apply`. In an experiment, `data.noise` is a list of such parts.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class DeadSensor(fedstrata.Noise):
    ...     '''One feature is always 0, at the first client.'''
    ...
    ...     def apply(self, x, y, clients, classes, streams):
    ...         noisy = x.copy()
    ...         noisy[clients[0], 0] = 0
    ...         return noisy, y
    >>> clean = fedstrata.Federation.from_clients([(np.ones((10, 3)), np.arange(10) % 2)] * 2, test=0.0)
    >>> noisy = clean.with_noise([DeadSensor()])
    >>> int((noisy.train.x == 0).sum())
    10
    """

    @abstractmethod
    def apply(
        self, x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray], classes: int, streams: Streams
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels with noise.

        Nothing is changed in place: an array in which nothing changes is given back as it is, another is copied.
        The rows that changed are those that differ. Rows that no client holds never change.

        Parameters
        ----------
        x, y
            Samples and class indices of all clients.
        clients
            The rows of each client.
        classes
            How many labels there are.
        streams
            `streams(purpose)` gives a numpy generator.

        Returns
        -------
        tuple of numpy.ndarray
            Samples and class indices.
        """
        raise NotImplementedError


def disturb(
    noise: Noise, x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray], classes: int, streams: Streams
) -> tuple[np.ndarray, np.ndarray]:
    """Apply noise to arrays that it cannot write to, which may be the user's own, and check what it gives."""
    locked = x.view(), y.view()
    for array in locked:
        array.flags.writeable = False
    try:
        given: Any = noise.apply(*locked, clients, classes, streams)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise broken(noise, "apply", "writes into the arrays it gets; change a copy, and give that") from error
    allowed = f"(x, y) of shapes {x.shape} and {y.shape}"
    if not isinstance(given, tuple) or len(given) != 2 or not all(isinstance(a, np.ndarray) for a in given):
        raise broken(noise, "apply", f"gave {describe(given)}; allowed: {allowed}")
    new_x, new_y = (old if new is lock else new for new, lock, old in zip(given, locked, (x, y), strict=True))
    if new_x.shape != x.shape or new_x.dtype.kind not in "biuf":
        raise broken(noise, "apply", f"gave {describe(new_x)} as x; allowed: {allowed}")
    if new_y.shape != y.shape or new_y.dtype != y.dtype or (len(y) and not 0 <= new_y.min() <= new_y.max() < classes):
        allowed = f"{y.dtype} labels from 0 to {classes - 1}, of shape {y.shape}"
        raise broken(noise, "apply", f"gave {describe(new_y)} as y; allowed: {allowed}")
    return new_x, new_y


@dataclass(frozen=True)
class LabelNoise(Noise):
    """A fraction of the training labels is wrong."""

    paper: ClassVar[str] = "FedBSS, AAAI 2025"

    rate: Fraction = 0.1
    # any other label, any label (some then stay right), or the next one
    type: Literal["symmetric", "symmetric-all", "pair"] = "symmetric"
    scope: Literal["client", "global"] = "client"  # the fraction holds for every client, or for all samples together

    def apply(
        self, x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray], classes: int, streams: Streams
    ) -> tuple[np.ndarray, np.ndarray]:
        """Replace the labels of the rows that drew the lowest numbers, round(rate * n) of n."""
        if classes < 2:
            raise RequestError(f"data.noise: with {classes} class there is no wrong label; use data with 2 or more")
        lots = streams("label-noise").random(len(y))
        pools = [np.concatenate([np.zeros(0, dtype=np.int64), *clients])] if self.scope == "global" else clients
        wrong = [rows[np.argsort(lots[rows], kind="stable")[: round(self.rate * len(rows))]] for rows in pools]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *wrong])
        if not len(rows):
            return x, y
        # One number a row whatever its label, so that a row's draw stays its own; `integers` may use several.
        draw = streams("label-noise-value").random(len(y))[rows]
        noisy, right = y.copy(), y[rows].astype(np.int64)
        if self.type == "pair":
            noisy[rows] = (right + 1) % classes
        elif self.type == "symmetric":
            noisy[rows] = (right + 1 + (draw * (classes - 1)).astype(np.int64)) % classes
        else:
            noisy[rows] = (draw * classes).astype(np.int64)
        return x, noisy


@dataclass(frozen=True)
class FeatureNoise(Noise):
    """Features are disturbed by Gaussian noise, from client to client more, or each client in its own tile.

    `sigma` is in units of the features; for uint8 images it is in units of the whole range, as in NIID-Bench, where
    pixels go from 0 to 1. Floats keep their type. uint8 images become float32 on the same scale (pixels from 0 to
    255, so noise of 255 * sigma is added), neither rounded, which would swallow the noise of the first clients, nor
    clipped, which would move the mean: what scales pixels must go by the data set, not by the type.
    """

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    sigma: NonNegative = 0.1
    # level: client k of N has std sigma*k/N; space: each has std sigma in its own tile of the image
    type: Literal["level", "space"] = "level"

    def apply(
        self, x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray], classes: int, streams: Streams
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add noise, chunk by chunk."""
        from scipy.special import ndtri  # noqa: PLC0415  scipy takes long to import, and few runs need it

        if x.dtype.kind != "f" and x.dtype != np.uint8:
            raise RequestError(
                f"data.noise: features of type {x.dtype} are tokens, not measurements; "
                "feature-noise takes floats and uint8 images"
            )
        tiles = _tiles(x.shape, len(clients)) if self.type == "space" else None
        owner = np.full(len(x), -1)
        for client, rows in enumerate(clients):
            owner[rows] = client
        if self.sigma == 0 or not (owner >= 0).any():
            return x, y
        scale = self.sigma * (255.0 if x.dtype == np.uint8 else 1.0)
        noisy = x.astype(x.dtype if x.dtype.kind == "f" else np.float32)  # always a copy
        rng, wide = streams("feature-noise"), prod(x.shape[1:])
        inner = [1] * (x.ndim - 1)
        chunk = max(1, (1 << 22) // max(wide, 1))
        for start in range(0, len(x), chunk):
            at = slice(start, start + chunk)
            of = owner[at]
            # One uniform number a feature, turned into a normal one: numpy's own normal numbers take a varying number
            # of draws, so that a row's would depend on the rows before it. 0 would become minus infinity.
            noise = scale * ndtri(np.maximum(rng.random((len(of), wide)), 2.0**-54)).reshape(-1, *x.shape[1:])
            if tiles is None:  # rows of nobody have owner -1: level 0, and no tile
                noise *= ((of + 1) / len(clients)).reshape(-1, *inner)
            else:
                noise *= (tiles == of[:, None, None]).reshape(-1, *inner[2:], *tiles.shape)
            noisy[at] += noise.astype(noisy.dtype)
        return noisy, y


def _tiles(shape: tuple[int, ...], clients: int) -> np.ndarray:
    """Say which client each pixel belongs to, [height, width], in the smallest square grid with a tile a client."""
    side = ceil(sqrt(clients))
    if len(shape) < 3 or min(shape[-2:]) < side:
        raise RequestError(
            f'data.noise.type = "space" cuts images into {side} x {side} tiles for {clients} clients, which samples of '
            f'shape {tuple(shape[1:])} are too small for; use fewer clients or data.noise.type = "level"'
        )
    row, column = (np.arange(size) * side // size for size in shape[-2:])
    return np.asarray(row[:, None] * side + column)
