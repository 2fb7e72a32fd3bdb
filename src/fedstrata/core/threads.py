"""How many threads torch uses, for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

_fewer: list[int] = []  # what this process was told to keep to


def cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spare() -> int:
    """Return the threads for work that no worker does: one a core, unless this process keeps to fewer."""
    return _fewer[-1] if _fewer else cores()


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
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Work as every worker does: how sums are cut among threads changes their last bit."""
    return threads(1)
