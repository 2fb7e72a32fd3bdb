"""How many cores this process may use, and how many threads torch uses for a while.

Threads are the user's: never more than torch was told (`OMP_NUM_THREADS`, `torch.set_num_threads`), than a container is
given, or than `engine.workers` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath

import torch

_fewer: list[int] = []  # what this process was told to keep to
_before: list[int] = []  # what torch was told, outside of all that is said here
CGROUPS, OWN_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"
QUOTAS = {  # by controller, as Linux tells them: in microseconds of a period
    "": ("cpu.max",),
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us"),  # version 1
}


def cores() -> int:
    """Return the cores this process may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, container_cores() or there)


@cache
def container_cores(cgroups: str = CGROUPS, own: str = OWN_GROUPS) -> int | None:
    """Return the cores that a container, or a service of systemd's around this process, is given, if not all."""
    given = []
    for controller, names in QUOTAS.items():
        inside = _group(own, controller)
        for group in (inside, *inside.parents):
            with suppress(OSError, ValueError):
                limit, period = " ".join(Path(cgroups, controller, group, name).read_text() for name in names).split()
                if limit.isdigit():  # it may also be "max" or -1
                    given.append(max(ceil(int(limit) / int(period)), 1))
    return min(given, default=None)


def _group(own: str, controller: str) -> PurePosixPath:
    """Return this process's group below a controller's folder; a container may see its own in its place."""
    with suppress(OSError):
        for line in Path(own).read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controller in controllers.split(","):
                return PurePosixPath(group.lstrip("/"))
    return PurePosixPath()


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
