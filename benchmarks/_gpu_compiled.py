"""On a GPU, in less than three minutes: what compiled steps, channels last and planning ahead bring.

`python -m benchmarks._gpu_compiled [PART ...]`: all parts by default. What fails says so, and the rest is measured.
`resnet18`, `cnn`, `signals`, `resnet9`, `resnet9-tf32`: a local step as it is recorded, on one stream and on ten, plain
and compiled, with channels last or not. `stratify`: an epoch of Stratify's batch mode with the size of Fashion-MNIST,
planned in turn and ahead. `start`: seconds from a process's start to its first round, without a compiler, with one that
starts from nothing, and with its folder warm.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

BEGAN = time.perf_counter()

import numpy as np  # noqa: E402  a process's start is measured, too
import torch  # noqa: E402

import fedstrata  # noqa: E402
from fedstrata.client.local_step import Batches  # noqa: E402
from fedstrata.core.threads import one_thread  # noqa: E402
from fedstrata.data.federation import Federation  # noqa: E402
from fedstrata.engines.local.compiled_step import Compiler  # noqa: E402
from fedstrata.engines.local.engine import InProcessPool  # noqa: E402
from fedstrata.engines.local.gpu import GpuPool, ask_for_queues  # noqa: E402
from fedstrata.engines.local.start import LocalEngineOptions  # noqa: E402
from fedstrata.runs.session import Session, build_session  # noqa: E402
from fedstrata.runs.training import describe_experiment  # noqa: E402
from fedstrata.server.loop import play_round  # noqa: E402

STREAMS, BUDGET = 10, 150.0  # seconds after which no other way is begun
CROP = {"train.augment.crop": 4, "train.augment.flip": True}
RESNET = {"model.name": "resnet18", "model.norm": "gn", "engine.precision": "bf16", "train.batch_size": 64, **CROP}
WORKLOADS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "resnet18": ((3, 32, 32), 40, RESNET),
    "cnn": (
        (1, 28, 28),
        200,
        {"model.name": "cnn-mcmahan", "engine.precision": "tf32", "train.batch_size": 32},
    ),
    "resnet9": ((3, 32, 32), 40, RESNET | {"model.name": "resnet9", "model.norm": "bn"}),
    "resnet9-tf32": (
        (3, 32, 32),
        40,
        {"model.name": "resnet9", "model.norm": "bn", "engine.precision": "tf32", "train.batch_size": 64},
    ),
}
WORKLOADS["signals"] = ((9, 128), 200, WORKLOADS["cnn"][2] | {"model.name": "har-cnn1d", "train.batch_size": 64})
WAYS = {"plain": (False, False), "compiled": (True, False), "compiled, channels last": (True, True)}


def main(parts: list[str]) -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: nothing is measured")
    ask_for_queues()
    known = {"stratify": stratify, "start": starts} | {name: partial(steps, name) for name in WORKLOADS}
    for name in parts or ("resnet18", "stratify", "cnn", "start", "resnet9"):
        began = time.perf_counter()
        _try(name, known[name])
        _say(f"({name} measured", time.perf_counter() - began, "s)")


def _try(name: str, measure: Callable[[], None]) -> None:
    try:
        measure()
    except Exception:  # the others are still worth measuring
        print(f"{name}: failed\n{traceback.format_exc()}", flush=True)


def _say(what: str, value: float, unit: str) -> None:
    print(f"{what:<72} {value:>10.3f} {unit}", flush=True)


# ---- steps


def steps(name: str) -> None:
    """Time recorded steps every way."""
    shape, count, asked = WORKLOADS[name]
    about = f"{name} {asked.get('model.norm', '')} {asked['engine.precision']}"
    for way, (compiled, last) in WAYS.items():
        if time.perf_counter() - BEGAN > BUDGET:
            print(f"{about}, {way}: no time left", flush=True)
            continue
        _try(f"{about}, {way}", partial(_step, f"{about}, {way}", shape, count, asked, compiled, last))
        gc.collect()
        torch.cuda.empty_cache()


def _step(name: str, shape: tuple[int, ...], count: int, asked: Mapping[str, Any], compiled: bool, last: bool) -> None:
    said: list[str] = []
    session = _session(_federation(20, 500, shape), asked)
    local, precision = session.plan.local, session.experiment.engine.precision
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    compiler = Compiler(local, precision, said.append) if compiled else None
    if compiler is not None:
        compiler.channels_last = last
    began = time.perf_counter()
    pool = GpuPool(local, session.private.federation, False, said.append, STREAMS, compiler=compiler)
    lanes = [(worker.trainer, stream) for worker, stream in zip(pool._workers, pool._streams, strict=True)]
    model, size = session.initial_state().model.wire(), local.batch_size
    rows = np.arange(count * size) % len(session.federation.train)
    batches = Batches(rows, np.full(count, size), np.full(count, 0.01), rows * 7_919)
    for trainer, stream in lanes:
        with torch.cuda.stream(stream):
            trainer.load(model)
            trainer._start()
            trainer._fill_ring(batches)
            assert trainer.recorder is not None
            trainer.recorder(size, True)
    torch.cuda.synchronize()
    _say(f"{name}: before the first", time.perf_counter() - began, "s")
    for streams in (1, STREAMS):
        seconds = []
        for _ in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for trainer, stream in lanes[:streams]:
                with torch.cuda.stream(stream):
                    trainer.buf.t.zero_()
                    for _ in range(count):
                        assert trainer.recorder is not None
                        trainer.recorder(size, True)
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - start) / count / streams)
        _say(f"{name}: a step, {streams} streams", min(seconds) * 1e6, "us")
    for text in said:
        print(f"    {name}: {text}", flush=True)
    if compiler is not None:
        print(f"    {name}: {compiler.apart:.1e} from the plain step", flush=True)
    with torch.cuda.stream(lanes[0][1]):
        lanes[0][0].buf.t.zero_()
        _kernels(lambda: [lanes[0][0].recorder(size, True) for _ in range(10)])  # type: ignore[misc]


def _kernels(way: Callable[[], Any]) -> None:
    """Print what takes longest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        way()
        torch.cuda.synchronize()
    taken: Counter[str] = Counter()
    for event in profile.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            taken[event.name] += event.time_range.end - event.time_range.start
    for kernel, microseconds in taken.most_common(7):
        print(f"    {microseconds / max(taken.total(), 1):>6.1%} {kernel[:100]}", flush=True)


# ---- Stratify


def stratify() -> None:
    """Time epochs with and without planning ahead, and how long the host takes to submit one."""
    asked = {"model.name": "cnn-mcmahan", "method.name": "stratify-batch", "train.batch_size": 64}
    asked |= {"engine.precision": "tf32", "train.lr": 0.02}
    for samples in (60_000, 3_200):
        federation = _federation(10, samples // 10, (1, 28, 28), fedstrata.DirichletClass(alpha=0.1))
        for way, ahead in (("planned in turn", False), ("planned ahead", True)):
            one_round = _rounds(_session(federation, asked), ahead)
            _say(f"Stratify batch, {samples} samples, {way}: an epoch", _seconds(one_round), "s")
    submitted: list[float] = []
    meanwhile = InProcessPool.run_fused

    def timed(pool: Any, step: Any, *rest: Any) -> Any:
        start = time.perf_counter()
        return meanwhile(pool, replace(step, meanwhile=lambda: submitted.append(time.perf_counter() - start)), *rest)

    InProcessPool.run_fused = timed  # type: ignore[method-assign]
    try:
        federation = _federation(10, 6_000, (1, 28, 28), fedstrata.DirichletClass(alpha=0.1))
        _seconds(_rounds(_session(federation, asked), None))
    finally:
        InProcessPool.run_fused = meanwhile  # type: ignore[method-assign]
    _say("Stratify batch, 60000 samples: until an epoch is submitted", median(submitted), "s")


def _rounds(session: Session, ahead: bool | None) -> Callable[[], None]:
    """Return a round on the GPU; `ahead` says whether the next one is planned meanwhile."""
    place = LocalEngineOptions(precision=session.experiment.engine.precision)
    engine = place.start(session.plan.local, session.federation, 0, lambda *_, **__: None)
    state, ask = session.initial_state(), engine.ask
    if ahead is False:
        engine.ask = lambda step, tasks: ask(replace(step, meanwhile=None), tasks)  # type: ignore[method-assign]

    def one_round() -> None:
        view = session.plan.view(session.client_info, state.round, lambda *_, **__: None)
        with one_thread():
            play_round(session.plan, state, view, engine)
        state.round += 1

    return one_round


def _seconds(one_round: Callable[[], None]) -> float:
    seconds = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        one_round()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[3:])


# ---- the first round


def starts() -> None:
    """Start processes of their own, and see when their first round is over."""
    with tempfile.TemporaryDirectory() as folder:
        for name, compiled in (("no compiler", "false"), ("compiler, cold", "true"), ("compiler, warm", "true")):
            command = [sys.executable, "-m", "benchmarks._gpu_compiled", "one-start", compiled, folder]
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            print(done.stdout, end="")
            if done.returncode:
                print(f"{name}: failed\n{done.stderr[-3000:]}")
                continue
            _say(f"ResNet-18 GN bf16, {name}: first round", float(done.stdout.split()[-1]), "s")


def one_start(compiled: bool, folder: str) -> None:
    """Play two rounds, and print the seconds until the first was over."""
    ends: list[float] = []

    def watch(event: Mapping[str, Any]) -> None:
        if event["event"] == "round":
            ends.append(time.perf_counter() - BEGAN)
        if remark := event.get("wall", {}).get("remark"):
            print(f"    {remark}")

    asked = RESNET | {"engine.compile": compiled, "train.rounds": 2, "train.epochs": 1, "train.clients_per_round": 10}
    with tempfile.TemporaryDirectory(dir=folder) as out:
        federation = _federation(10, 500, (3, 32, 32))
        fedstrata.train(overrides=asked, federation=federation, out=Path(out) / "run", watch=watch, progress=False)
    print(f"    second round {ends[1] - ends[0]:.2f} s after the first\n{ends[0]}")


def _federation(clients: int, samples: int, shape: tuple[int, ...], partition: Any = None) -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((clients * samples, *shape), dtype=np.float32), np.arange(clients * samples) % 10
    tests = x[:1000], y[:1000]
    return Federation.from_arrays(x, y, clients, partition=partition or fedstrata.Iid(), test=tests)


def _session(federation: Federation, asked: Mapping[str, Any]) -> Session:
    whole = {"train.rounds": 10_000, "train.lr": 0.01, **asked}
    return build_session(describe_experiment(None, None, whole, federation, None), federation, None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one-start"]:
        one_start(sys.argv[2] == "true", sys.argv[3])
    else:
        main(sys.argv[1:])
