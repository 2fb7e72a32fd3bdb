"""Some of the training samples of a data set, every label in proportion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.reading import read_labels
from fedstrata.data.sets.base import Arrays


def take_some(arrays: Arrays, samples: int, name: str, seed: int) -> Arrays:
    """Return the same data with so many training samples, in their order; the test set stays as it is."""
    found, codes = np.unique(read_labels(arrays.y), return_inverse=True)
    if not len(found) <= samples <= len(codes):
        allowed = f"{len(found)}, the number of labels, to {len(codes)}, the number of training samples of {name}"
        raise RequestError(f"data.samples = {samples} is not valid; allowed: {allowed}")
    wanted = in_proportion(np.bincount(codes), samples)
    rng = Streams(seed)("subset")
    taken = [rng.permutation(np.flatnonzero(codes == label))[:count] for label, count in enumerate(wanted)]
    rows = np.sort(np.concatenate(taken))
    groups = None if arrays.groups is None else arrays.groups[rows]
    return replace(arrays, x=arrays.x[rows], y=arrays.y[rows], groups=groups)


def in_proportion(counts: np.ndarray, samples: int) -> np.ndarray:
    """Share a number out as counts are: at least one each, and the rest by the largest remainders."""
    exact = counts * (samples / counts.sum())
    shares: np.ndarray = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (missing := samples - shares.sum()) != 0:  # ones that were rounded up are taken from the largest
        step = 1 if missing > 0 else -1
        able = shares < counts if step > 0 else shares > 1
        order = np.argsort(np.where(able, step * (shares - exact), np.inf), kind="stable")
        shares[order[: min(abs(missing), int(able.sum()))]] += step
    return shares
