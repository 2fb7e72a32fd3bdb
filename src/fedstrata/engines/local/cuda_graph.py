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

WARM_UP = 2  # steps before recording, in which libraries choose their kernels and get their workspaces


class Recorder:
    """Replays a step whose arguments say how large it is; records it where such a step is new.

    A step that cannot be recorded is taken as it is, from then on; `give_up` hears the reason.
    """

    def __init__(
        self,
        step: Callable[..., None],
        state: Iterable[Tensor],
        stream: torch.cuda.Stream,
        give_up: Callable[[str], None],
    ):
        self._step, self._state, self._stream, self._give_up = step, list(state), stream, give_up
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._able = True

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """What was recorded."""
        return list(self._graphs)

    def __call__(self, *size: int) -> None:
        """Take a step."""
        if self._able and size not in self._graphs:
            self._record(size)
        if size in self._graphs:
            self._graphs[size].replay()
        else:
            self._step(*size)

    def _record(self, size: tuple[int, ...]) -> None:
        """Record in the middle of a client update: what the trial steps change is put back."""
        before = [t.clone() for t in self._state]
        try:
            for _ in range(WARM_UP):
                self._step(*size)
                self._put_back(before)  # at once: behind a ring's last batch, a step would read what is not there
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with _nothing_thrown_away():
                self._capture(graph, size)
            self._graphs[size], self._pool = graph, graph.pool()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._able = False
            torch.cuda.synchronize()
            why = str(error).strip().splitlines()[0]
            self._give_up(f"local steps are not recorded, and take several times as long on a GPU: {why}")
            self._put_back(before)

    def _put_back(self, before: Iterable[Tensor]) -> None:
        for now, old in zip(self._state, before, strict=True):
            now.copy_(old)

    def _capture(self, graph: torch.cuda.CUDAGraph, size: tuple[int, ...]) -> None:
        """Do what `torch.cuda.graph` does, without tidying up first, which takes longer than all the rest."""
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._step(*size)
            finally:
                graph.capture_end()


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
