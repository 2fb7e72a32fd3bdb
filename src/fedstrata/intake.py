"""Samples and labels from whatever the user holds: arrays, tensors, torch data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.errors import RequestError

Label = int | str


@dataclass(frozen=True)
class Samples:
    """Samples shared by all clients: features, class indices 0..C-1, and a group each (domain, subject) if any."""

    x: Tensor
    y: Tensor
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)


def class_codes(labels: Any, classes: tuple[Label, ...] | None = None) -> tuple[np.ndarray, tuple[Label, ...]]:
    """Map labels to 0..C-1. Strings and gaps are fine; a missing label is not."""
    y = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.ndim != 1:
        raise RequestError(f"labels must be one-dimensional, one a sample; got shape {y.shape}")
    if y.dtype.kind == "f":
        missing = ~np.isfinite(y)
        if not missing.any() and not (y == np.round(y)).all():
            raise RequestError(f"labels must be classes, got the number {y[y != np.round(y)][0]}")
    elif y.dtype.kind == "O":
        missing = np.array([v is None or v == "" or (isinstance(v, float) and np.isnan(v)) for v in y])
    else:
        missing = y == "" if y.dtype.kind == "U" else np.zeros(len(y), dtype=bool)
    if missing.any():
        raise RequestError(
            f"{missing.sum()} labels are missing, the first at row {np.flatnonzero(missing)[0]}; drop those rows"
        )
    if y.dtype.kind == "f":
        y = y.astype(np.int64)
    if y.dtype.kind == "O":
        y = np.array([str(v) for v in y]) if any(isinstance(v, str) for v in y) else y.astype(np.int64)
    found, codes = np.unique(y, return_inverse=True)
    names: tuple[Label, ...] = tuple(found.tolist())
    if classes is None:
        return codes.astype(np.int64), names
    if strange := [n for n in names if n not in classes]:
        raise RequestError(f"the test labels {strange} do not occur in the training data")
    return np.array([classes.index(n) for n in names], dtype=np.int64)[codes], classes


def read_samples(
    x: Any, y: Any, groups: Any = None, *, classes: tuple[Label, ...] | None = None
) -> tuple[Samples, tuple[Label, ...]]:
    """Read features and labels, and refuse what cannot be trained on."""
    features = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    codes, names = class_codes(y, classes)
    if len(features) != len(codes):
        raise RequestError(f"{len(features)} samples but {len(codes)} labels")
    if features.is_floating_point():
        bad = (~features.flatten(1).isfinite().all(1)).nonzero()
        if len(bad):
            raise RequestError(f"{len(bad)} samples hold NaN or infinite features, the first at row {int(bad[0])}")
    of = None if groups is None else np.asarray(groups)
    if of is not None and len(of) != len(codes):
        raise RequestError(f"{len(codes)} samples but {len(of)} groups")
    return Samples(features, torch.from_numpy(codes), of), names


def joined(data_sets: Sequence[Any]) -> tuple[Tensor, np.ndarray, list[np.ndarray]]:
    """Join one data set a client into shared arrays, with the rows of each."""
    pairs = [read_dataset(d) for d in data_sets]
    if len({tuple(x.shape[1:]) for x, _ in pairs}) > 1:
        raise RequestError(
            f"clients hold samples of different shapes: {sorted({tuple(x.shape[1:]) for x, _ in pairs})}"
        )
    stops = np.cumsum([len(y) for _, y in pairs])
    rows = [np.arange(stop - len(y), stop) for stop, (_, y) in zip(stops, pairs, strict=True)]
    return torch.cat([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]), rows


def read_dataset(data: Any) -> tuple[Tensor, np.ndarray]:
    """Read a pair (x, y) or a torch Dataset of pairs."""
    if isinstance(data, tuple):
        x, y = data
    else:
        items = [data[i] for i in range(len(data))]
        x = torch.stack([torch.as_tensor(np.asarray(a)) for a, _ in items])
        y = np.asarray([b.item() if isinstance(b, Tensor) else b for _, b in items])
    return torch.as_tensor(np.asarray(x)), np.asarray(y)
