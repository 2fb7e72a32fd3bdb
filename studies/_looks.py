"""Digits that look different at every client: features are skewed, as where each hospital has its own scanner."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fedstrata import Federation

CLIENTS = 10
LARGEST = 0.69  # of all samples, in a look of their own, are with the first client


def looks() -> Federation:
    """Return digits: inverted at one large client; as they are, mirrored or turned at nine small ones."""
    images, y = load_digits(return_X_y=True)
    images, y = images.reshape(-1, 8, 8).astype(np.float32) / 16, y.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:360], order[360:]
    large, rest = np.split(train, [int(LARGEST * len(train))])
    rows = [large, *np.array_split(rest, CLIENTS - 1)]
    x = images.copy()
    for client, own in enumerate(rows):
        x[own] = _seen_by(client, images[own])
    shown = np.concatenate([_seen_by(client, images[test]) for client in range(4)])
    return Federation.from_arrays(
        _flat(x[train]), y[train], _renumbered(rows, train), test=(_flat(shown), np.tile(y[test], 4))
    )


def _seen_by(client: int, images: np.ndarray) -> np.ndarray:
    if client == 0:
        return 1 - images
    ways = [images, images[:, :, ::-1], images.swapaxes(1, 2)]
    return ways[client % 3]


def _flat(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.reshape(len(images), -1))


def _renumbered(rows: list[np.ndarray], train: np.ndarray) -> list[np.ndarray]:
    """Return rows as places in `train`, which lists them in the same order."""
    stops = np.cumsum([len(own) for own in rows])
    return np.split(np.arange(len(train)), stops[:-1])
