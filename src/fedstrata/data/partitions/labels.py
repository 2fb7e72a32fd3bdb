"""Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022 (NIID-Bench, #C = c).

Client i surely owns label i mod C; further labels are drawn until it owns c. The samples of a label are shuffled and
split evenly among its owners. With domains in place of labels (FedBSS, AAAI 2025: one of DomainNet's six a client),
each part of a domain keeps the domain's mix of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import classes_of, deal_out, domains_of, evenly, interleave, list_names, shuffle

Unowned = Literal["error", "drop", "round-robin"]


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Each client holds a fixed number of labels."""

    paper: ClassVar[str] = "Li et al., ICDE 2022"

    labels: Count = 2
    unowned: Unowned = "error"  # labels that no client drew

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw owners, then deal each label out among them."""
        classes = classes_of(train, test)
        if self.labels > classes:
            raise RequestError(
                f"data.partition.labels = {self.labels} but the data has {classes} classes; lower labels"
            )
        owns = _owners(classes, self.labels, clients, self.unowned, rng)
        if (lost := np.flatnonzero(~owns.any(0))).size and self.unowned != "drop":
            raise RequestError(
                f"labels {lost.tolist()} belong to no client: {clients} clients with {self.labels} labels each; "
                'use more clients or labels, or data.partition.unowned = "drop"'
            )
        notes = [f"labels {lost.tolist()} were left out: no client drew them"] if lost.size else []
        kinds, counts = _among_owners(train.labels, owns)
        test_kinds, test_counts = _among_owners(test.labels, owns)
        return Deal(deal_out(shuffle(kinds, rng), counts), deal_out(shuffle(test_kinds, rng), test_counts), notes)


@dataclass(frozen=True)
class DomainsPerClient(Partition):
    """Each client holds a fixed number of domains, with all their labels."""

    paper: ClassVar[str] = "FedBSS, AAAI 2025"
    needs_groups: ClassVar[bool] = True

    domains: Count = 1
    unowned: Unowned = "error"  # domains that no client drew

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Draw owners, then deal each domain out among them, across its labels."""
        names, kinds, test_kinds, notes = domains_of(train, test)
        if self.domains > len(names):
            raise RequestError(
                f"data.partition.domains = {self.domains} but the data has {len(names)} domains "
                f"({list_names(names, 10)}); lower domains"
            )
        owns = _owners(len(names), self.domains, clients, self.unowned, rng)
        if (lost := names[~owns.any(0)]).size:
            if self.unowned != "drop":
                held = f"{clients} clients with {self.domains} domains each"
                raise RequestError(
                    f"domains {list_names(lost, 10)} belong to no client: {held}; use more clients or domains, or "
                    'data.partition.unowned = "drop"'
                )
            notes.append(f"domains {list_names(lost)} were left out: no client drew them")
        kinds, counts = _among_owners(kinds, owns)
        test_kinds, test_counts = _among_owners(test_kinds, owns)
        order, test_order = interleave(kinds, train.labels, rng), interleave(test_kinds, test.labels, rng)
        return Deal(deal_out(order, counts), deal_out(test_order, test_counts), notes)


def _owners(kinds: int, each: int, clients: int, unowned: Unowned, rng: Rng) -> np.ndarray:
    """Say who owns which label or domain, [N, kinds]: `each` of them a client."""
    owns = np.zeros((clients, kinds), dtype=bool)
    if unowned == "round-robin":  # balanced owner counts: consecutive kinds, one client after another
        for client in range(clients):
            owns[client, (client * each + np.arange(each)) % kinds] = True
        return owns
    for client in range(clients):
        first = client % kinds
        others = np.delete(np.arange(kinds), first)
        owns[client, first] = True
        owns[client, rng.choice(others, each - 1, replace=False)] = True
    return owns


def _among_owners(kinds: np.ndarray, owns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each sample, -1 where nobody owns it, and how many of each kind clients get, [kinds, N]."""
    owned = np.where((kinds >= 0) & (owns.sum(0) > 0)[kinds], kinds, -1)
    return owned, evenly(np.bincount(owned[owned >= 0], minlength=owns.shape[1]), owns)
