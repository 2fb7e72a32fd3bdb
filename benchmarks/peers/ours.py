"""FedAvg by this project's engine, as `fedstrata.train` starts it for a long run."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.job import CLASSES, LR, Job, Stopwatch, network
from fedstrata.core.engine import Engine
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.part import Part
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.runs.session import Session, build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

MANY = 100_000  # rounds: what the engine is told, so that it works as in a run that takes long


def run(job: Job, watch: Stopwatch) -> None:
    """Run the rounds."""
    work = session_of(job)
    engine = start(work, LocalEngineOptions(device="cpu"), job)
    run_rounds(work, engine, job, watch)
    engine.close()


def session_of(job: Job) -> Session:
    """Prepare the job."""
    x, y = job.arrays()
    rows = [np.arange(len(x))[job.rows(client)] for client in range(job.clients)]
    federation, module = Federation.from_arrays(x, y, rows, test=(x[:CLASSES], y[:CLASSES])), network(job.model)
    asked = {"train.clients_per_round": job.per_round, "train.batch_size": job.batch, "train.epochs": 1, "train.lr": LR}
    return build_session(describe_experiment(None, "fedavg", asked, federation, module), federation, module)


def start(work: Session, options: Part, job: Job) -> Any:
    """Start an engine."""
    made: Any = options
    return made.start(work.plan.local, work.federation, MANY * job.per_round, _ignore)


def run_rounds(work: Session, engine: Engine, job: Job, watch: Stopwatch) -> None:
    """Run the rounds, and end each with a lap."""
    state = work.initial_state()
    with one_thread():
        for round in range(job.rounds):
            (outcome,) = run_round(work.plan, state, work.plan.view(work.client_info, round, _ignore), engine)
            watch.steps += sum(report.steps for report in outcome.reports)
            state.round += 1
            watch.lap()


def _ignore(*_: Any, **__: Any) -> None:
    """Keep no events."""
