"""How long each partition takes to deal a million samples out to ten thousand clients."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks._rows import row
from fedstrata.core import registry
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Labelled

CLASSES, GOAL = 10, 10.0
OTHERS: list[tuple[str, dict[str, Any]]] = [  # beside the defaults, options that are likely to be slow
    ("labels-per-client", {"labels": 8}),
    ("dirichlet-class", {"alpha": 0.001}),
    ("dirichlet-class", {"alpha": 0.4, "balance": False}),  # some clients short in each draw: all tries are used up
    ("dirichlet-class", {"alpha": 0.01, "min_size": 95}),  # nearly every sample must be moved
    ("dirichlet-client", {"alpha": 0.001, "use_all": True}),  # classes run out
    ("natural", {"min_samples": 100}),
]


@dataclass(frozen=True)
class Size:
    """How much is dealt: a hundred samples a client, for which the options above are made."""

    clients: int
    samples: int
    tests: int


FULL = Size(clients=10_000, samples=1_000_000, tests=200_000)
QUICK = Size(clients=200, samples=20_000, tests=4_000)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Deal once by each partition, and give the seconds."""
    rng, size = np.random.default_rng(0), QUICK if quick else FULL
    names = np.array([f"writer-{i:05d}" for i in range(size.clients)])
    few, many = (
        [Labelled(rng.integers(0, CLASSES, n), names[rng.integers(0, groups, n)]) for n in (size.samples, size.tests)]
        for groups in (6, size.clients)
    )
    rows, own = [], sorted({*registry.names("partitions")} - {"flwr"})  # that one is Flower's code
    for name, options in [*((name, {}) for name in own), *OTHERS]:
        partition = registry.build("partitions", name, options, "data.partition")
        clients = None if partition.counts_clients else size.clients
        start = perf_counter()
        partition.deal(*(many if partition.counts_clients else few), clients, Streams(0)("partition"))
        seconds = perf_counter() - start
        said = "".join(f" {key}={value}" for key, value in options.items())
        rows.append(row(name + said, seconds, "s", at_most=GOAL))
    return rows
