"""Means, deviations and medians of what clients hold, from sums: every client adds up its own, nobody tells a sample.

A mean is one question (how many, and their sum), a deviation a second (squared distances from the mean): exact where
sums of squares would lose every digit of a time stamp. Medians are found bit by bit: clients count how many of their
values lie below a few thresholds, which narrow down from all numbers to one.

Who asks needs the sum of the answers and nothing else (`Ask`), so it makes no difference whether clients are simulated
here or live at sites of their own, and whether their answers are added up in the open or under masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fedstrata.data.preprocessing import Preprocessing, usable

BITS = 4  # of a median, that one exchange finds
CHUNK = 1 << 22  # pixels counted together
GREY = np.arange(256) / 255  # shades on the scale of 0 to 1

Kind = Literal["sums", "squares", "values", "below"]
Ask = Callable[["Question"], np.ndarray]  # the sum of all clients' answers


@dataclass(frozen=True)
class Question:
    """What every client answers with numbers of its own.

    sums       how many samples (or pixels of a channel) there are, and the sum of each feature (or channel)
    squares    of each feature: the sum of squared distances from its mean, which is told in `numbers`
    values     how many values there are of each column; missing ones (NaN) do not count
    below      how many of them lie below thresholds, `numbers` [two a column, thresholds], as places among all numbers
    """

    kind: Kind
    numbers: np.ndarray | None = None

    @property
    def counts(self) -> bool:
        """Whether answers are counts."""
        return self.kind in ("values", "below")

    def size(self, features: int) -> int:
        """Return how many numbers an answer has, about so many features."""
        return self.numbers.size if self.numbers is not None else features + (self.kind == "sums")


class Answers:
    """What one client says of its samples; `samples` gives them anew for every question, so that few are held at once.

    Features are columns, or channels where samples have more dimensions; those of bytes are on the scale of 0 to 1.
    """

    def __init__(self, samples: Callable[[], np.ndarray]):
        self._samples = samples

    def __call__(self, question: Question) -> np.ndarray:
        """Answer a question."""
        numbers = np.zeros(0) if question.numbers is None else question.numbers
        if question.kind == "sums":
            return self._sums()
        if question.kind == "squares":
            return self._squares(numbers)
        if question.kind == "values":
            return np.array([len(column) for column in self._places])
        return np.concatenate([np.searchsorted(self._places[i // 2], row) for i, row in enumerate(numbers)])

    def _sums(self) -> np.ndarray:
        if self._shades is not None:
            return np.array([self._shades[0].sum(), *self._shades @ GREY])
        own = self._rows()
        return np.array([len(own), *own.sum(0)])

    def _squares(self, mean: np.ndarray) -> np.ndarray:
        if self._shades is not None:
            counted: np.ndarray = (self._shades * (GREY - mean[:, None]) ** 2).sum(1)
            return counted
        squares: np.ndarray = ((self._rows() - mean) ** 2).sum(0)
        return squares

    def _rows(self) -> np.ndarray:
        """Return samples with one feature a column; every place of a channel is a row."""
        x = self._samples()
        return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1]).astype(np.float64)

    @cached_property
    def _shades(self) -> np.ndarray | None:
        """How often every channel has every shade; None where samples are no bytes."""
        images = self._samples()
        if images.dtype != np.uint8:
            return None
        counts = np.zeros((images.shape[1], 256), np.int64)
        step = max(1, CHUNK // max(images[:1, :1].size, 1))
        for start in range(0, len(images), step):  # numpy widens what it counts to 8 bytes a pixel
            for channel in range(len(counts)):
                counts[channel] += np.bincount(images[start : start + step, channel].reshape(-1), minlength=256)
        return counts

    @cached_property
    def _places(self) -> list[np.ndarray]:
        """Where the values of each column stand among all numbers, in order."""
        return [np.sort(_places(column[~np.isnan(column)])) for column in self._samples().T]


@dataclass
class Exchanges:
    """What simulated clients brought to be added up: whether it was counts, and an array [clients, numbers]."""

    brought: list[tuple[bool, np.ndarray]] = field(default_factory=list)

    def among(self, clients: Sequence[Answers]) -> Ask:
        """Return what asks these clients."""

        def ask(question: Question) -> np.ndarray:
            table = np.array([client(question) for client in clients], dtype=np.float64)
            self.brought.append((question.counts, table))
            return add_up(table)

        return ask


def add_up(numbers: np.ndarray) -> np.ndarray:
    """Add up what clients bring, [clients, numbers], exactly: the same in any order, in the open or under masks."""
    return np.array([math.fsum(column) for column in numbers.T])


def mean_and_deviation(ask: Ask) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of every feature (or channel) over the samples of all clients; no deviation is 0."""
    count, *sums = ask(Question("sums"))
    mean = np.array(sums) / count
    squares = ask(Question("squares", mean))
    return mean, usable(mean, np.sqrt(squares / count))


def medians(ask: Ask) -> np.ndarray:
    """Return the median of every column over all clients' values; missing ones (NaN) do not count.

    Of an even number of values it is the mean of the two in the middle; of none it is NaN.
    """
    counts = ask(Question("values")).astype(np.int64)
    wanted = np.stack([(counts - 1) // 2, counts // 2], axis=1).reshape(-1)  # two ranks a column
    found = np.zeros(len(wanted), dtype=np.uint64)
    steps = np.arange(1, 1 << BITS, dtype=np.uint64)
    for shift in range(64 - BITS, -1, -BITS):
        thresholds = found[:, None] + (steps << np.uint64(shift))
        below = ask(Question("below", thresholds)).reshape(thresholds.shape)
        found += (below <= wanted[:, None]).sum(1).astype(np.uint64) << np.uint64(shift)
    low, high = _numbers(found).reshape(-1, 2).T
    with np.errstate(over="ignore"):
        middle = (low + high) / 2
    return np.where(counts > 0, np.where(np.isfinite(middle), middle, low / 2 + high / 2), np.nan)


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
    mean, std = mean_and_deviation(Exchanges().among([Answers(lambda: images)]))
    return tuple(mean.tolist()), tuple(std.tolist())
