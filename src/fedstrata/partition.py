"""Dealing samples out to clients: the base of every partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.errors import RequestError
from fedstrata.part import Part
from fedstrata.rng import Rng


@dataclass(frozen=True)
class Deal:
    """Positions of train and test samples, one array a client. Samples in no array are left out."""

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    notes: Sequence[str] = ()  # what had to be done to fulfil the request; becomes an event


class Partition(Part):
    """How samples are dealt out to clients. Always ends, accounts for every sample, refuses the impossible."""

    def deal(self, labels: np.ndarray, test_labels: np.ndarray, clients: int, rng: Rng) -> Deal:
        """Deal both sets out by the same rule, so that a client is tested on what it trains on."""
        if clients < 1:
            raise RequestError(f"data.clients = {clients} must be at least 1")
        if clients > len(labels):
            raise RequestError(f"data.clients = {clients} but there are only {len(labels)} training samples")
        return self.split(labels, test_labels, clients, rng)

    def split(self, labels: np.ndarray, test_labels: np.ndarray, clients: int, rng: Rng) -> Deal:
        """Deal the samples out; called with a possible number of clients."""
        raise NotImplementedError


def hold_out(rows: np.ndarray, labels: np.ndarray, fraction: float, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into train and test, the same fraction of every label."""
    if not 0.0 <= fraction < 1.0:
        raise RequestError(f"test = {fraction} must be a fraction from 0 to below 1")
    by_label = [rng.permutation(rows[labels[rows] == label]) for label in np.unique(labels[rows])]
    held = np.sort(np.concatenate([rows[:0], *(r[: round(fraction * len(r))] for r in by_label)]))
    return np.setdiff1d(rows, held), held
