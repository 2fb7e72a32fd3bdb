"""Sums that do not depend on who added first: numbers are rounded to a grid that float64 adds without error.

Floating-point sums depend on their order, and so on which worker trained which client. Here every weighted update is
rounded to multiples of one power of two before it is added. The grid is as fine as it can be so that the whole sum, and
every part of it, is a whole number of at most 53 bits: each addition is exact, and any placement gives the same bits.
Its scale comes from the weights and the largest number of every update, which workers tell in the open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import frexp, fsum, isfinite, ldexp

import torch
from torch import Tensor

from fedstrata.core.messages import Report, Tensors, whole_tensors

BITS = 52  # of the 53 that float64 has: one is left for what rounding adds

Peaks = Mapping[str, float]  # by tensor: the largest number in it, without its sign
Units = Mapping[str, float]  # by tensor: the step of the grid; 0 where there is nothing to round


def peaks_of(tensors: Tensors) -> dict[str, float]:
    """Return the largest number of each tensor: all that a worker tells of a single update."""
    whole = whole_tensors(tensors)
    return {name: float(t.abs().max()) if t.numel() else 0.0 for name, t in whole.items()}


def choose_units(peaks: Mapping[int, Peaks], weights: Mapping[int, float]) -> dict[str, float]:
    """Return the grid of each tensor, from what clients told and how they are weighed."""
    names = dict.fromkeys(name for client in weights for name in peaks[client])
    return {
        name: grid_unit(abs(weight) * peaks[client].get(name, 0.0) for client, weight in weights.items())
        for name in names
    }


def grid_unit(bounds: Iterable[float]) -> float:
    """Return the finest power of two to whose multiples numbers within these bounds can be rounded and then added.

    Examples
    --------
    >>> grid_unit([0.5, 0.25]) == 2.0**-52
    True
    """
    total = fsum(bounds)
    if not total or not isfinite(total):
        return 0.0
    return ldexp(1.0, max(frexp(total)[1] - BITS, -1074))


def count_units(reports: Mapping[int, Report], weights: Mapping[int, float], units: Units) -> dict[str, Tensor]:
    """Sum some clients' weighted tensors in whole multiples of the units, which float64 holds exactly."""
    total: dict[str, Tensor] = {}
    for client, weight in weights.items():
        for name, tensor in whole_tensors(reports[client].aggregated).items():
            counted = tensor.to(torch.float64, copy=True).mul_(weight / (units[name] or 1.0))
            if units[name]:
                counted.round_()
            total[name] = total[name].add_(counted) if name in total else counted
    return {name: counted.cpu() for name, counted in total.items()}  # where those of other workers come


def add_parts(parts: Iterable[Tensors], units: Units, dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Add what workers counted, and return the sum in the types that a plain weighted sum would have."""
    return {name: t.mul(units[name] or 1.0).to(dtypes[name]) for name, t in add_counts(parts).items()}


def add_counts(parts: Iterable[Tensors]) -> dict[str, Tensor]:
    """Add what was counted, in any order, without writing to it."""
    total: dict[str, Tensor] = {}
    for part in parts:
        for name, counted in part.items():
            total[name] = total[name] + counted if name in total else counted
    return total


def summed_dtypes(tensors: Tensors) -> dict[str, torch.dtype]:
    """Return the type of each tensor once it is weighed: whole numbers become fractions."""
    whole = whole_tensors(tensors)
    return {name: torch.result_type(t, 1.0) for name, t in whole.items()}
