"""Choosing clients at scale: a million of them, two cores, no training."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks._rows import row
from fedstrata.core import registry
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.drivers.terraform import split


@dataclass(frozen=True)
class Size:
    """How many clients and labels there are, and how many clients are chosen a round."""

    clients: int
    labels: int
    k: int


FULL = Size(clients=1_000_000, labels=62, k=1_000)
QUICK = Size(clients=5_000, labels=5, k=50)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return seconds of set-up and of a round, by selector, and of Terraform's split."""
    size = QUICK if quick else FULL
    counts = _counts(size.clients, size.labels)
    rows = []
    for name, options, goal in (
        ("flips", {"clusters": 10}, 60.0),
        ("flips", {}, 300.0),
    ):
        seconds, each = _selector(name, options, counts, size.k)
        said = "k fixed" if options else "k searched in a sample"
        rows.append(row(f"{name}, set-up, {said}", seconds, "s", at_most=goal))
        rows.append(row(f"{name}, a round, {said}", each, "s", at_most=0.05))
    for name in ("random", "size", "oort"):
        rows.append(row(f"{name}, a round", _selector(name, {}, counts, size.k)[1], "s", at_most=1.0))
    rng = np.random.default_rng(0)
    magnitudes, sizes = rng.lognormal(size=size.clients), rng.integers(1, 500, size.clients)
    start = perf_counter()
    split(magnitudes, sizes)
    rows.append(row(f"terraform, split of {size.clients:,}", perf_counter() - start, "s", at_most=1.0))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return [*rows, row("memory of all of this", memory, "GB", at_most=4.0)]


def _counts(clients: int, labels: int) -> np.ndarray:
    """Return label counts of clients in ten kinds."""
    rng = np.random.default_rng(0)
    kinds = rng.dirichlet(np.full(labels, 0.1), 10)
    return rng.multinomial(100, kinds[rng.integers(0, 10, clients)]).astype(np.int32)


def _selector(name: str, options: dict[str, Any], counts: np.ndarray, k: int) -> tuple[float, float]:
    """Return the seconds of the set-up, and of one round of selection and feedback, the median of five."""
    selector = registry.build("selectors", name, options, "method.selector")
    sizes, everybody = counts.sum(1), np.arange(len(counts))
    known = {"sizes": sizes, "counts": counts}
    key = Streams(0)("tiebreak").permutation(len(counts))
    client_info = ClientInfo(len(counts), counts.shape[1], everybody, key, known)
    space, times = ParameterSpace((), (), slice(0, 0), slice(0, 0), slice(0, 0)), []

    def view(round: int) -> View:
        return View(
            round, 100, k, everybody, client_info, space, partial(Streams(0), round=round), lambda *_, **__: None
        )

    start = perf_counter()
    state = selector.init(view(0))
    picks = list(selector.select(state, view(0)))
    setup = perf_counter() - start
    for round in range(1, 6):
        ids = [pick.client if isinstance(pick, Ask) else int(pick) for pick in picks]
        metrics = {"oort_utility": 1.0, "utility": 1.0}
        reports = tuple(Report(c, int(sizes[c]), 1, 1.0, 1.0, metrics, seconds=1.0) for c in ids)
        start = perf_counter()
        outcome = Outcome(Step(tuple(Ask(c) for c in ids)), 0, reports, ())
        selector.feedback(state, view(round - 1), [outcome], Scores())
        picks = list(selector.select(state, view(round)))
        times.append(perf_counter() - start)
    return setup, float(np.median(times))
