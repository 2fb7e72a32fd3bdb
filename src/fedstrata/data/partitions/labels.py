"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench, #C = c).

Client i surely owns label i mod C; further labels are drawn until it owns c. The samples of a label are shuffled and
split evenly among its owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.errors import RequestError
from fedstrata.options import Count
from fedstrata.partition import Deal, Labelled, Partition
from fedstrata.rng import Rng


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Each client holds a fixed number of labels."""

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    labels: Count = 2
    unowned: Literal["error", "drop", "round-robin"] = "error"  # labels that no client drew

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw owners, then deal each label out among them."""
        labels, test_labels = train.labels, test.labels
        classes = int(max(labels.max(), test_labels.max(initial=0))) + 1
        if self.labels > classes:
            raise RequestError(f"data.partition.labels = {self.labels} but the data has {classes} classes")
        owns = self._owners(classes, clients, rng)
        if self.unowned != "drop" and (lost := np.flatnonzero(~owns.any(0))).size:
            raise RequestError(
                f"labels {lost.tolist()} belong to no client: {clients} clients with {self.labels} labels each; "
                'use more clients or labels, or data.partition.unowned = "drop" or "round-robin"'
            )
        return Deal(_dealt(labels, owns, rng), _dealt(test_labels, owns, rng))

    def _owners(self, classes: int, clients: int, rng: Rng) -> np.ndarray:
        """Say who owns which label, [N, C]."""
        owns = np.zeros((clients, classes), dtype=bool)
        if self.unowned == "round-robin":  # balanced owner counts: consecutive labels, one client after another
            for client in range(clients):
                owns[client, (client * self.labels + np.arange(self.labels)) % classes] = True
            return owns
        for client in range(clients):
            first = client % classes
            others = np.delete(np.arange(classes), first)
            owns[client, first] = True
            owns[client, rng.choice(others, self.labels - 1, replace=False)] = True
        return owns


def _dealt(labels: np.ndarray, owns: np.ndarray, rng: Rng) -> list[np.ndarray]:
    parts: list[list[np.ndarray]] = [[np.zeros(0, dtype=np.int64)] for _ in owns]
    for label in range(owns.shape[1]):
        owners = np.flatnonzero(owns[:, label])
        if len(owners):
            cuts = np.array_split(rng.permutation(np.flatnonzero(labels == label)), len(owners))
            for owner, rows in zip(owners, cuts, strict=True):
                parts[owner].append(rows)
    return [np.concatenate(p) for p in parts]
