"""Label histograms with differential privacy for single samples: noise on every count before a client tells it.

Neighbours are clients' data that differ in one sample, there or not: one count of one client changes by 1. Noise of
density proportional to exp(-epsilon |x|) on every count gives epsilon, without a delta (Dwork et al., 2006); for whole
numbers that is the two-sided geometric distribution (Ghosh et al., 2009), which has no floating-point bits to read.
A sample is in one client's histogram under one label, so labels and clients cost nothing more (parallel composition);
telling again costs epsilon again (sequential composition). A sample whose label is changed counts as two neighbours.

That a client has data at all is not hidden. A client as a whole is not hidden either: its mix of labels is what
clustering needs. Noise that hides it (on label shares, any two of which are 2 apart) hides the clusters with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, isfinite

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng


@dataclass(frozen=True)
class NoisyHistograms:
    """Counts with noise, and what telling them costs."""

    epsilon: float  # of one telling
    whole: bool = True  # whole numbers, by geometric noise; else Laplace noise

    def __post_init__(self) -> None:
        _check(self.epsilon)

    def told(self, counts: np.ndarray, rng: Rng) -> np.ndarray:
        """Return what a client tells, [..., C]."""
        return self.tellable(counts + self.noise(counts.shape, rng))

    def noise(self, shape: tuple[int, ...], rng: Rng) -> np.ndarray:
        """Draw noise for counts."""
        return (
            _geometric(self.epsilon, shape, rng) if self.whole else np.asarray(rng.laplace(0, 1 / self.epsilon, shape))
        )

    def tellable(self, noisy: np.ndarray) -> np.ndarray:
        """Make a histogram of noisy counts: never negative, and one of each label where nothing is left."""
        some = np.maximum(noisy, 0)
        return np.where(some.any(-1, keepdims=True), some, 1).astype(np.int64 if self.whole else np.float64)

    def spent(self, tellings: int = 1) -> float:
        """Return the epsilon of every sample after so many tellings of its client."""
        if tellings < 0:
            raise RequestError(f"tellings = {tellings}: a whole number >= 0")
        return self.epsilon * tellings

    def describe(self, tellings: int = 1) -> str:
        """Say what it means."""
        kind = "geometric" if self.whole else "Laplace"
        return (
            f"label histograms: {self.spent(tellings):g}-differential privacy for single samples of a client (one more"
            f" or one less), {kind} noise, told {tellings} times; a client's mix of labels as a whole is not hidden"
        )


def _geometric(epsilon: float, shape: tuple[int, ...], rng: Rng) -> np.ndarray:
    """Draw whole numbers n with probability proportional to exp(-epsilon |n|)."""
    stop = -expm1(-epsilon)
    return rng.geometric(stop, shape) - rng.geometric(stop, shape)


def _check(epsilon: float) -> None:
    if not (isfinite(epsilon) and epsilon > 0):
        raise RequestError(f"epsilon = {epsilon}: a number > 0")
