"""Samples to deal out, and what was dealt."""

import numpy as np

from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Labelled


def labelled(labels, groups=None):
    return Labelled(np.asarray(labels, dtype=np.int64), None if groups is None else np.asarray(groups))


def deal(partition, train, clients, test=None, seed=0):
    """Samples are labels, or a pair of labels and groups."""
    train, test = (labelled(*(of if isinstance(of, tuple) else (of,))) for of in (train, [] if test is None else test))
    return partition.deal(train, test, clients, Streams(seed)("partition"))


def sizes(parts):
    return [len(p) for p in parts]


def counts(parts, kinds, number):
    return np.array([np.bincount(np.asarray(kinds)[p], minlength=number) for p in parts])


def held(parts, names):
    return [sorted(set(np.asarray(names)[p].tolist())) for p in parts]


DOMAINS = np.array(["art", "cartoon", "clipart", "photo", "quick", "sketch"])


def domain_data(per_domain=120, classes=4, domains=6, seed=0):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(DOMAINS[:domains], per_domain))
    return rng.choice(classes, p=np.arange(1, classes + 1) / sum(range(classes + 1)), size=len(groups)), groups
