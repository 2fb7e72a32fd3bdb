"""How far apart what clients sent lies: all that Krum and the geometric median look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedstrata.core.messages import Report

CELLS = 2**21  # numbers that are multiplied at a time


def squared_distances(reports: Sequence[Report]) -> np.ndarray:
    """Return |u_i - u_j|^2, [n, n], over everything that is summed: a liar must not hide in norm statistics.

    Products of a few numbers of all clients are added up at a time, so that no second copy of the updates exists.
    """
    n = len(reports)
    products = torch.zeros(n, n, dtype=torch.float64)
    for name in reports[0].aggregated:
        flat, width = [r.aggregated[name].reshape(-1) for r in reports], max(1, CELLS // n)
        for start in range(0, len(flat[0]), width):
            table = torch.stack([f[start : start + width] for f in flat]).double()
            products += table @ table.T
    gram: np.ndarray = ((products + products.T) / 2).numpy()  # exactly symmetric, so that ties stay ties
    own = np.diag(gram)
    distances: np.ndarray = np.maximum(own[:, None] + own[None, :] - 2 * gram, 0.0)
    return distances
