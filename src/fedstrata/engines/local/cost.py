"""A rough guess of how long a run takes on one core, to decide whether processes pay."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedstrata.clientside import Local
from fedstrata.federation import Federation

SECONDS_A_STEP = 5e-4  # what a local step costs whatever its size
FLOPS_A_SECOND = 2e10  # of one core on small convolutions


def estimated_seconds(local: Local, federation: Federation, visits: int) -> float:
    """Guess from the model's multiplications, the mean client and the number of visits."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        local.build().to(local.dtype).eval()(federation.train.x[:1].to(local.dtype))
    samples = len(federation.train_split.rows) / len(federation)
    steps = local.epochs * samples / local.batch_size
    flops = 3 * counter.get_total_flops() * local.epochs * samples
    return visits * (steps * SECONDS_A_STEP + flops / FLOPS_A_SECOND)
