"""What selectors that want different clients are shown."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Ask, Outcome, Step, View, select_asks
from fedstrata.methods.selectors.remembered import Remembered, angles
from fedstrata.methods.selectors.ward import ward

UPDATES = np.array([(1, 0), (0.9, 0.1), (0, 1), (0.1, 0.9)])
RNG = np.random.default_rng


def space_of(numbers=2, classes=2):
    """Return a model that is all head: one row of weights a class, then the biases."""
    cut = numbers - classes
    return SimpleNamespace(P=numbers, head=slice(0, numbers), head_weight=slice(0, cut), head_bias=slice(cut, numbers))


def view_of(sizes, k, round=0, key=None, space=None, seed=0, notes=None, classes=2, rounds=1):
    sizes = np.array(sizes)
    tiebreak = np.arange(len(sizes)) if key is None else np.array(key)
    client_info = ClientInfo(len(sizes), classes, np.flatnonzero(sizes), tiebreak, {"sizes": sizes})
    rng = partial(Streams(seed), round=round)

    def note(kind, **fields):
        if notes is not None:
            notes.append((kind, fields))

    known = (
        round,
        rounds,
        min(k, len(client_info.holders)),
        client_info.holders,
        client_info,
        space or space_of(),
        rng,
        note,
    )
    return View(*known)


def asks(selector, state, view):
    """Let a selector that does not probe finish."""
    with pytest.raises(StopIteration) as done:
        next(select_asks(selector, state, view))
    return done.value.value


def ids(selector, state, view):
    return [ask.client for ask in asks(selector, state, view)]


def remembered(updates):
    state = Remembered.nothing(len(updates[0]))
    state.keep({i: np.array(u, dtype=float) for i, u in enumerate(updates)})
    return state


def told(updates, missing=(), **kinds):
    """Return the outcome of a round in which clients sent these updates."""
    step = Step(tuple(Ask(i) for i in sorted({*updates, *missing})), **kinds)
    tensors = {i: torch.tensor(u, dtype=torch.float64) for i, u in updates.items()}
    reports = [Report(i, 1, aggregated={"update": u}, open_tensors={"HeadUpdate/head": u}) for i, u in tensors.items()]
    return [Outcome(step, 0, tuple(reports), tuple(missing))]


def tree_of(updates, measure=angles, on="rows", limit=5000):
    rows = np.array(updates, dtype=float)
    return ward(len(rows), lambda a, b: measure(rows[a], rows[b]), on, limit, RNG(0))


def groups(found):
    return sorted(sorted(group.tolist()) for group in found)
