"""The client side of a plan: what a part may do inside one client update of one client.

A *client update* is one task at one client, a pure function (task, client state) -> (report, new client state).
A *trainer* (`trainer.py`) is one resident model replica that makes one client update after another. All that differs
between clients lives in the trainer's static buffers, so that the local step of any composed method is one function
over fixed addresses: it can run eagerly, be captured and replayed, or be batched over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedstrata.core.client import Client, Order
from fedstrata.core.client_context import Program
from fedstrata.core.inputs import Inputs
from fedstrata.core.learning_rate import LearningRate, LRSchedule
from fedstrata.core.local_part import Correction, LocalPart
from fedstrata.core.optimizer import Optimizer
from fedstrata.core.rng import Streams

if TYPE_CHECKING:
    from fedstrata.core.sampler import Sampler

__all__ = ["Client", "ClientPlan", "Correction", "LRSchedule", "LearningRate", "LocalPart", "Optimizer", "Order"]


@dataclass(frozen=True)
class ClientPlan:
    """The client side of a plan, whole: rebuilt at every trainer and site from the experiment."""

    build: Callable[[], nn.Module]
    head: str
    inputs: Inputs
    sampler: Sampler
    parts: Mapping[str, LocalPart]  # corrections and meters, in order; the name scopes their tensors
    optimizer: Optimizer
    programs: Mapping[str, Program]
    epochs: int
    batch_size: int
    rate: LearningRate
    streams: Streams
    dtype: torch.dtype
    rounds: int = 1
    half: bool = False  # layers compute in bfloat16, weights stay as they are

    @property
    def chain(self) -> dict[str, LocalPart]:
        """Parts in the order of their gradient hooks: the optimizer is last."""
        return {**self.parts, "optimizer": self.optimizer}
