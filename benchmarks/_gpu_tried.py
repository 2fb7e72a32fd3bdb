"""On a GPU: what else a local step could be, so that what was not kept can be looked at again.

One step of the CNN (batch of 32, gathered on the device, plain SGD on a flat vector) is recorded as it is, in channels
last, in bfloat16, with cuDNN's search for kernels, and compiled by torch.compile; then replayed on one stream, where
only the length of its chain of kernels counts, and on ten, where a device shares itself out. What it takes before the
first replay is the price.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks._rows import row
from fedstrata.models.cnn_mcmahan import CnnMcmahan

STEPS, STREAMS, BATCH, SAMPLES = 60, 10, 32, 6_000


class Stream:
    """A network of its own and its recorded step."""

    def __init__(self, x: Tensor, y: Tensor, half: bool, last: bool, wrap: Callable[[Any], Any]):
        self._x, self._y, self._half, self._last = x, y, half, last
        module = CnnMcmahan().build((1, 28, 28), 10).cuda()
        self._params = list(module.parameters())
        self._flat = torch.cat([p.detach().flatten() for p in self._params])
        pieces = self._flat.split([p.numel() for p in self._params])
        for param, piece in zip(self._params, pieces, strict=True):
            param.data = piece.view(param.shape)
        self._rows = torch.randint(0, len(x), (BATCH,), device="cuda")
        self._loss = wrap(lambda a, b: cross_entropy(module(a).float(), b))
        self._stream, self._graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            for _ in range(3):
                self._step()
            self._stream.synchronize()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._step()

    def _step(self) -> None:
        x = self._x.index_select(0, self._rows)
        x = x.contiguous(memory_format=torch.channels_last) if self._last else x
        with torch.autocast("cuda", torch.bfloat16, enabled=self._half):
            loss = self._loss(x, self._y.index_select(0, self._rows))
        grads = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            self._flat.sub_(torch.cat([g.flatten() for g in grads]), alpha=0.01)
            self._rows.add_(BATCH).remainder_(len(self._x))

    def replay(self, steps: int) -> None:
        """Submit so many steps."""
        with torch.cuda.stream(self._stream):
            for _ in range(steps):
                self._graph.replay()


def measure() -> list[dict[str, Any]]:
    """Return microseconds a step, on one stream and on ten, and what comes before."""
    x, y = torch.randn(SAMPLES, 1, 28, 28, device="cuda"), torch.randint(0, 10, (SAMPLES,), device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def plain(f: Any) -> Any:
        return f

    ways: dict[str, tuple[bool, bool, bool, Callable[[Any], Any]]] = {
        "recorded": (False, False, False, plain),
        "channels last": (False, True, False, plain),
        "bf16": (True, False, False, plain),
        "cuDNN's search": (False, False, True, plain),
        "torch.compile": (False, False, False, torch.compile),
    }
    rows = []
    for name, (half, last, search, wrap) in ways.items():
        torch.backends.cudnn.benchmark, began = search, perf_counter()
        streams = [Stream(x, y, half, last, wrap) for _ in range(STREAMS)]
        torch.cuda.synchronize()
        ready = perf_counter() - began
        rows += [
            row(f"tried, a CNN step: {name}, one stream", _each(streams[:1]) * 1e6, "us"),
            row(f"tried, a CNN step: {name}, {STREAMS} streams", _each(streams) * 1e6, "us"),
            row(f"tried, a CNN step: {name}, before the first", ready, "s"),
        ]
    torch.backends.cudnn.benchmark = False
    return rows


def _each(streams: list[Stream]) -> float:
    """Return seconds a step."""
    for steps in (5, STEPS):
        torch.cuda.synchronize()
        began = perf_counter()
        for stream in streams:
            stream.replay(steps)
        torch.cuda.synchronize()
    return (perf_counter() - began) / STEPS / len(streams)
