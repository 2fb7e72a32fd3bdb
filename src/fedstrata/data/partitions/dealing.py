"""The one way in which partitions hand samples out: put them into an order, then cut it by counts.

Samples are put in order by kind (label or domain), and a table of counts, [kinds, clients], says how many of each kind
a client gets. A kind's samples are shuffled, or interleaved so that every cut of a domain has the domain's label mix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Labelled


def classes_of(train: Labelled, test: Labelled) -> int:
    """Count the classes; one that only the test set has counts too."""
    return int(max(train.labels.max(), test.labels.max(initial=0))) + 1


def domains_of(train: Labelled, test: Labelled) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Give the groups of the training set numbers: names, codes of train and test samples, and what is left out.

    A test sample of a group that nobody trains on has the code -1: it belongs to no client.
    """
    assert train.groups is not None
    if len(test) and test.groups is None:
        raise RequestError("the training samples have groups (domains, subjects) but the test samples have none")
    names, codes = np.unique(train.groups, return_inverse=True)
    if test.groups is None or not len(test):
        return names, codes, np.zeros(0, dtype=np.int64), []
    at = np.minimum(np.searchsorted(names, test.groups), len(names) - 1)
    strange = names[at] != test.groups
    notes = []
    if strange.any():
        listed = list_names(np.unique(test.groups[strange]))
        notes.append(f"{int(strange.sum())} test samples belong to no client: no training sample is of group {listed}")
    return names, codes, np.where(strange, -1, at), notes


def list_names(names: np.ndarray, most: int = 50) -> str:
    """List names, and say how many more there are where they are too many to read."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most].tolist())) + more


def shuffle(kinds: np.ndarray, rng: Rng) -> np.ndarray:
    """Put samples in order by kind, shuffled inside each; those of kind -1 are left out."""
    order = np.argsort(kinds, kind="stable")[int((kinds < 0).sum()) :]
    ends = np.cumsum(np.bincount(kinds[order]))[:-1]
    return np.concatenate([order[:0], *(rng.permutation(rows) for rows in np.split(order, ends))])


def interleave(kinds: np.ndarray, labels: np.ndarray, rng: Rng) -> np.ndarray:
    """Put samples in order by kind, so that inside each every stretch has nearly the kind's mix of labels.

    The samples of a label are spread evenly over 0..1 from a random start. A stretch holds of each label its share,
    rounded up or down.
    """
    order = rng.permutation(np.flatnonzero(kinds >= 0))
    strata = kinds[order] * (int(labels.max(initial=0)) + 1) + labels[order]
    order, strata = order[by_stratum := np.argsort(strata, kind="stable")], strata[by_stratum]
    _, first, which, size = np.unique(strata, return_index=True, return_inverse=True, return_counts=True)
    place = (np.arange(len(order)) - first[which] + rng.random(len(first))[which]) / size[which]
    return order[np.lexsort((place, kinds[order]))]


def deal_out(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cut samples that are in order by kind, [kinds, clients] counts in all; give each client's."""
    kinds, clients = counts.shape
    owner = np.repeat(np.tile(np.arange(clients), kinds), counts.ravel())
    return by_owner(order, owner, clients)


def by_owner(rows: np.ndarray, owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Collect the rows of each client; an owner of -1 is nobody."""
    order = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]
    ends = np.cumsum(np.bincount(owner[order], minlength=clients))[:-1]
    return np.split(rows[order], ends)


def evenly(sizes: np.ndarray, owns: np.ndarray) -> np.ndarray:
    """Split each kind evenly among the clients that own it, [clients, kinds]; the first owners get the remainder."""
    owners = owns.sum(0)
    share, extra = np.divmod(sizes, np.maximum(owners, 1))
    return np.asarray((owns * (share + (owns.cumsum(0) <= extra))).T)


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Round shares of a total to whole numbers that add up to it: the largest fractions are rounded up."""
    exact = weights / weights.sum() * total
    whole: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def cut(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Turn shares of each kind into counts that add up to its size, [kinds, clients]; the last takes the remainder."""
    ends = np.floor(np.cumsum(shares, axis=1) * sizes[:, None] + 1e-9).astype(np.int64)
    ends[:, -1] = sizes
    np.minimum(ends, sizes[:, None], out=ends)  # a sum of shares may end a rounding error above 1
    return np.diff(np.maximum.accumulate(ends, axis=1), axis=1, prepend=0)


def deal_alike(counts: np.ndarray, labels: np.ndarray, rng: Rng) -> tuple[list[np.ndarray], Sequence[str]]:
    """Deal test samples out in proportion to what clients hold of each label in training, [classes, clients]."""
    held = counts.sum(1)
    known = np.where(held[labels] > 0, labels, -1)
    sizes = np.bincount(known[known >= 0], minlength=len(counts))
    parts = deal_out(shuffle(known, rng), cut(counts / np.maximum(held, 1)[:, None], sizes))
    if len(lost := np.unique(labels[known < 0])):
        number = int((known < 0).sum())
        return parts, [f"{number} test samples belong to no client: nobody trains on labels {lost.tolist()}"]
    return parts, []
