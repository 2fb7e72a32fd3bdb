"""Whole models of clients, for combiners that remember them: as vectors, weights first, then norm statistics.

They never change and are many, so a checkpoint's files hold them (`core/storage/stored.py`); their sum is kept beside
them, in double precision, so that only models of clients that report are ever read.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Sums
from fedstrata.core.steps import View

LARGE = 2**30  # bytes of models beyond which a run says how much disk they take


def vector(model: FlatModel) -> Tensor:
    """Return a model as one vector."""
    return torch.cat([model.params, model.buffers])


def model_of(report: Report, here: Tensor) -> Tensor:
    """Return the model that a client ended with; where its statistics are not its own, those it was sent."""
    moved = torch.zeros_like(here)
    moved[: len(report.aggregated["update"])] = report.aggregated["update"]
    if "buffers" in report.aggregated:
        moved[len(report.aggregated["update"]) :] = report.aggregated["buffers"]
    return here + moved


def move_to(mean: Tensor, here: Tensor, sums: Sums, view: View) -> Sums:
    """Return sums that lead from the model as it is to a given one; what corrections sent stays as it was summed."""
    moved = (mean - here).to(here)
    total = {"update": moved[: view.space.P]}
    if view.space.Q:
        total["buffers"] = moved[view.space.P :] * sums.weight
    return replace(sums, total={**sums.total, **total})


def warn_of_size(view: View, what: str, models: int) -> None:
    """Say how much disk the models of all clients will take, where that is much."""
    size = 4 * (view.space.P + view.space.Q) * models * view.client_info.clients
    if size > LARGE:
        why = f"it keeps up to {size / 2**30:.1f} GB of clients' models in the files of the checkpoint"
        view.note("warning", what=what, why=why)
