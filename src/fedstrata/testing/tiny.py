"""Small federations and runs to check parts in: hundreds fit into a minute."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstrata.core.engine import Engine
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.steps import Outcome, Scores, give_feedback
from fedstrata.core.storage import tree
from fedstrata.core.storage.stored import Stored
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import InProcessPool, LocalEngine
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.runs.session import Session, build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.server.state import State

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
    """Return a few clients of 3 to 17 samples in 4 dimensions with 3 classes; one client has a single label."""
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


def session_of(overrides: Mapping[str, Any] | None = None, federation: Federation | None = None) -> Session:
    """Prepare an experiment on a tiny federation."""
    federation = federation or tiny_federation()
    asked = describe_experiment(None, None, {**TINY, **(overrides or {})}, federation, None)
    return build_session(asked, federation, None)


def in_process(work: Session) -> Engine:
    """Return the plain local engine."""
    return LocalEngine(InProcessPool(work.plan.local, work.private.federation))


def run_rounds(
    work: Session,
    rounds: int = 4,
    engine: Callable[[Session], Engine] = in_process,
    cut: int | None = None,
) -> tuple[State, list[list[Outcome]]]:
    """Run rounds; with `cut`, save after that many rounds, forget everything, and go on from the checkpoint."""
    state, at, outcomes = work.initial_state(), engine(work), []
    client_info = work.client_info if at.can_fuse else work.client_info.without_ground_truth()
    with tempfile.TemporaryDirectory() if cut is not None else nullcontext("") as folder:
        for round in range(rounds):
            view = work.plan.view(client_info, round, lambda *_, **__: None)
            with one_thread():
                ran = run_round(work.plan, state, view, at)
            give_feedback(work.plan.selector, state.selector, view, ran, Scores())
            state.round += 1
            outcomes.append(ran)
            if cut is not None and state.round == cut:
                work = build_session(work.experiment, work.federation, work.model)  # parts made anew: nothing is hidden
                state, client_states = _saved_and_read(Path(folder), work, state, at)
                at = engine(work)
                at.restore(client_states)
    return state, outcomes


def _saved_and_read(folder: Path, work: Session, state: State, engine: Engine) -> tuple[State, Any]:
    with work.plan.naming_states():
        Checkpoints(folder).write(state.round, state, engine.client_states(), {})
        checkpoints = Checkpoints(folder)
        manifest = checkpoints.manifest()
        assert manifest is not None
        return checkpoints.read(manifest, like=work.initial_state())


def alike(a: Any, b: Any) -> bool:
    """Say whether two nested values are equal, tensors bit for bit."""
    arrays: tuple[tree.Arrays, tree.Arrays] = ({}, {})
    plain = [tree.flatten(value, aside) for value, aside in zip((a, b), arrays, strict=True)]
    read = [{n: v.read() if isinstance(v, Stored) else v for n, v in aside.items()} for aside in arrays]
    return plain[0] == plain[1] and all(torch.equal(tensor, read[1][name]) for name, tensor in read[0].items())


def same(a: State, b: State) -> bool:
    """Say whether two states hold the same model, bit for bit."""
    return torch.equal(a.model.params, b.model.params) and torch.equal(a.model.buffers, b.model.buffers)
