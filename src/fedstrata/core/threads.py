"""How many cores this process may use, and how many threads torch uses for a while.

Threads are the user's: never more than torch was told (`OMP_NUM_THREADS`, `torch.set_num_threads`), than a container is
given, or than `engine.workers` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from math import ceil
from pathlib import Path

import torch

_fewer: list[int] = []  # what this process was told to keep to
_before: list[int] = []  # what torch was told, outside of all that is said here
QUOTAS = (  # of a container, as Linux tells it: in microseconds of a period
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


def cores() -> int:
    """Return the cores this process may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, container_cores() or there)


@cache
def container_cores(files: tuple[tuple[str, ...], ...] = QUOTAS) -> int | None:
    """Return the cores that a container is given, if it is given less than all."""
    for names in files:
        try:
            limit, period = " ".join(Path(name).read_text() for name in names).split()
            if limit.isdigit():  # it may also be "max" or -1
                return max(ceil(int(limit) / int(period)), 1)
        except (OSError, ValueError):
            continue
    return None


def spare() -> int:
    """Return the threads for work that no worker does: one a core, unless the user or a neighbour wants fewer."""
    return min([cores(), _before[0] if _before else torch.get_num_threads(), *_fewer])


@contextmanager
def keeping_to(count: int) -> Iterator[None]:
    """Use no more threads than this, because others work beside this process, or might have."""
    _fewer.append(count)
    try:
        yield
    finally:
        _fewer.pop()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads."""
    _before.append(before := torch.get_num_threads())
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _before.pop()


def one_thread() -> AbstractContextManager[None]:
    """Work as every worker does: how sums are cut among threads changes their last bit."""
    return threads(1)
