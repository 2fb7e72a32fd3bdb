"""How much of its machine a site's process may use: threads, memory, and a share of a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from fedstrata.remote.site.policy.rules import Resources

GIB = 1 << 30
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(asked: Resources) -> Mapping[str, str]:
    """Return what must stand in the environment before the process begins."""
    around = {} if asked.threads is None else dict.fromkeys(THREADS, str(asked.threads))
    return around | ({"CUDA_VISIBLE_DEVICES": ""} if asked.gpu == 0 else {})


def keep_to(asked: Resources) -> None:
    """Hold this process to its share; what goes beyond fails, and the request with it."""
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    if asked.memory_gb is not None:  # heap and private mappings: what is computed with, not what is reserved
        import resource  # noqa: PLC0415 - Windows has none

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = int(asked.memory_gb * GIB)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    if asked.gpu and os.environ.get("CUDA_VISIBLE_DEVICES") != "" and torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(asked.gpu, device)
