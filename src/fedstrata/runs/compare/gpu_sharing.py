"""Cells at a time on a GPU: one leaves it idle wherever a single large client is the last of its round.

Processes compute side by side on a GPU only through NVIDIA's Multi-Process Service; without it they take turns, which
saves next to nothing. Where its control program is installed and no service runs yet, a comparison starts one for its
own processes and ends it with them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedstrata.core.machine.threads import cores
from fedstrata.engines.local.gpu import MPS_PIPES, has_neighbours

CONTROL = "nvidia-cuda-mps-control"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
QUEUES = 64  # of the hardware, for all cells together
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"  # of Inductor, a process: otherwise each has as many as there are cores


def can_share() -> bool:
    """Say whether processes can compute side by side on this machine's GPUs."""
    return has_neighbours() or shutil.which(CONTROL) is not None


@contextmanager
def sharing_gpu(jobs: int) -> Iterator[Mapping[str, str]]:
    """Give the environment in which so many processes share the GPUs, as long as they run."""
    fewer = int(os.environ.get(CONNECTIONS, QUEUES))  # as a user wants it whose other commands share the GPU too
    each = {
        CONNECTIONS: str(max(min(QUEUES // jobs, fewer), 1)),
        COMPILERS: os.environ.get(COMPILERS, str(max(cores() // jobs, 1))),
    }
    if has_neighbours() or not can_share():  # somebody's service serves us too
        yield each
        return
    with tempfile.TemporaryDirectory(prefix="fedstrata-mps-", ignore_cleanup_errors=True) as folder:
        service = {MPS_PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        begun = subprocess.run([CONTROL, "-d"], env={**os.environ, **service}, capture_output=True, check=False)
        try:
            yield {**each, **service} if begun.returncode == 0 else each
        finally:
            end = {"input": b"quit\n", "env": {**os.environ, **service}, "capture_output": True}
            subprocess.run([CONTROL], check=False, timeout=30, **end)  # type: ignore[call-overload]
