"""Stratify's Table III: what a round costs in training, and in writing, reading and loading what is sent.

One round of each algorithm over 10 clients, message by message, in CPU seconds of all of them. Every task and every
report is packed as it goes over a wire, unpacked, and its model loaded into weights; that is timed apart. Where every
batch or sample has its messages (Stratify) both grow with the samples, and their ratio compares with the paper's, which
stands beside; FedAvg's messages do not grow, and its authors' round has 50,000 samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time
from typing import Any

import numpy as np
import torch

from benchmarks._rows import row
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Report, Task
from fedstrata.core.steps import Step
from fedstrata.core.wire import pack_report, pack_task, unpack_report, unpack_task
from fedstrata.data.federation import Federation
from fedstrata.engines.local.engine import InProcessPool, LocalEngine
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

CLIENTS, CLASSES = 10, 10
SETTINGS: dict[str, dict[str, Any]] = {  # the columns of the table
    "single samples": {"model.name": "cnn-stratify", "train.batch_size": 1},
    "batches": {"model.name": "resnet9", "model.norm": "gn", "train.batch_size": 64},
    "batches with batch norm": {"model.name": "resnet9", "model.norm": "bn", "train.batch_size": 64},
}
QUICK = {name: {"model.name": "mlp", "train.batch_size": 64} for name in SETTINGS}
QUICK["batches with batch norm"] |= {"model.norm": "batch"}
TABLE_III = {  # seconds in the paper: training, and the rest
    ("fedavg", "single samples"): (53.0, 0.006),
    ("fedprox", "single samples"): (53.4, 0.006),
    ("scaffold", "single samples"): (54.6, 0.006),
    ("sfl", "single samples"): (142.0, 0.06),
    ("stratify-single", "single samples"): (145.0, 95.4),
    ("fedavg", "batches"): (11.4, 0.127),
    ("fedprox", "batches"): (9.83, 0.127),
    ("scaffold", "batches"): (10.43, 0.127),
    ("stratify-batch", "batches"): (186.0, 11.8),
    ("fedavg", "batches with batch norm"): (11.5, 0.154),
    ("fedprox", "batches with batch norm"): (10.1, 0.154),
    ("scaffold", "batches with batch norm"): (10.8, 0.154),
    ("fedtan", "batches with batch norm"): (56.0, 0.154),
    ("stratify-batch", "batches with batch norm"): (249.0, 12.0),
}


class Serialising(LocalEngine):
    """Packs, unpacks and loads all that would travel, and times it."""

    def __init__(self, pool: InProcessPool):
        super().__init__(pool)
        self.packing, self._weights = 0.0, torch.zeros(0)

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Run tasks that came as bytes, and send their reports as bytes."""
        start = process_time()
        came = [unpack_task(pack_task(task)) for task in tasks]
        for task in came:
            if (params := task.down.get("params")) is not None:
                self._weights = torch.empty_like(params) if len(self._weights) != len(params) else self._weights
                self._weights.copy_(params)
        self.packing += process_time() - start
        told = super().ask(step, came)
        start = process_time()
        for report in self.each().values():
            unpack_report(pack_report(report))
        self.packing += process_time() - start
        return told


def rows(samples: int, quick: bool) -> list[dict[str, Any]]:
    """Return seconds of a round, and the share of writing, reading and loading, beside the paper's."""
    told = []
    for (method, setting), (theirs, beside) in TABLE_III.items():
        training, packing = _round(method, (QUICK if quick else SETTINGS)[setting], samples)
        name = f"a round of {samples} samples, {setting}, {method}"
        told.append(row(f"{name}: training", training, "CPU s"))
        told.append(row(f"{name}: serialising and loading", packing, "CPU s"))
        told.append(row(f"{name}: that over training", packing / training, "times"))
        told.append(row(f"{name}: the same in the paper's Table III", beside / theirs, "times"))
    return told


def _round(method: str, setting: dict[str, Any], samples: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(samples, 3, 32, 32)).astype(np.float32), np.arange(samples) % CLASSES
    federation = Federation.from_arrays(x, y, np.array_split(rng.permutation(samples), CLIENTS), test=(x[:10], y[:10]))
    asked = {**setting, "train.lr": 0.001, "train.epochs": 1, "train.clients_per_round": "all"}
    asked |= {"train.optimizer": {"kind": "sgd", "momentum": 0.0}, "engine.execution": "messages"}
    if method == "stratify-single":
        asked |= {"method.schedule.chunk": 5}
    work = build_session(describe_experiment(None, method, asked, federation, None), federation, None)
    state, engine = work.initial_state(), Serialising(InProcessPool(work.plan.local, federation))
    view = work.plan.view(work.client_info, 0, lambda *_, **__: None)
    start = process_time()
    with one_thread():
        run_round(work.plan, state, view, engine)
    return process_time() - start - engine.packing, engine.packing
