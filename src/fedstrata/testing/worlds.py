"""Small federations and runs to check parts in: hundreds fit into a minute."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core import tree
from fedstrata.core.server_parts import Engine, Outcome, Scores
from fedstrata.core.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import LocalEngine
from fedstrata.engines.local.in_process import InProcess
from fedstrata.runs.folder import Checkpoints
from fedstrata.runs.session import Work
from fedstrata.runs.training import described
from fedstrata.server.loop import State, play_round

TINY: Mapping[str, Any] = {
    "model.hidden": (5,),
    "train.rounds": 4,
    "train.epochs": 2,
    "train.batch_size": 4,
    "train.clients_per_round": 3,
    "train.lr": 0.1,
    "engine.precision": "fp64",
}


def tiny_federation(clients: int = 6, seed: int = 0) -> Federation:
    """Give a few clients of 3 to 17 samples in 4 dimensions with 3 classes; one client has a single label."""
    rng = np.random.default_rng(seed)
    sizes = [3 + (7 * i) % 15 for i in range(clients)]
    centres = rng.normal(size=(3, 4))
    y = np.concatenate([np.zeros(sizes[0], dtype=int), rng.integers(0, 3, sum(sizes[1:]))])
    x = (centres[y] + 0.7 * rng.normal(size=(len(y), 4))).astype(np.float32)
    stops = np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    test_y = np.repeat(np.arange(3), 8)
    test_x = (centres[test_y] + 0.7 * rng.normal(size=(24, 4))).astype(np.float32)
    test_rows = np.array_split(rng.permutation(24), clients)
    return Federation.from_arrays(x, y, rows, test=(test_x, test_y), test_clients=test_rows)


def work_of(overrides: Mapping[str, Any] | None = None, federation: Federation | None = None) -> Work:
    """Prepare an experiment on a tiny federation."""
    federation = federation or tiny_federation()
    asked = described(None, None, {**TINY, **(overrides or {})}, federation, None)
    return Work(asked, federation, None)


def in_process(work: Work) -> Engine:
    """Give the plain local engine."""
    return LocalEngine(InProcess(work.plan.local, work.private.federation))


def play(
    work: Work,
    rounds: int = 4,
    engine: Callable[[Work], Engine] = in_process,
    cut: int | None = None,
) -> tuple[State, list[list[Outcome]]]:
    """Play rounds; with `cut`, save after that many rounds, forget everything, and go on from the checkpoint."""
    state, at, outcomes = work.fresh(), engine(work), []
    roster = work.roster if at.joins else work.roster.behind_messages()
    for round in range(rounds):
        view = work.plan.view(roster, round, lambda *_, **__: None)
        with one_thread():
            played = play_round(work.plan, state, view, at)
        work.plan.select.feedback(state.select, view, played, Scores())
        state.round += 1
        outcomes.append(played)
        if cut is not None and state.round == cut:
            work = Work(work.experiment, work.federation, work.model)  # parts made anew: what they hid is gone
            state, keeps = _saved_and_read(work, state, at)
            at = engine(work)
            at.restore(keeps)
    return state, outcomes


def _saved_and_read(work: Work, state: State, engine: Engine) -> tuple[State, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(Path(folder)).write(state.round, state, engine.keeps(), {})
        checkpoints = Checkpoints(Path(folder))
        manifest = checkpoints.manifest()
        assert manifest is not None
        read, keeps = checkpoints.read(manifest, like=work.fresh())
        return read, dict(keeps)  # before the folder is gone


def alike(a: Any, b: Any) -> bool:
    """Say whether two nested values are equal, tensors bit for bit."""
    arrays: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    plain = [tree.flatten(value, tensors) for value, tensors in zip((a, b), arrays, strict=True)]
    return plain[0] == plain[1] and all(torch.equal(t, arrays[1][name]) for name, t in arrays[0].items())


def same(a: State, b: State) -> bool:
    """Say whether two states hold the same model, bit for bit."""
    return torch.equal(a.model.params, b.model.params) and torch.equal(a.model.buffers, b.model.buffers)
