"""CUDA graphs: a local step is recorded once and replayed for every batch of every client.

Small models spend their time in launching kernels; a graph launches them all at once. A graph must be recorded on the
stream it is replayed on: graphs of several workers that were recorded on one stream share cuBLAS's workspace, and race.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # steps before recording, in which libraries choose their kernels and get their workspaces


class Recorder:
    """Replays a step whose only argument is a width; records it where that width is new.

    A step that cannot be recorded is taken as it is, from then on; `give_up` hears the reason.
    """

    def __init__(
        self,
        step: Callable[[int], None],
        state: Iterable[Tensor],
        stream: torch.cuda.Stream,
        give_up: Callable[[str], None],
    ):
        self._step, self._state, self._stream, self._give_up = step, list(state), stream, give_up
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._able = True

    def __call__(self, width: int) -> None:
        """Take a step."""
        if self._able and width not in self._graphs:
            self._record(width)
        if width in self._graphs:
            self._graphs[width].replay()
        else:
            self._step(width)

    def _record(self, width: int) -> None:
        """Record in the middle of a client update: what the trial steps change is put back."""
        before = [t.clone() for t in self._state]
        graph = torch.cuda.CUDAGraph()
        try:
            for _ in range(WARM_UP):
                self._step(width)
            self._stream.synchronize()
            recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
            with _nothing_thrown_away(), recording:
                self._step(width)
            self._graphs[width], self._pool = graph, graph.pool()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._able = False
            torch.cuda.synchronize()
            self._give_up(str(error).strip().splitlines()[0])
        for now, old in zip(self._state, before, strict=True):
            now.copy_(old)


@contextmanager
def _nothing_thrown_away() -> Iterator[None]:
    """Keep Python from collecting garbage: an old graph that is destroyed meanwhile spoils the new one."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
