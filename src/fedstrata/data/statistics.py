"""Means, deviations and medians of what clients hold, from sums: every client adds up its own, nobody tells a sample.

A mean is one exchange (how many, and their sum), a deviation a second (squared distances from the mean): exact where
sums of squares would lose every digit of a time stamp. Medians are found bit by bit: clients count how many of their
values lie below a few thresholds, which narrow down from all numbers to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedstrata.data.preprocessing import Preprocessing, usable

BITS = 4  # of a median, that one exchange finds
CHUNK = 1 << 22  # pixels counted together


@dataclass
class Exchanges:
    """What clients brought to be added up, an array [clients, numbers] each time."""

    brought: list[np.ndarray] = field(default_factory=list)

    def add_up(self, numbers: Sequence[np.ndarray]) -> np.ndarray:
        """Add up what every client brings, exactly: the same however it is added, in the open or under masks."""
        table = np.array(numbers, dtype=np.float64)
        self.brought.append(table)
        return np.array([math.fsum(column) for column in table.T])


def mean_and_deviation(
    x: np.ndarray, clients: Sequence[np.ndarray], exchanges: Exchanges
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of every feature (or channel) over the rows of all clients; no deviation is 0."""
    if x.dtype == np.uint8:
        return _of_pixels([_pixel_counts(x, rows) for rows in clients], exchanges)

    def of_client(rows: np.ndarray) -> np.ndarray:  # one at a time: all of them are a copy of everything
        own: np.ndarray = np.moveaxis(x[rows], 1, -1).reshape(-1, x.shape[1]).astype(np.float64)
        return own

    def brought(rows: np.ndarray) -> np.ndarray:
        own = of_client(rows)
        return np.array([len(own), *own.sum(0)])

    count, *sums = exchanges.add_up([brought(rows) for rows in clients])
    mean = np.array(sums) / count
    squares = exchanges.add_up([((of_client(rows) - mean) ** 2).sum(0) for rows in clients])
    return mean, usable(mean, np.sqrt(squares / count))


def _of_pixels(counts: Sequence[np.ndarray], exchanges: Exchanges) -> tuple[np.ndarray, np.ndarray]:
    """Do the same for bytes, on the scale of 0 to 1."""
    grey = np.arange(256) / 255
    count, *sums = exchanges.add_up([np.array([of[0].sum(), *of @ grey]) for of in counts])
    mean = np.array(sums) / count
    away = (grey - mean[:, None]) ** 2
    squares = exchanges.add_up([(of * away).sum(1) for of in counts])
    return mean, usable(mean, np.sqrt(squares / count))


def _pixel_counts(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Count every shade of every channel in some images."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    step = max(1, CHUNK // max(images[:1, :1].size, 1))
    for start in range(0, len(rows), step):  # numpy widens what it counts to 8 bytes a pixel
        for channel in range(len(counts)):
            counts[channel] += np.bincount(images[rows[start : start + step], channel].reshape(-1), minlength=256)
    return counts


def medians(clients: Sequence[np.ndarray], exchanges: Exchanges) -> np.ndarray:
    """Return the median of every column over all clients' values; missing ones (NaN) do not count.

    Of an even number of values it is the mean of the two in the middle; of none it is NaN.
    """
    held = [[np.sort(_places(column[~np.isnan(column)])) for column in x.T] for x in clients]
    counts = exchanges.add_up([np.array([len(column) for column in own]) for own in held]).astype(np.int64)
    wanted = np.stack([(counts - 1) // 2, counts // 2], axis=1).reshape(-1)  # two ranks a column
    found = np.zeros(len(wanted), dtype=np.uint64)
    steps = np.arange(1, 1 << BITS, dtype=np.uint64)
    for shift in range(64 - BITS, -1, -BITS):
        thresholds = found[:, None] + (steps << np.uint64(shift))
        below = exchanges.add_up(
            [np.concatenate([np.searchsorted(own[i // 2], thresholds[i]) for i in range(len(wanted))]) for own in held]
        ).reshape(thresholds.shape)
        found += (below <= wanted[:, None]).sum(1).astype(np.uint64) << np.uint64(shift)
    low, high = _numbers(found).reshape(-1, 2).T
    return np.where(counts > 0, low + (high - low) / 2, np.nan)


def _places(numbers: np.ndarray) -> np.ndarray:
    """Return where numbers stand among all float64 ones, as whole numbers in the same order."""
    bits = (numbers.astype(np.float64) + 0.0).view(np.uint64)  # + 0.0: there is one zero
    sign = np.uint64(1 << 63)
    return np.where(bits & sign, ~bits, bits | sign)


def _numbers(places: np.ndarray) -> np.ndarray:
    sign = np.uint64(1 << 63)
    return np.where(places & sign, places & ~sign, ~places).view(np.float64)


def standardise(
    train: np.ndarray, test: np.ndarray, which: np.ndarray | bool = True, axes: tuple[int, ...] = (0,)
) -> tuple[np.ndarray, np.ndarray, Preprocessing]:
    """Standardise some columns (or channels) of a published set by the statistics of its training part.

    The result is float32, and what was done; constant columns become 0.
    """
    low, high = train.min(axes, keepdims=True), train.max(axes, keepdims=True)
    varied = low < high  # the deviation of a constant column need not be 0: its mean is rounded
    mean = np.where(varied, train.mean(axes, keepdims=True, dtype=np.float64), low)
    std = train.std(axes, keepdims=True, dtype=np.float64)
    mean = np.where(which, mean, 0.0)
    std = np.where(np.logical_and(which, varied & (std > 0)), std, 1.0)
    first, second = (
        ((part - mean.astype(part.dtype)) / std.astype(part.dtype)).astype(np.float32, copy=False)
        for part in (train, test)
    )
    done = Preprocessing(shape=train.shape[1:], mean=tuple(mean.flat), std=tuple(std.flat))
    return first, second, done


def brightness(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of a published set's images by channel, on the scale of 0 to 1."""
    mean, std = mean_and_deviation(images, [np.arange(len(images))], Exchanges())
    return tuple(mean.tolist()), tuple(std.tolist())
