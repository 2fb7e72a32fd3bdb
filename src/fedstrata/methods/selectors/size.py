"""Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020: selection by size goes with a plain mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq

from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, View


def draw_by_size(view: View, count: int) -> np.ndarray:
    """Draw clients without replacement, one after another, each in proportion to its number of samples."""
    sizes = view.client_info.sizes[view.eligible].astype(np.float64)
    return view.rng("select").choice(view.eligible, count, replace=False, p=sizes / sizes.sum())


def chances_by_size(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return each client's chance to be among `count` that are drawn so: 1 - exp(-t n_k), which add up to `count`.

    Drawing one after another is waiting for the first to arrive at rates n_k; at the time t at which `count` have
    arrived on average, these are the chances to be there (Rosen, Asymptotic Theory for Successive Sampling, 1972).
    """
    if count >= (sizes > 0).sum():
        return (sizes > 0).astype(np.float64)
    rates = sizes / sizes.max()
    top = 1.0
    while -np.expm1(-top * rates).sum() < count:
        top *= 2
    t = brentq(lambda time: -np.expm1(-time * rates).sum() - count, 0.0, top)
    chances: np.ndarray = -np.expm1(-t * rates)
    return chances


@dataclass(frozen=True)
class SelectBySize(Selector):
    """A client is drawn in proportion to its number of samples; combine with uniform weights."""

    paper: ClassVar[str] = "Li et al., ICLR 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    tells_chances: ClassVar[bool] = True

    def select(self, state: None, view: View) -> list[Ask]:
        """Draw k clients."""
        chances = chances_by_size(view.client_info.sizes[view.eligible].astype(np.float64), view.k)
        chance = dict(zip(view.eligible.tolist(), chances.tolist(), strict=True))
        return [Ask(client, chance=chance[client]) for client in draw_by_size(view, view.k).tolist()]
