"""Features brought to one scale once clients hold them: gaps filled, then mean 0 and deviation 1.

    federated     by mean and deviation over all clients, which they find from sums
    per-client    every client by its own; the server is told nothing
    none          as they are

Means and deviations that are given are taken in any case. First everybody finds out what is to be done
(`find_statistics`, from answers of clients, wherever they are), then each owner does it to its samples
(`scale_samples`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Literal

import numpy as np
import torch

from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.data.preprocessing import Column, Preprocessing, statistics_of
from fedstrata.data.reading import Samples
from fedstrata.data.statistics import Answers, Ask, Exchanges, mean_and_deviation, medians

Scale = Literal["federated", "per-client", "none"]
MEDIAN = "median"  # what stands in for a missing value, where it is to be found


@dataclass(frozen=True)
class FeaturesTold:
    """What clients tell of their features before the first round.

    Attributes
    ----------
    scaled
        Features (or channels) of which mean and deviation are found.
    medians
        Columns of which the median is found.
    words
        Categorical columns, of which each client tells the values that it holds.
    exchanges
        What simulated clients bring to be added up: whether it is counts, and an array [clients, numbers] each time.
    word_bytes
        What it takes to tell the values of categorical columns.
    sum_bytes
        What it takes to bring what is added up: in the open 8 bytes a number.
    """

    scaled: int = 0
    medians: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    exchanges: tuple[tuple[bool, np.ndarray], ...] = ()
    word_bytes: int = 0
    sum_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What it takes to tell."""
        return self.word_bytes + self.sum_bytes


@dataclass(frozen=True)
class Scaled:
    """Samples as a federation holds them, what was done to them, and what that took."""

    parts: list[Samples]
    inputs: Inputs
    preprocessing: Preprocessing
    told: FeaturesTold | None


Part = tuple[Samples, Split | None]  # samples, and who holds them


def bring_to_scale(scale: Scale, parts: Sequence[Part], asked: Preprocessing) -> Scaled:
    """Fill gaps and scale features of samples; the first ones are trained on, and all statistics are of those.

    Where every client is scaled by its own statistics, samples that nobody holds are scaled by theirs together.
    """
    train, exchanges = parts[0][0].x.numpy(), Exchanges()
    asked = to_be_scaled(scale, train, asked)
    rows = [own for own in _rows(parts[0][1]) if len(own)]

    def among_clients(known: Preprocessing) -> Ask:
        return exchanges.among([answers(train, own, known.columns) for own in rows])

    done = find_statistics(scale, asked, among_clients)
    new, inputs = scale_samples(parts, done)
    told = features_told(
        scale,
        asked,
        done,
        exchanges=tuple(exchanges.brought),
        word_bytes=sum(_word_bytes(asked.columns, train[own]) for own in rows),
        sum_bytes=sum(8 * brought.size for _, brought in exchanges.brought),
    )
    return Scaled(new, inputs, done, told)


def to_be_scaled(scale: Scale, x: np.ndarray, asked: Preprocessing) -> Preprocessing:
    """Say what is to be done to samples before any statistics are known; refuse scales that do not fit them."""
    if scale not in ("federated", "per-client", "none"):
        raise RequestError(f'scale = "{scale}"; allowed: "federated", "per-client", "none"')
    pixels = x.dtype == np.uint8
    if x.dtype.kind in "iub" and not pixels and scale != "none":
        raise RequestError(f'scale = "{scale}": these samples are whole numbers (tokens), which are not scaled')
    if pixels and scale == "per-client":
        raise RequestError('scale = "per-client" is for tables and signals; images take "federated" or "none"')
    own = scale == "per-client" and asked.mean is None
    return replace(asked, shape=tuple(x.shape[1:]), scale=255.0 if pixels else asked.scale, per_client=own)


def find_statistics(scale: Scale, asked: Preprocessing, among_clients: Callable[[Preprocessing], Ask]) -> Preprocessing:
    """Find what is still unknown: medians that fill gaps, then means and deviations of what is filled.

    `among_clients` is told what is known so far, and gives what asks clients about features in that order.
    """
    done = asked
    if any(map(is_median, asked.columns)):
        found = iter(medians(among_clients(asked)).tolist())
        columns = [replace(c, fill=next(found)) if is_median(c) else c for c in asked.columns]
        if empty := [column.name for column in columns if isinstance(column.fill, float) and isnan(column.fill)]:
            raise RequestError(f"column {empty[0]} holds no value at any client; leave it out with data.drop")
        done = replace(asked, columns=tuple(columns))
    if scale == "federated" and asked.mean is None:
        mean, std = mean_and_deviation(among_clients(done))
        done = replace(done, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    return done


def answers(x: np.ndarray, own: np.ndarray, columns: Sequence[Column]) -> Answers:
    """Return what a client says of its own rows: as long as medians are wanted, of the columns that need them."""
    if places := median_places(columns):
        return Answers(lambda: x[own][:, places])
    return Answers(lambda: _filled(x[own], columns))


def scale_samples(parts: Sequence[Part], done: Preprocessing) -> tuple[list[Samples], Inputs]:
    """Do what is settled to samples; bytes are scaled on the device, so those only get gaps filled, if any."""
    new = []
    for samples, split in parts:
        x = _filled(samples.x.numpy(), done.columns)
        if x.dtype.kind == "f":
            x = _by_owner(x, _rows(split)) if done.per_client else done.scaled(x).astype(np.float32)
        new.append(replace(samples, x=torch.from_numpy(np.ascontiguousarray(x))))
    return new, inputs_of(done, parts[0][0].x.dtype)


def inputs_of(done: Preprocessing, dtype: torch.dtype) -> Inputs:
    """Say what is left to do to samples that `scale_samples` gave."""
    return Inputs(255.0, done.mean, done.std) if dtype == torch.uint8 else Inputs()


def features_told(
    scale: Scale,
    asked: Preprocessing,
    done: Preprocessing,
    *,
    exchanges: tuple[tuple[bool, np.ndarray], ...] = (),
    word_bytes: int = 0,
    sum_bytes: int = 0,
) -> FeaturesTold | None:
    """Say what clients told of their features; None: nothing."""
    found = 0 if done.mean is None or scale != "federated" or asked.mean is not None else len(done.mean)
    of_medians = tuple(column.name for column in asked.columns if is_median(column))
    words = tuple(column.name for column in asked.columns if column.values is not None)
    told = FeaturesTold(found, of_medians, words, exchanges, word_bytes, sum_bytes)
    return told if found or of_medians or words else None


def is_median(column: Column) -> bool:
    """Say whether a column's gaps are filled by its median, which is not known yet."""
    return column.fill == MEDIAN and column.values is None


def median_places(columns: Sequence[Column]) -> list[int]:
    """Return which features those are of columns whose median is wanted."""
    starts = np.cumsum([0, *(column.width for column in columns)]).tolist()
    return [start for start, column in zip(starts, columns, strict=False) if is_median(column)]


def _rows(split: Split | None) -> list[np.ndarray]:
    return [] if split is None else [split[client] for client in range(len(split))]


def _filled(x: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """Put what stands in for missing values in their places."""
    if x.dtype.kind != "f" or not columns:
        return x
    values = [
        np.nan if column.fill is None or column.values is not None else float(column.fill)
        for column in columns
        for _ in range(column.width)
    ]
    return np.where(np.isnan(x), np.array(values, dtype=x.dtype), x)


def _word_bytes(columns: Sequence[Column], x: np.ndarray) -> int:
    """Return how long the values of categorical columns are that a client holds."""
    starts, length = np.cumsum([0, *(column.width for column in columns)]), 0
    for column, start in zip(columns, starts.tolist(), strict=False):
        for i, value in enumerate(column.values or ()):
            length += len(value.encode()) * bool(x[:, start + i].any())
    return length


def _by_owner(x: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Scale every owner's samples by their own statistics, and what nobody owns by its own."""
    scaled, free = np.empty(x.shape, np.float32), np.ones(len(x), dtype=bool)
    for own in rows:
        free[own] = False
    for own in [*rows, np.flatnonzero(free)]:
        if len(own):
            part = x[own].astype(np.float64)
            mean, std = statistics_of(part)
            scaled[own] = Preprocessing(mean=tuple(mean), std=tuple(std)).scaled(part)
    return scaled
