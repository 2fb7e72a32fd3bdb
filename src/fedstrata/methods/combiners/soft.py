"""FedBS as the FedPBS paper (arXiv 2603.13909) writes it down: soft weights, b_q prop. to exp(-tau V_q).

V_q is how much a client's samples differ under the model it received. Raw variances have the scale of gradients, so
that one tau fits no two models: by default V_q is divided by its mean over the clients that arrived. A client whose
variance is not finite does not count, unless nobody has a finite one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import Of
from fedstrata.core.client_parts import LocalPart
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import NonNegative
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.methods.variance import Over, Variance


def soft_weights(variances: np.ndarray, tau: float, normalise: str, times: np.ndarray | float = 1.0) -> np.ndarray:
    """Return weights that fall with the variance; `times` is how often each client counts."""
    if not np.isfinite(variances).any():
        variances = np.zeros(len(variances))
    known = np.isfinite(variances)
    mean = variances[known].mean() if normalise == "mean" else 1.0
    exponent = np.full(len(variances), -np.inf)
    exponent[known] = -tau * variances[known] / (mean if mean > 0 else 1.0)
    raw = times * np.exp(exponent - exponent.max())
    weights: np.ndarray = raw / raw.sum()
    return weights


@dataclass(frozen=True)
class Soft(Combiner):
    """The more a client's samples differ, the less its update counts."""

    paper: ClassVar[str] = "FedPBS, arXiv 2603.13909"
    reads: ClassVar[str] = "how much each client's samples vary, which sets its weight"

    by: Of = "gradient"  # what the variance is of
    over: Over = "batch"  # of one batch (Algorithm 3), or of all samples of a client (Equation 8)
    tau: NonNegative = 1.0
    normalise: Literal["mean", "none"] = "mean"

    @property
    def variance(self) -> Variance:
        """What clients tell."""
        return Variance(self.by, self.over)

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read the variance."""
        return (self.variance.name,) if kind == "train" else ()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients tell their variance."""
        return (self.variance,)

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh by exp(-tau V_q)."""
        told = np.array([self.variance.read(r) for r in arrived.reports])
        if not np.isfinite(told).all():
            strange = [r.client for r, v in zip(arrived.reports, told, strict=True) if not np.isfinite(v)]
            why = "their variance is not finite"
            view.note("fallback", round=view.round + 1, what="soft", used="no weight", clients=strange, why=why)
        return arrived.sum(soft_weights(told, self.tau, self.normalise, arrived.weights))
