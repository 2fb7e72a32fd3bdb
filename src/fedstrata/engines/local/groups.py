"""Which clients are trained at once.

Groups are made before work is dealt to workers and do not depend on them: any number of workers gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from torch import nn

from fedstrata.core.messages import Task
from fedstrata.engines.local.worker import MOST_REPLICAS

TINY = 2e6  # multiplications of a batch below which a step's cost is mostly its overhead, on a core
TINY_ON_GPU = 5e6
WORTH_A_STEP = 8  # clients that a group should have at least
SMALL = 200_000  # parameters above which replicas take more memory than they are worth


def worth_grouping(module: nn.Module, products: float, device: str) -> bool:
    """Say whether training many clients in one step pays: tiny models, whose batches do not share statistics."""
    normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
    small = sum(p.numel() for p in module.parameters()) < SMALL
    return not normed and small and products < (TINY if device == "cpu" else TINY_ON_GPU)


def group_tasks(tasks: Sequence[Task], sizes: np.ndarray, together: bool, ways: int) -> list[list[int]]:
    """Return the places of tasks that are done at once, longest first, in a multiple of `ways`; probes are done alone."""
    longest_first = sorted(range(len(tasks)), key=lambda i: (-sizes[tasks[i].client], i))
    if not together or len(tasks) < 2 or tasks[0].kind != "train":
        return [[i] for i in longest_first]
    groups = max(min(ways * ceil(len(tasks) / (ways * MOST_REPLICAS)), len(tasks) // WORTH_A_STEP), 1)
    size = ceil(len(tasks) / groups)
    return [longest_first[start : start + size] for start in range(0, len(tasks), size)]
