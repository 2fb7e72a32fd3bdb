"""FedBSS: bias-aware sample selection, AAAI 2025.

In a first stage clients train on everything. Then each client, with the model it received, ranks its samples by loss.
The sample that the model is least sure about cuts them in two: up to its loss they are unbiased, beyond it biased
(Eq. 5). Epoch e of E trains on all unbiased samples and on the share a_e = (1 - cos(pi e / E)) / 2 of the biased ones,
those of small loss first (Eq. 6). In the last epoch that is everything, so that with E = 1 this is FedAvg.

Readings: ranks are taken once a round, in eval mode and without augmentation, which costs one forward pass; Eq. 3
and 6 mix their indices, and this is the only reading that agrees with Algorithm 1. The paper's warm-up is 50 of 200
rounds, the default here is the same share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, SampleScores
from fedstrata.core.messages import Value
from fedstrata.core.options import Count, Rounds, in_rounds
from fedstrata.methods.samplers.shuffle import Shuffle

Growth = Literal["cosine", "linear", "filter"]


def uncertainty(probabilities: np.ndarray) -> np.ndarray:
    """Return how unsure a model is of each sample: 1 - (largest - smallest probability)."""
    unsure: np.ndarray = 1.0 - (probabilities.max(1) - probabilities.min(1))
    return unsure


def split_by_bias(seen: SampleScores, least: int = 1) -> tuple[np.ndarray, np.ndarray, float]:
    """Return unbiased samples, biased ones by rising loss, and the loss at the cut.

    Of equally uncertain samples, that of the lowest loss makes the cut. At least `least` samples are unbiased.
    """
    by_loss = np.argsort(seen.losses, kind="stable")
    losses = seen.losses[by_loss]
    cut = losses[np.argmax(uncertainty(seen.probabilities)[by_loss])]
    unbiased = max(int(np.searchsorted(losses, cut, side="right")), min(least, len(losses)))
    return by_loss[:unbiased], by_loss[unbiased:], float(cut)


def share(growth: Growth, epoch: int, epochs: int) -> float:
    """Return the share of biased samples in an epoch, counted from 1."""
    if growth == "filter":
        return 0.0
    return epoch / epochs if growth == "linear" else (1.0 - cos(pi * epoch / epochs)) / 2.0


@dataclass(frozen=True)
class BiasAware(Shuffle):
    """Samples of small loss first; from epoch to epoch more of those that the model gets wrong."""

    paper: ClassVar[str] = "FedBSS, AAAI 2025"

    warmup: Rounds = 0.25  # rounds, or a share of them, before samples are ranked
    growth: Growth = "cosine"  # of the share of biased samples; "filter" leaves them out
    min_unbiased: Count = 1  # the batch size is a good value for models with batch norm
    follow: bool = False  # also tell which samples are biased: for studies, it tells the server about single samples

    def passes(self, context: ClientContext) -> tuple[Sequence[np.ndarray], Mapping[str, Value]]:
        """Pass over unbiased samples, and over more and more biased ones."""
        if context.task.round < in_rounds(self.warmup, context.rounds):
            return super().passes(context)
        unbiased, biased, cut = split_by_bias(context.score_samples(), self.min_unbiased)
        taken = [int(share(self.growth, e + 1, context.epochs) * len(biased) + 1e-9) for e in range(context.epochs)]
        metrics: dict[str, Value] = {"cut": cut, "biased": len(biased) / context.client.samples}
        if self.follow:
            metrics["biased_samples"] = tuple(biased.tolist())
        return [np.sort(np.concatenate([unbiased, biased[:count]])) for count in taken], metrics
