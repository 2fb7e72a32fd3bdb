"""Feature skew: whether domains, subjects or writers look different, and whether clients hold different ones.

A light probe: on a bounded sample with as many rows of each group, a linear discriminant on coarse features says which
group a sample is from, and is tested on the other half. Each label's mean is taken off first, so that groups which
only hold other labels do not look different.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from fedstrata.core.rng import Rng, Streams
from fedstrata.data.federation import Federation

SAMPLED, GROUPS, SIDE, LONGEST = 2_000, 20, 8, 256  # samples, groups, pixels of an image, features of a sample
FEWEST = 4  # samples of a group that is probed: each half of the test holds two
RIDGE = 0.1  # of the mean variance: keeps the spread of few samples invertible


@dataclass(frozen=True)
class Domains:
    """How different groups are."""

    number: int
    told_apart: float  # 0: no better than guessing which group a sample is from, 1: always right
    held_apart: float  # mean distance of a client's groups from those of all, as EMD


def domains(federation: Federation, seed: int = 0) -> Domains | None:
    """Probe the groups of the training samples; None where fewer than two have enough of them to be looked at."""
    groups, rows = federation.train.groups, federation.train_split.rows
    if groups is None:
        return None
    names, of = np.unique(groups[rows], return_inverse=True)
    if np.count_nonzero(np.bincount(of, minlength=2) >= FEWEST) < 2:
        return None
    counts = np.bincount(federation.train_split.owners * len(names) + of, minlength=len(federation) * len(names))
    table = counts.reshape(len(federation), len(names))
    table = table[table.sum(1) > 0]
    apart = np.abs(table / table.sum(1, keepdims=True) - table.sum(0) / table.sum()).sum(1).mean()
    chosen, which = _sample(of, Streams(seed)("inspect"))
    x = _coarse(federation.inputs(federation.train.x[rows[chosen]], torch.float32))
    told = told_apart(x.numpy().astype(np.float64), which, federation.labels[rows[chosen]])
    return Domains(len(names), told, float(apart))


def told_apart(x: np.ndarray, groups: np.ndarray, labels: np.ndarray) -> float:
    """Return how much better than guessing a linear probe tells groups apart, from 0 to 1.

    Rows of a group alternate between the halves of a two-fold test, so they should be in random order.
    """
    for label in np.unique(labels):
        x[labels == label] -= x[labels == label].mean(0)
    order = np.argsort(groups, kind="stable")
    half = np.empty(len(groups), dtype=bool)
    half[order] = np.arange(len(groups)) % 2 == 0
    number = int(groups.max()) + 1
    right = np.concatenate([_guessed(x[a], groups[a], x[~a], number) == groups[~a] for a in (half, ~half)])
    chance = 1 / number
    return float(np.clip((right.mean() - chance) / (1 - chance), 0, 1))


def _guessed(x: np.ndarray, groups: np.ndarray, other: np.ndarray, number: int) -> np.ndarray:
    """Guess the groups of other samples by the nearest group mean, measured by the spread inside groups."""
    means = np.stack([x[groups == group].mean(0) for group in range(number)])
    inside = x - means[groups]
    spread = inside.T @ inside / len(x)
    spread += RIDGE * np.eye(len(spread)) * max(np.trace(spread) / len(spread), 1e-12)
    towards = np.linalg.solve(spread, means.T)
    return np.asarray((other @ towards - (means.T * towards).sum(0) / 2).argmax(1))


def _sample(of: np.ndarray, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Choose equally many samples of each of the largest groups; also give which of those each is from."""
    sizes = np.bincount(of)
    largest = np.argsort(-sizes, kind="stable")[: min(GROUPS, np.count_nonzero(sizes >= FEWEST))]
    each = min(SAMPLED // len(largest), int(sizes[largest].min()))
    chosen = [rng.choice(np.flatnonzero(of == group), each, replace=False) for group in largest]
    return np.concatenate(chosen), np.repeat(np.arange(len(largest)), each)


def _coarse(x: Tensor) -> Tensor:
    """Average images and signals over regions, and give one vector a sample."""
    x = x.float()
    if x.ndim == 4:
        x = adaptive_avg_pool2d(x, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3])))
    x = x.flatten(1)
    return adaptive_avg_pool1d(x[:, None], LONGEST)[:, 0] if x.shape[1] > LONGEST else x
