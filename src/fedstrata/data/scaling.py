"""Features brought to one scale once clients hold them: gaps filled, then mean 0 and deviation 1.

    federated     by mean and deviation over all clients, which they find from sums
    per-client    every client by its own; the server is told nothing
    none          as they are

Means and deviations that are given are taken in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from fedstrata.core.errors import RequestError
from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.data.preprocessing import Column, Preprocessing, statistics_of
from fedstrata.data.reading import Samples
from fedstrata.data.statistics import Exchanges, mean_and_deviation, medians

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
        What clients bring to be added up, an array [clients, numbers] each time.
    word_bytes
        What it takes to tell the values of categorical columns.
    """

    scaled: int = 0
    medians: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    exchanges: tuple[np.ndarray, ...] = ()
    word_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What it takes to tell in the open: 8 bytes a number, and the words."""
        return self.word_bytes + sum(8 * brought.size for brought in self.exchanges)


@dataclass(frozen=True)
class Scaled:
    """Samples as a federation holds them, what was done to them, and what that took."""

    parts: list[Samples]
    inputs: Inputs
    preprocessing: Preprocessing
    told: FeaturesTold | None


def bring_to_scale(scale: Scale, parts: Sequence[tuple[Samples, Split | None]], asked: Preprocessing) -> Scaled:
    """Fill gaps and scale features of samples; the first ones are trained on, and all statistics are of those.

    Beside samples stands who holds them. Where every client is scaled by its own statistics, those that nobody holds
    are scaled by theirs together.
    """
    if scale not in ("federated", "per-client", "none"):
        raise RequestError(f'scale = "{scale}"; allowed: "federated", "per-client", "none"')
    train, exchanges = parts[0][0].x.numpy(), Exchanges()
    rows = [own for own in _rows(parts[0][1]) if len(own)]
    pixels, given = train.dtype == np.uint8, asked.mean is not None
    if train.dtype.kind in "iub" and not pixels and scale != "none":
        raise RequestError(f'scale = "{scale}": these samples are whole numbers (tokens), which are not scaled')
    columns = _with_medians(asked.columns, train, rows, exchanges)
    done = replace(asked, columns=columns, shape=tuple(train.shape[1:]), scale=255.0 if pixels else asked.scale)
    filled = [_filled(samples.x.numpy(), columns) for samples, _ in parts]
    scaled = 0
    if scale == "federated" and not given:
        mean, std = mean_and_deviation(filled[0], rows, exchanges)
        scaled, done = len(mean), replace(done, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
    if pixels:
        if scale == "per-client":
            raise RequestError('scale = "per-client" is for tables and signals; images take "federated" or "none"')
        inputs, x = Inputs(255.0, done.mean, done.std), filled
    elif scale == "per-client" and not given:
        done = replace(done, per_client=True)
        x = [_by_owner(found, _rows(split)) for found, (_, split) in zip(filled, parts, strict=True)]
        inputs = Inputs()
    else:
        x = [done.scaled(found).astype(np.float32) if found.dtype.kind == "f" else found for found in filled]
        inputs = Inputs()
    told = FeaturesTold(
        scaled,
        tuple(column.name for column in asked.columns if column.fill == MEDIAN and column.values is None),
        tuple(column.name for column in columns if column.values is not None),
        tuple(exchanges.brought),
        sum(_word_bytes(columns, filled[0][own]) for own in rows),
    )
    new = [replace(old, x=torch.from_numpy(np.ascontiguousarray(to))) for (old, _), to in zip(parts, x, strict=True)]
    return Scaled(new, inputs, done, told if scaled or told.medians or told.words else None)


def _rows(split: Split | None) -> list[np.ndarray]:
    return [] if split is None else [split[client] for client in range(len(split))]


def _with_medians(
    columns: tuple[Column, ...], x: np.ndarray, rows: Sequence[np.ndarray], exchanges: Exchanges
) -> tuple[Column, ...]:
    """Find the medians that are asked for."""
    wanted = [i for i, column in enumerate(columns) if column.fill == MEDIAN and column.values is None]
    if not wanted:
        return columns
    starts = np.cumsum([0, *(column.width for column in columns)])
    found = medians([x[own][:, starts[wanted]] for own in rows], exchanges)
    if np.isnan(found).any():
        name = columns[wanted[int(np.isnan(found).argmax())]].name
        raise RequestError(f"column {name} holds no value at any client; leave it out with data.drop")
    new = list(columns)
    for i, median in zip(wanted, found.tolist(), strict=True):
        new[i] = replace(columns[i], fill=median)
    return tuple(new)


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
