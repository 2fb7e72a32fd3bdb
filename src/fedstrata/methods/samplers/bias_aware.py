"""FedBSS: bias-aware sample selection, AAAI 2025.

In a first stage clients train on everything. Then each client, with the model it received, ranks its samples by loss.
The sample that the model is least sure about cuts them in two: up to its loss they are unbiased, beyond it biased
(Eq. 5). Epoch e of E trains on all unbiased samples and on the share a_e = (1 - cos(pi e / E)) / 2 of the biased ones,
those of small loss first (Eq. 6). In the last epoch that is everything, so that with E = 1 this is FedAvg.

Readings: ranks are taken once a round, in eval mode and without augmentation, which costs one forward pass; Eq. 3
and 6 mix their indices, and this is the only reading that agrees with Algorithm 1. The paper's warm-up is 50 of 200
rounds, the default here is the same share.

Where labels are wrong, the last epoch trains on all of them, and every growth but "filter" learns them in the end.
`ceiling`, which is ours, is the share of biased samples that the last epoch may use; with "mixture" each client finds
it anew in every round, from whether its losses fall into two groups. docs/experiment.md has numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, log, pi, sqrt
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.client_context import ClientContext, SampleScores
from fedstrata.core.messages import Value
from fedstrata.core.options import Count, Fraction, Rounds, in_rounds
from fedstrata.methods.samplers.shuffle import Shuffle

Growth = Literal["cosine", "linear", "filter"]
STEPS = 100  # of the search for a mixture; it has settled before
FEW = 8  # samples of which nothing can be said
NARROW = 1e-2  # least width of a group of losses
APART = 2.0  # widths that the mean of wrong labels must lie above that of right ones


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


def seem_wrong(losses: np.ndarray) -> np.ndarray:
    """Say of which samples the label seems wrong; of none, where the losses do not fall into two groups.

    Losses of right labels are taken for exponential, those of wrong ones for normal. There are two groups if that fits
    better than an exponential alone, for its three more numbers (BIC), and if the wrong ones lie apart. The search
    starts from the lower and the upper half of the losses: there is no chance in it.
    """
    x, n, nobody = losses.astype(np.float64), len(losses), np.zeros(len(losses), dtype=bool)
    if n < FEW or not np.isfinite(x).all() or x.max() == np.median(x):
        return nobody
    belongs = (x > np.median(x)).astype(np.float64)  # how likely each is one of the wrong ones
    for _ in range(STEPS):
        share = min(max(belongs.mean(), 1e-9), 1 - 1e-9)
        right = max(((1 - belongs) @ x) / (n * (1 - share)), 1e-9)
        mean = belongs @ x / (n * share)
        width = sqrt(belongs @ (x - mean) ** 2 / (n * share)) + NARROW
        as_right = log(1 - share) - log(right) - x / right
        as_wrong = log(share) - log(width * sqrt(2 * pi)) - ((x - mean) / width) ** 2 / 2
        belongs = 1 / (1 + np.exp(np.clip(as_right - as_wrong, -500, 500)))
    two, one = np.logaddexp(as_right, as_wrong).sum(), -n * (log(x.mean()) + 1)
    if two - one <= 1.5 * log(n) or mean - right <= APART * width:
        return nobody
    # A normal distribution also reaches down to where nothing is wrong.
    return np.asarray((belongs > 0.5) & (x > right))


@dataclass(frozen=True)
class BiasAware(Shuffle):
    """Samples of small loss first; from epoch to epoch more of those that the model gets wrong."""

    paper: ClassVar[str] = "FedBSS, AAAI 2025"

    warmup: Rounds = 0.25  # rounds, or a share of them, before samples are ranked
    growth: Growth = "cosine"  # of the share of biased samples; "filter" leaves them out
    ceiling: Fraction | Literal["mixture"] = 1.0  # largest share of biased samples, or one found from the losses
    min_unbiased: Count = 1  # the batch size is a good value for models with batch norm
    follow: bool = False  # also tell which samples are biased: for studies, it tells the server about single samples

    @property
    def plans_ahead(self) -> bool:
        """The warm-up may be a share of all rounds."""
        return isinstance(self.warmup, float)

    def passes(self, context: ClientContext) -> tuple[Sequence[np.ndarray], Mapping[str, Value]]:
        """Pass over unbiased samples, and over more and more biased ones."""
        if context.task.round < in_rounds(self.warmup, context.rounds):
            return super().passes(context)
        seen = context.score_samples()
        unbiased, biased, cut = split_by_bias(seen, self.min_unbiased)
        most = self.most(seen.losses, biased)
        taken = [int(share(self.growth, e + 1, context.epochs) * most + 1e-9) for e in range(context.epochs)]
        metrics: dict[str, Value] = {"cut": cut, "biased": len(biased) / context.client.samples}
        if self.ceiling == "mixture":
            metrics["ceiling"] = most / max(len(biased), 1)
        if self.follow:
            metrics["biased_samples"] = tuple(biased.tolist())
        return [np.sort(np.concatenate([unbiased, biased[:count]])) for count in taken], metrics

    def most(self, losses: np.ndarray, biased: np.ndarray) -> float:
        """Return how many biased samples the last epoch may use."""
        if self.ceiling == "mixture":
            return float((~seem_wrong(losses)[biased]).sum())
        return self.ceiling * len(biased)
