"""What FLIPS is shown."""

from __future__ import annotations

from functools import partial

import numpy as np

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View
from fedstrata.methods.selectors.clusters import find_clusters

POINTS = np.array([(10, 0), (9, 1), (0, 10), (1, 9), (5, 5)], dtype=float)
CURVE = {2: 1.20, 3: 1.00, 4: 0.40, 5: 0.38, 6: 0.41}
OF = np.array([0, 0, 0, 1, 2, 2])  # clusters {p0, p1, p2}, {p3}, {p4, p5}
PURE = np.eye(3, dtype=np.int64)[OF] * 10  # whose clients hold one label each


def view_of(counts, k, round=0, eligible=None, note=lambda *_, **__: None, key=None):
    """Return what FLIPS sees of clients with these label counts; ties go by id."""
    counts = np.asarray(counts)
    holders = np.flatnonzero(counts.sum(1))
    key = np.arange(len(counts)) if key is None else key
    client_info = ClientInfo(len(counts), counts.shape[1], holders, key, {"counts": counts})
    eligible = holders if eligible is None else np.array(eligible)
    return View(round, 9, min(k, len(eligible)), eligible, client_info, None, partial(Streams(0), round=round), note)


def outcome_of(asked, missing):
    """Return what becomes of a step in which some do not report."""
    reports = tuple(Report(i, 1, 1, 1.0, 1.0) for i in asked if i not in missing)
    return Outcome(Step(tuple(map(Ask, asked))), 0, reports, tuple(missing))


def told(flips, state, view, asked, missing):
    flips.feedback(state, view, [outcome_of(asked, missing)], Scores())


def found(vectors, k=None, rule="min", repeats=5, seed=0, note=lambda *_, **__: None):
    return find_clusters(np.asarray(vectors), k, rule, repeats, np.random.default_rng(seed), note)


def groups(sizes, labels=4, spread=0.02, seed=0):
    """Return label vectors in clear groups, one label each, with a little of the others."""
    rng = np.random.default_rng(seed)
    vectors = np.eye(labels)[np.repeat(np.arange(len(sizes)), sizes)] + spread * rng.random((sum(sizes), labels))
    return vectors / vectors.sum(1, keepdims=True)


def partition_of(cluster):
    """Return clusters as sets, whatever their numbers."""
    return {frozenset(np.flatnonzero(cluster == c).tolist()) for c in np.unique(cluster)}
