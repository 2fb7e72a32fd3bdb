"""How long looking takes: inspecting a large federation before it is trained."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from fedstrata import Federation, inspect
from fedstrata.data.partitions.dirichlet_client import DirichletClient

SAMPLES, CLIENTS, CLASSES, FEATURES, GOAL = 1_000_000, 10_000, 10, 32, 10.0


def measure() -> list[dict[str, Any]]:
    """Measure everything that is shown."""
    return [_inspect()]


def _inspect() -> dict[str, Any]:
    """Inspect a million samples, samples themselves included, and give the seconds."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((SAMPLES, FEATURES), dtype=np.float32), rng.integers(0, CLASSES, SAMPLES)
    federation = Federation.from_arrays(x, y, CLIENTS, partition=DirichletClient(alpha=1.0), test=(x[:1000], y[:1000]))
    start = perf_counter()
    inspect(overrides={"train.clients_per_round": 100}, federation=federation)
    seconds = perf_counter() - start
    name = f"inspect {SAMPLES:,} samples over {CLIENTS:,} clients"
    return {"name": name, "value": seconds, "unit": "s", "goal": GOAL, "met": seconds < GOAL}
