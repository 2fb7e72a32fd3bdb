"""How long each partition takes to deal a million samples out to ten thousand clients."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from benchmarks._rows import row
from fedstrata.core import registry
from fedstrata.core.rng import Streams
from fedstrata.data.partitions.base import Labelled

SAMPLES, TESTS, CLIENTS, CLASSES, GOAL = 1_000_000, 200_000, 10_000, 10, 10.0
OTHERS: list[tuple[str, dict[str, Any]]] = [  # beside the defaults, options that are likely to be slow
    ("labels-per-client", {"labels": 8}),
    ("dirichlet-class", {"alpha": 0.001}),
    ("dirichlet-class", {"alpha": 0.4, "balance": False}),  # some clients short in each draw: all tries are used up
    ("dirichlet-class", {"alpha": 0.01, "min_size": 95}),  # nearly every sample must be moved
    ("dirichlet-client", {"alpha": 0.001, "use_all": True}),  # classes run out
    ("natural", {"min_samples": 100}),
]


def measure() -> list[dict[str, Any]]:
    """Deal once by each partition, and give the seconds."""
    rng = np.random.default_rng(0)
    names = np.array([f"writer-{i:05d}" for i in range(CLIENTS)])
    few, many = (
        [Labelled(rng.integers(0, CLASSES, n), names[rng.integers(0, groups, n)]) for n in (SAMPLES, TESTS)]
        for groups in (6, CLIENTS)
    )
    rows = []
    for name, options in [*((name, {}) for name in sorted(registry.names("partitions"))), *OTHERS]:
        partition = registry.build("partitions", name, options, "data.partition")
        clients = None if partition.counts_clients else CLIENTS
        start = perf_counter()
        partition.deal(*(many if partition.counts_clients else few), clients, Streams(0)("partition"))
        seconds = perf_counter() - start
        said = "".join(f" {key}={value}" for key, value in options.items())
        rows.append(row(name + said, seconds, "s", at_most=GOAL))
    return rows
