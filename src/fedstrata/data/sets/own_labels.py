"""What labels and clients of the user's own samples may be, and what is said of the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.preprocessing import MISSING, Place, at_row, is_number
from fedstrata.data.reading import read_labels, refuse_spellings

MANY, FEW = 20, 5  # so many numbers as labels, with so few samples each, are no classes


def check_labels(
    y: np.ndarray, path: Path, few: bool = False, table: bool = False, place: Place = at_row
) -> np.ndarray:
    """Labels that all look like whole numbers are numbers, the rest is text; missing ones and quantities are refused.

    `few`: these are test samples, of which there may be few of each class. `table`: they were written row by row, so
    that two spellings of one label are a mistake; classes of images may be A and a.
    """
    if y.dtype.kind == "U":
        _refuse_missing(y, "labels", path, place)
        if all(re.fullmatch(r"[+-]?\d{1,18}(\.0*)?", label) for label in np.unique(y).tolist()):
            y = y.astype(np.float64) if any("." in label for label in np.unique(y).tolist()) else y.astype(np.int64)
        elif all(map(is_number, np.unique(y).tolist())):
            y = y.astype(np.float64)
    try:
        labels = read_labels(y)
        if table:
            refuse_spellings(Counter(labels.tolist()))
    except (RequestError, ValueError) as error:
        raise RequestError(f"{path}: {error}") from None
    found = len(np.unique(labels))
    if not few and labels.dtype.kind == "i" and found > MANY and len(labels) < FEW * found:
        raise RequestError(
            f"{path}: the labels are {found} different numbers for {len(labels)} samples, which looks like a quantity, "
            "not like classes; make classes of it (numpy.digitize), or name them by text if they are some"
        )
    return labels


def check_clients(clients: np.ndarray | None, path: Path, place: Place = at_row) -> np.ndarray | None:
    """Refuse clients that are missing, or all the same."""
    if clients is None:
        return None
    _look_at(clients, path, place)
    if len(found := np.unique(clients)) < 2:
        raise RequestError(
            f"{path} names one client, {found[0] if len(found) else 'none'}; at least 2 are needed. "
            "To deal the samples out by a partition, leave the client out"
        )
    return clients


def check_test_clients(
    clients: np.ndarray | None, train: np.ndarray | None, path: Path, place: Place = at_row
) -> np.ndarray | None:
    """Refuse clients of test samples that do not fit those of training samples."""
    if clients is None and train is None:
        return None
    if clients is None or train is None:
        raise RequestError(f"{path}: training and test samples must both name their clients, or neither")
    _look_at(clients, path, place)
    if (clients.dtype.kind == "U") != (train.dtype.kind == "U"):
        raise RequestError(f"{path}: clients of training and test samples must both be text or both be numbers")
    return clients


def _look_at(clients: np.ndarray, path: Path, place: Place) -> None:
    if clients.ndim != 1:
        raise RequestError(f"{path}: clients must have an entry a sample; they have shape {clients.shape}")
    if clients.dtype.kind == "U":
        _refuse_missing(clients, "clients", path, place)
    elif clients.dtype.kind not in "biuf" or not np.isfinite(clients).all():
        raise RequestError(f"{path}: clients must be numbers or text, and none may be missing")


def _refuse_missing(column: np.ndarray, what: str, path: Path, place: Place) -> None:
    rows: Sequence[int] = np.flatnonzero([value.strip().lower() in MISSING for value in column.tolist()]).tolist()
    if rows:
        raise RequestError(f"{path}: {len(rows)} {what} are missing, the first at {place(rows[0])}; drop those rows")
