"""Choosing clients at scale: a million of them, two cores, no training."""

from __future__ import annotations

import resource
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

CLIENTS, LABELS, K = 1_000_000, 62, 1_000


def measure() -> list[dict[str, Any]]:
    """Return seconds of set-up and of a round, by selector, and of Terraform's split."""
    counts = _counts()
    rows = []
    for name, options, goal in (
        ("flips", {"clusters": 10}, 60.0),
        ("flips", {}, 300.0),
    ):
        seconds, each = _selector(name, options, counts)
        said = "k fixed" if options else "k searched in a sample"
        rows.append(row(f"{name}, set-up, {said}", seconds, "s", at_most=goal))
        rows.append(row(f"{name}, a round, {said}", each, "s", at_most=0.05))
    for name in ("random", "size", "oort"):
        rows.append(row(f"{name}, a round", _selector(name, {}, counts)[1], "s", at_most=1.0))
    rng = np.random.default_rng(0)
    magnitudes, sizes = rng.lognormal(size=CLIENTS), rng.integers(1, 500, CLIENTS)
    start = perf_counter()
    split(magnitudes, sizes)
    rows.append(row("terraform, split of a million", perf_counter() - start, "s", at_most=1.0))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return [*rows, row("memory of all of this", memory, "GB", at_most=4.0)]


def _counts() -> np.ndarray:
    """Return label counts of a million clients in ten kinds."""
    rng = np.random.default_rng(0)
    kinds = rng.dirichlet(np.full(LABELS, 0.1), 10)
    return rng.multinomial(100, kinds[rng.integers(0, 10, CLIENTS)]).astype(np.int32)


def _selector(name: str, options: dict[str, Any], counts: np.ndarray) -> tuple[float, float]:
    """Return the seconds of the set-up, and of one round of selection and feedback, the median of five."""
    selector = registry.build("selectors", name, options, "method.selector")
    sizes, everybody = counts.sum(1), np.arange(len(counts))
    known = {"sizes": sizes, "counts": counts}
    client_info = ClientInfo(len(counts), LABELS, everybody, Streams(0)("tiebreak").permutation(len(counts)), known)
    space, times = ParameterSpace((), (), slice(0, 0), slice(0, 0), slice(0, 0)), []

    def view(round: int) -> View:
        return View(
            round, 100, K, everybody, client_info, space, partial(Streams(0), round=round), lambda *_, **__: None
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
