"""Features that no network learns well from: on no common scale, or numbers that only tell rows apart."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedstrata.core.index import Split
from fedstrata.core.inputs import Inputs
from fedstrata.core.warn_caller import warn_caller
from fedstrata.data.preprocessing import Column
from fedstrata.data.reading import Label

ARGUMENT = 'scale="federated"'  # what whoever gives arrays in Python can set
KEY = 'data.scale = "federated"'  # what whoever names files can: in an experiment, or at a site
ID = re.compile(r"(?i:(?<![^\W_])ids?(?![^\W_])|^(unnamed\b.*|index|row|)$)|(?<=[a-z])I[Dd]$")
FAR = 100.0  # from 1, or from each other: standardised features of real tables stay well within


def describe_uneven(remedy: str) -> str:
    """Return what the likely cause is where training on such features goes wrong."""
    return f"the data, whose features are not on one scale; try {remedy}"


def describe_sizes(x: Tensor, inputs: Inputs, names: Sequence[str] = (), remedy: str = ARGUMENT) -> str | None:
    """Say which features of a table are far from 1, or from each other, or that pixels are; None: none, or others.

    The size of a feature is its largest value, whatever its sign: rare ones, as of sparse counts, are not small.
    """
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return _describe_pixels(x, inputs, remedy)
    if x.ndim != 2 or not len(x) or not x.is_floating_point() or inputs.mean is not None:
        return None
    low, high = x.aminmax(dim=0)
    sizes = low.neg().maximum(high) / inputs.scale
    there = sizes.nonzero().flatten()
    if not len(there):
        return None
    least, most = int(there[sizes[there].argmin()]), int(sizes.argmax())
    smallest, largest = sizes[least].item(), sizes[most].item()
    if largest <= FAR and smallest >= 1 / FAR and largest <= FAR * smallest:
        return None
    of = [names[at] if at < len(names) else f"feature {at}" for at in (most, least)]
    beside = f", those of {of[1]} up to {smallest:g}" if most != least else ""
    return (
        f"features are not on one scale near 1: values of {of[0]} go up to {largest:g}{beside}, and networks learn "
        f"badly from such; {remedy} brings each to mean 0 and deviation 1"
    )


def _describe_pixels(x: Tensor, inputs: Inputs, remedy: str) -> str | None:
    """Say that pixels from 0 to 255 have lost the type by which they would be divided by 255."""
    if not len(x) or not x.is_floating_point() or inputs.mean is not None:
        return None
    largest = x.max().item() / inputs.scale
    if largest <= FAR:
        return None
    return (
        f"pixels go up to {largest:g}, as {str(x.dtype).removeprefix('torch.')}, and networks learn badly from such; "
        f"uint8 is divided by 255, floats are taken as they are: give uint8, x / 255, or {remedy}"
    )


def may_number_rows(columns: Sequence[Column]) -> list[str]:
    """Return the columns of numbers that are called as numbers of rows or patients are."""
    return [column.name for column in columns if column.values is None and ID.search(column.name)]


def describe_ids(x: np.ndarray, split: Split, columns: Sequence[Column]) -> str | None:
    """Name the columns of numbers that look like numbers of rows or patients: by their name, and never twice."""
    starts = np.cumsum([0, *(column.width for column in columns)]).tolist()
    called = may_number_rows(columns)
    asked = [(c.name, at) for c, at in zip(columns, starts, strict=False) if c.name in called]
    rows = [split[client] for client in range(len(split))] if asked else []
    found = [name for name, at in asked if all(len(np.unique(x[own, at])) == len(own) for own in rows)]
    if not found:
        return None
    return (
        f"{', '.join(found)}: every row has its own value, which tells nothing of new rows; leave numbers of rows and "
        f"patients out with data.drop = {json.dumps(found, ensure_ascii=False)}"
    )


def warn_of_sizes(said: str) -> None:
    """Warn whoever gives such features."""
    warn_caller(f'{said}; scale="none" leaves them so, and this unsaid')


def warn_of_no_label(classes: Sequence[Label]) -> None:
    """Warn of -1 before 0, 1, 2, ..., which says by custom that a sample has no label; -1, 0, 1 are classes."""
    if len(classes) > 3 and list(classes) == list(range(-1, len(classes) - 1)):
        warn_caller(
            "label -1 is taken as a class like the others; where it says that there is no label, drop those rows"
        )
