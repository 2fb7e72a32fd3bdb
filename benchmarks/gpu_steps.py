"""On a GPU: a local step as it is recorded, on one stream, where the length of its chain counts, and on ten together.

Plain, with cuDNN's search for kernels, compiled, and compiled with channels last, which is what an engine compiles in
tf32 and bf16. What comes before the first step is the price; `apart` is how far a compiled step was from the plain one.
Samples are noise. With `FEDSTRATA_KERNELS` set, the kernels that take longest are told on the way.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

import fedstrata
from benchmarks._rows import row
from fedstrata.client.local_step import Batches
from fedstrata.client.trainer import Trainer
from fedstrata.data.federation import Federation
from fedstrata.engines.local.compiled_step import FOLDER, Compiler
from fedstrata.engines.local.gpu import GpuPool, ask_for_queues
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment

STREAMS, REPEATS = 10, 4
AUGMENTED = {"train.augment.crop": 4, "train.augment.flip": True}
GREY = {"model.name": "cnn-mcmahan", "train.batch_size": 32}
COLOUR = {"model.name": "resnet18", "model.norm": "gn", "train.batch_size": 64}
WORKLOADS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {  # shape of a sample, steps, settings
    "CNN tf32": ((1, 28, 28), 200, GREY | {"engine.precision": "tf32"}),
    "CNN bf16": ((1, 28, 28), 200, GREY | {"engine.precision": "bf16"}),
    "1-D CNN tf32": ((9, 128), 200, {"model.name": "har-cnn1d", "train.batch_size": 64, "engine.precision": "tf32"}),
    "ResNet-9 BN tf32": (
        (3, 32, 32),
        40,
        COLOUR | {"model.name": "resnet9", "model.norm": "bn", "engine.precision": "tf32"},
    ),
    "ResNet-18 GN bf16": ((3, 32, 32), 40, COLOUR | AUGMENTED | {"engine.precision": "bf16"}),
}
WAYS = {  # whether it is compiled, with channels last, and whether cuDNN searches
    "recorded": (False, False, False),
    "cuDNN's search": (False, False, True),
    "compiled": (True, False, False),
    "compiled, channels last": (True, True, False),
}
Lane = tuple[Trainer, "torch.cuda.Stream"]


def measure(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Give microseconds a step, and seconds before the first; of all workloads, or of the first."""
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing is measured", file=sys.stderr)
        yield row("steps on a GPU", None, "us")
        return
    ask_for_queues()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in list(WORKLOADS)[: 1 if quick else None]:
        yield from _workload(name)


def _workload(name: str) -> Iterator[dict[str, Any]]:
    shape, steps, asked = WORKLOADS[name]
    for way, (compiled, last, search) in WAYS.items():
        torch.backends.cudnn.benchmark = search
        with tempfile.TemporaryDirectory() as folder:  # nothing was compiled before
            os.environ[FOLDER] = folder
            yield from _way(f"{name}, {way}", shape, steps, asked, compiled, last)
        torch.backends.cudnn.benchmark = False
        gc.collect()
        torch.cuda.empty_cache()


def _way(
    name: str, shape: tuple[int, ...], steps: int, asked: Mapping[str, Any], compiled: bool, last: bool
) -> Iterator[dict[str, Any]]:
    federation, said = _federation(shape), list[str]()
    whole = {"train.rounds": 10_000, "train.lr": 0.01, **asked}
    work = build_session(describe_experiment(None, None, whole, federation, None), federation, None)
    local, size = work.plan.local, int(asked["train.batch_size"])
    compiler = Compiler(local, asked["engine.precision"], said.append) if compiled else None
    if compiler is not None:
        compiler.channels_last = last
    began = time.perf_counter()
    pool = GpuPool(local, work.private.federation, False, said.append, STREAMS, compiler=compiler)
    lanes: list[Lane] = [(worker.trainer, stream) for worker, stream in zip(pool._workers, pool._streams, strict=True)]
    model, rows = work.initial_state().model.wire(), np.arange(steps * size) % len(federation.train)
    batches = Batches(rows, np.full(steps, size), np.full(steps, 0.01), rows * 7_919)
    for trainer, stream in lanes:
        with torch.cuda.stream(stream):
            trainer.load(model)
            trainer._start()
            trainer._fill_ring(batches)
            _replay(trainer, size, 1)
    torch.cuda.synchronize()
    ready = time.perf_counter() - began
    if said:
        raise SystemExit(f"{name}: {said[0]}")
    yield row(f"{name}: a step, one stream", _seconds(lanes[:1], size, steps) * 1e6, "us")
    yield row(f"{name}: a step, {STREAMS} streams", _seconds(lanes, size, steps) * 1e6, "us")
    yield row(f"{name}: before the first", ready, "s")
    if compiler is not None:
        yield row(f"{name}: apart", compiler.apart, "of a step")
    if os.environ.get("FEDSTRATA_KERNELS"):
        _tell_kernels(name, lambda: _seconds(lanes[:1], size, 10))


def _seconds(lanes: list[Lane], size: int, steps: int) -> float:
    """Return what a step takes, the best of a few times."""
    best = float("inf")
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for trainer, stream in lanes:
            with torch.cuda.stream(stream):
                trainer.buf.t.zero_()
                _replay(trainer, size, steps)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / steps / len(lanes))
    return best


def _replay(trainer: Trainer, size: int, steps: int) -> None:
    assert trainer.recorder is not None
    for _ in range(steps):
        trainer.recorder(size, True)


def _tell_kernels(name: str, way: Callable[[], Any]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        way()
    taken: Counter[str] = Counter()
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken[event.name] += event.time_range.end - event.time_range.start
    for kernel, microseconds in taken.most_common(7):
        print(f"{name} {microseconds / max(taken.total(), 1):>6.1%} {kernel[:100]}", file=sys.stderr)


def _federation(shape: tuple[int, ...]) -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10_000, *shape), dtype=np.float32), np.arange(10_000) % 10
    return Federation.from_arrays(x, y, 20, partition=fedstrata.Iid(), test=(x[:1000], y[:1000]))
