"""Samples and labels from arrays and tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import RequestError
from fedstrata.data.partitions.base import Labelled

Label = int | str
CHUNK = 1 << 24  # numbers looked at together


@dataclass(frozen=True)
class Samples:
    """Samples shared by all clients: features, class indices 0..C-1, and a group each (domain, subject) if any."""

    x: Tensor
    y: Tensor
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def keep(self, rows: np.ndarray) -> Samples:
        """Make a set of its own of some rows."""
        at = torch.from_numpy(rows)
        return Samples(self.x[at], self.y[at], None if self.groups is None else self.groups[rows])

    def labelled(self, rows: np.ndarray) -> Labelled:
        """Return what a partition sees of some rows."""
        return Labelled(self.y.numpy()[rows], None if self.groups is None else self.groups[rows])


def read_samples(
    x: Any, y: Any, groups: Any = None, *, classes: tuple[Label, ...] | None = None, gaps: bool = False
) -> tuple[Samples, tuple[Label, ...]]:
    """Read features and labels, and refuse what cannot be trained on; `gaps`: NaN will be filled."""
    features = read_features(x)
    codes, names = class_codes(y, classes)
    if len(features) != len(codes):
        raise RequestError(f"{len(features)} samples but {len(codes)} labels")
    if features.is_floating_point():
        some = max(1, CHUNK // max(features[:1].numel(), 1))  # not the whole set at once
        parts = [features[i : i + some].flatten(1) for i in range(0, len(features), some)]
        sound = [(part.isfinite() | part.isnan() if gaps else part.isfinite()).all(1) for part in parts]
        bad = (~torch.cat(sound)).nonzero().flatten().tolist() if sound else []
        if len(bad):
            raise RequestError(f"{len(bad)} samples hold NaN or infinite features, the first at row {bad[0]}")
    of = None if groups is None else np.asarray(groups)
    if of is not None and len(of) != len(codes):
        raise RequestError(f"{len(codes)} samples but {len(of)} groups")
    return Samples(features, torch.from_numpy(codes), of), names


def read_features(x: Any, alone: bool = False) -> Tensor:
    """Read samples as one tensor, [n, ...]; with `alone`, a single row of numbers is one sample."""
    if hasattr(x, "toarray") or (isinstance(x, Tensor) and x.layout != torch.strided):
        raise RequestError(f"features must be dense, not {type(x).__name__}: give x.toarray(), or x.to_dense()")
    if isinstance(x, Tensor):
        tensor = x.detach().cpu()
        tensor = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    else:
        try:
            array = np.ascontiguousarray(x)
        except ValueError as error:
            raise RequestError(f"samples must all have the same shape: {error}") from None
        if array.dtype.kind not in "biuf":
            raise RequestError(f"features must be numbers, not {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        tensor = _shared(array)
    if tensor.is_complex():
        raise RequestError("features must be real numbers")
    if alone and tensor.ndim == 1 and len(tensor):
        tensor = tensor[None]
    if tensor.ndim < 2:
        raise RequestError(f"samples must be arrays themselves, [n, ...]; got shape {tuple(tensor.shape)}")
    return tensor


def refuse_mixed_pixels(types: Mapping[str, torch.dtype]) -> None:
    """Refuse pixels from 0 to 255 beside samples of another type, by holder: one scale cannot fit both."""
    named = {holder: str(dtype).removeprefix("torch.") for holder, dtype in types.items()}
    pixels = next((holder for holder, name in named.items() if name == "uint8"), None)
    other = next((holder for holder, name in named.items() if name != "uint8"), None)
    if pixels is not None and other is not None:
        raise RequestError(
            f"{pixels} has samples of type uint8, {other} of type {named[other]}: uint8 is pixels, which are divided "
            "by 255, and nothing else is; give all samples in one type and on one scale, such as x / 255 for the uint8"
        )


def _shared(array: np.ndarray) -> Tensor:
    """Return a tensor over the same memory; nothing ever writes to it, so read-only arrays (mapped files) are fine."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def read_labels(labels: Any) -> np.ndarray:
    """Read labels as whole numbers or as text; a missing one is refused."""
    if isinstance(labels, Tensor):
        y = labels.detach().cpu().numpy()
    elif isinstance(labels, np.ndarray):
        y = labels
    else:  # not np.asarray, which would turn a missing label beside text into the text "nan"
        y = np.empty(len(labels), dtype=object)
        y[:] = [v.item() if isinstance(v, Tensor | np.generic) else v for v in labels]
    if y.ndim != 1:
        raise RequestError(_several_labels(y))
    if y.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(y))
    else:
        missing = np.flatnonzero([is_missing(v) for v in y] if y.dtype.kind in "OU" else [])
    if len(missing):
        raise RequestError(f"{len(missing)} labels are missing, the first at row {missing[0]}; drop those rows")
    if y.dtype.kind == "U" or (y.dtype.kind == "O" and any(isinstance(v, str) for v in y)):
        return np.array([str(v) for v in y])
    try:
        numbers = y.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"labels must be text or whole numbers, not {type(y[0]).__name__}") from None
    if (broken := ~np.isfinite(numbers) | (numbers != np.round(numbers))).any():
        raise RequestError(
            f"labels must be classes, but {numbers[broken][0]:g} is a quantity; make classes of it (numpy.digitize)"
        )
    return y.astype(np.int64)


def _several_labels(y: np.ndarray) -> str:
    """Say what to do with labels that are a table: one-hot, or several a sample."""
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "biuf" and np.isin(y, (0, 1)).all():
        if (y.sum(1) == 1).all():
            return f"labels are one-hot, [n, {y.shape[1]}]; give the classes themselves: y.argmax(1)"
        if (y.sum(1) > 1).any():
            return (
                f"there are several labels a sample, [n, {y.shape[1]}]: multi-label data cannot be trained on, every "
                "sample needs one class; train a model a label (y[:, i]), or make a class of each combination"
            )
    return f"labels must be one-dimensional, one a sample; got shape {y.shape}"


def is_missing(label: Any) -> bool:
    """Say whether a label, or the name of a client, is a gap."""
    return label is None or label == "" or (isinstance(label, float) and math.isnan(label))


def class_codes(labels: Any, classes: tuple[Label, ...] | None = None) -> tuple[np.ndarray, tuple[Label, ...]]:
    """Map labels to 0..C-1. Strings and gaps are fine: the classes give the map back."""
    found, codes = np.unique(read_labels(labels), return_inverse=True)
    names: tuple[Label, ...] = tuple(found.tolist())
    if classes is None:
        return codes.astype(np.int64), names
    if strange := [n for n in names if n not in classes]:
        raise RequestError(f"the test labels {strange} do not occur in the training data")
    return np.array([classes.index(n) for n in names], dtype=np.int64)[codes], classes


def fold_label(label: Label) -> str:
    """Return what spellings of one label have in common: those that differ in case or blanks are no classes apart."""
    return str(label).strip().casefold()


def refuse_spellings(held: Mapping[Label, int]) -> None:
    """Refuse labels of one owner, how many of which, if two are one name that is spelled differently."""
    seen: dict[str, tuple[Label, int]] = {}
    for label, count in held.items():
        known, rows = seen.setdefault(fold_label(label), (label, count))
        if known != label:
            raise RequestError(f"label {known!r} of {rows} rows is {label!r} in {count} others: use one name")


def order_labels(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Put labels of several owners into one order: numbers, then text."""
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))
