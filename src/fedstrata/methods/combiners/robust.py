"""Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.

Median and trimmed mean look at every number of the model by itself, over all clients, each of which counts the same
whatever its size. They work through a few numbers of all updates at a time, so that no second copy of the updates
exists. What corrections send beside the update is combined by the same rule.

Norm clipping (Sun et al., Can You Really Backdoor Federated Learning?, 2019) shortens updates that are too long. The
length is measured here: what a client says about its own update is not relied on. Of two lengths in the middle the
smaller one is the median, so that one liar of two does not set it. Who is shortened is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median_low
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import BelowHalf, Positive
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.methods.combiners.size import SizeWeighted

ROUNDING = 1e-6  # an update that was shortened to a length may be a hair longer
CELLS = 2**21  # numbers that are sorted at a time: they fit into a processor's cache


def coordinates(arrived: Arrived, rule: Callable[[Tensor], Tensor]) -> Sums:
    """Combine every number by itself; the rule gets rows of a few numbers with one column a client, sorted.

    What no single client sent, such as statistics on which norms agreed, stays as the engine gives it.
    """
    reports = arrived.each()
    sums, total = arrived.sum(np.full(len(reports), 1.0 / len(reports))), {}
    for name, first in reports[0].aggregated.items():
        flat = [r.aggregated[name].reshape(-1) for r in reports]
        out, width = torch.empty_like(flat[0]), max(1, CELLS // len(flat))
        for start in range(0, len(out), width):
            part = slice(start, start + width)
            table = torch.stack([f[part] for f in flat], 1)
            table.numpy().sort(1)  # in place, and on short rows many times faster than torch's
            out[part] = rule(table)
        total[name] = out.reshape(first.shape)
    return replace(sums, weight=1.0, total={**sums.total, **total})


@dataclass(frozen=True)
class Median(Combiner):
    """Every number of the model moves by the median over the clients."""

    paper: ClassVar[str] = "Yin et al., ICML 2018"
    individual: ClassVar[bool] = True

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Take the middle, or the mean of the two in the middle."""
        n = len(arrived.reports)
        return coordinates(arrived, lambda s: (s[:, (n - 1) // 2] + s[:, n // 2]) / 2)


@dataclass(frozen=True)
class TrimmedMean(Combiner):
    """Every number of the model moves by the mean over the clients without the largest and smallest."""

    paper: ClassVar[str] = "Yin et al., ICML 2018"
    individual: ClassVar[bool] = True

    fewest: ClassVar[int] = 3

    trim: BelowHalf = 0.1  # share of the clients left out at either end; at least one is

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Leave the ends out."""
        n = len(arrived.reports)
        cut = min(max(int(self.trim * n + 1e-9), 1), (n - 1) // 2)
        return coordinates(arrived, lambda s: s[:, cut : n - cut].mean(1))


@dataclass(frozen=True)
class NormClip(SizeWeighted):
    """Weighted by size; updates longer than a bound are shortened to it."""

    paper: ClassVar[str] = "Sun et al., 2019"
    individual: ClassVar[bool] = True

    bound: Positive | None = None  # none given: the median length of the round's updates

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Lower the weight of long updates, and say whose they are."""
        lengths = np.array([float(r.aggregated["update"].norm()) for r in arrived.each()])
        bound = median_low(lengths.tolist()) if self.bound is None else self.bound
        if long := np.flatnonzero(lengths > bound * (1 + ROUNDING)).tolist():
            clients = [arrived.reports[i].client for i in long]
            told = {"what": "update", "lengths": lengths[long].tolist(), "to": bound}
            view.note("clipped", round=view.round + 1, clients=clients, **told)
        return arrived.sum(self.weights(arrived) * np.minimum(1.0, bound / np.maximum(lengths, 1e-12)))
