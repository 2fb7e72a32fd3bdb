"""Metrics that papers give beside accuracy; `train.evaluate.metrics` names those that a run measures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedstrata.core.metric import Metric
from fedstrata.core.options import Count

PARTS = {
    "macro-f1": "fedstrata.methods.metrics:MacroF1",
    "auroc": "fedstrata.methods.metrics:Auroc",
    "top": "fedstrata.methods.metrics:Top",
}


@dataclass(frozen=True)
class MacroF1(Metric):
    """The mean over labels of F1: right ones, against all that were given or are wanted."""

    def measure(self, labels: np.ndarray, probabilities: np.ndarray) -> float:
        """Count as scikit-learn does: labels that are tested or given, and 0 for one that is never right."""
        classes, given = probabilities.shape[1], probabilities.argmax(1)
        right = np.bincount(labels[given == labels], minlength=classes)
        both = np.bincount(labels, minlength=classes) + np.bincount(given, minlength=classes)
        return float((2 * right[both > 0] / both[both > 0]).mean())


@dataclass(frozen=True)
class Auroc(Metric):
    """The mean over labels of the area under the ROC curve: of one label against all others."""

    def measure(self, labels: np.ndarray, probabilities: np.ndarray) -> float:
        """Rank the samples by each label's probability; ties count half."""
        areas = [_area(labels == label, probabilities[:, label]) for label in np.unique(labels)]
        known = [area for area in areas if not math.isnan(area)]
        return float(np.mean(known)) if known else math.nan


@dataclass(frozen=True)
class Top(Metric):
    """The share of samples whose label is among the k likeliest."""

    k: Count = 5

    @property
    def figure(self) -> str:
        """Say of how many."""
        return f"top_{self.k}"

    def measure(self, labels: np.ndarray, probabilities: np.ndarray) -> float:
        """Count labels that fewer than k others surpass; of equal ones, the first is before the others, as in accuracy.

        Where there are no more than k labels, it says nothing.
        """
        classes = probabilities.shape[1]
        if self.k >= classes:
            return math.nan
        own = np.take_along_axis(probabilities, labels[:, None], axis=1)
        before = (probabilities > own) | ((probabilities == own) & (np.arange(classes) < labels[:, None]))
        return float((before.sum(1) < self.k).mean())


def _area(there: np.ndarray, scores: np.ndarray) -> float:
    """Return how often a sample that has the label is scored above one that has not; NaN without both."""
    having = int(there.sum())
    lacking = len(there) - having
    if not having or not lacking:
        return math.nan
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # of equal ones, the mean
    return float((ranks[there].sum() - having * (having + 1) / 2) / (having * lacking))
