"""On a GPU: rounds on compiled workers against the loop that research code has, a deep copy and a DataLoader a client.

Samples of both lie on the device. Ours and the loop are measured alternately, and the ratio of the medians counts.
Workloads: CNN of 1.66 M parameters and ResNet-18 with group norm, 10 clients a round; an MLP, 40 tiny clients a round;
Stratify's global batches of 64 and single samples against plain eager loops over as many samples.

Where a goal is missed, a profile says what is left to win: how much of our round the GPU is busy, and the ratio there
would be if our host took no time at all, with the same kernels.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._rows import row
from fedstrata.core.machine.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.models.cnn_mcmahan import CnnMcmahan
from fedstrata.models.resnet import ResNet18
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

REPEATS = 5
Round = Callable[[], None]


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return ratios of the loop's time to ours."""
    if not torch.cuda.is_available():
        print("torch sees no GPU: nothing is measured", file=sys.stderr)
        return [row("CNN, 10 clients a round, tf32", None, "x", at_least=15.0)]
    images, mlp = (1, 28, 28), nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    cnn = CnnMcmahan().build(images, 10)
    handwriting, tiny = _federation(100, 600, images), _federation(400, 35, (64,))
    rows = []
    for precision, goal in (("fp32", 11.0), ("tf32", 15.0), ("bf16", None))[: 1 if quick else None]:
        ours, loop = _engine(handwriting, cnn, 10, 32, precision), _loop(handwriting, cnn, 10, 32)
        rows += _compared(f"CNN, 10 clients a round, {precision}", ours, loop, goal)
    if quick:
        return rows
    rows += _compared("tiny MLP, 40 clients a round, fp32", _engine(tiny, mlp, 40, 10), _loop(tiny, mlp, 40, 10), 15.0)
    resnet, colours = _with_group_norm(ResNet18().build((3, 32, 32), 10)), _federation(20, 500, (3, 32, 32))
    for precision, goal in (("tf32", 3.0), ("bf16", 3.5)):
        ours, loop = _engine(colours, resnet, 10, 64, precision), _loop(colours, resnet, 10, 64)
        rows += _compared(f"ResNet-18, 10 clients a round, {precision}", ours, loop, goal)
    rows += _compared("Stratify batch, CNN", *_stratify(cnn, "stratify-batch", 64, 3_200), 4.0)
    rows += _compared("Stratify single, CNN", *_stratify(cnn, "stratify-single", 1, 640), 10.0)
    each = [_seconds(_engine(handwriting, cnn, clients, 32)) / clients for clients in (50, 10)]
    rows.append(row("CNN, 50 clients a round over 10, per client", each[0] / each[1], "ratio", at_most=1.3))
    return rows


def _compared(name: str, ours: Round, loop: Round, goal: float | None) -> list[dict[str, Any]]:
    """Return the ratio and, where it is too small, what a profile of one round says."""
    found = row(name, ratio := _ratio(ours, loop), "x", at_least=goal)
    if found["met"]:
        return [found]
    busy = _busy(ours)
    return [
        found,
        row(f"{name}: GPU busy", busy, "of ours"),
        row(f"{name}: with a host that takes no time", ratio / busy, "x"),
    ]


def _busy(way: Round) -> float:
    """Return the share of a round's time in which at least one kernel runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        way()
        torch.cuda.synchronize()
    ranges = [e.time_range for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels, end = 0.0, 0.0
    for one in sorted(ranges, key=lambda r: r.start):
        kernels += max(one.end - max(one.start, end), 0.0)
        end = max(end, one.end)
    return kernels * 1e-6 / _seconds(way)


def _federation(clients: int, samples: int, shape: tuple[int, ...]) -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(clients * samples, *shape)).astype(np.float32), np.arange(clients * samples) % 10
    rows = np.arange(clients * samples).reshape(clients, samples)
    return Federation.from_arrays(x, y, list(rows), test=(x[:10], y[:10]))


def _engine(
    federation: Federation, module: nn.Module, k: int, batch: int, precision: str = "fp32", **more: Any
) -> Round:
    """Return a round of ours."""
    asked = {"train.clients_per_round": k, "train.batch_size": batch, "train.lr": 0.01, "train.rounds": 10_000}
    asked |= {"train.epochs": 1, "engine.precision": precision, **more}
    work = build_session(describe_experiment(None, None, asked, federation, module), federation, module)
    place = LocalEngineOptions(device="cuda", precision=precision)  # type: ignore[arg-type]
    engine, state = place.start(work.plan.local, federation, 0, lambda *_, **__: None), work.initial_state()

    def one_round() -> None:
        view = work.plan.view(work.client_info, state.round, lambda *_, **__: None)
        with one_thread():
            run_round(work.plan, state, view, engine)
        state.round += 1

    return one_round


def _loop(federation: Federation, module: nn.Module, k: int, batch: int) -> Round:
    """Return a round as it is usually written."""
    x, y = federation.train.x.cuda(), federation.train.y.cuda()
    rows = [torch.from_numpy(federation.train_split[i]).cuda() for i in range(len(federation))]
    data = [TensorDataset(x[own], y[own]) for own in rows]
    model, rng = copy.deepcopy(module).cuda(), np.random.default_rng(0)

    def one_round() -> None:
        trained = []
        for client in rng.choice(len(data), k, replace=False):
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
            for images, labels in DataLoader(data[client], batch_size=batch, shuffle=True):
                optimizer.zero_grad()
                cross_entropy(local(images), labels).backward()
                optimizer.step()
            trained.append((len(data[client]), local.state_dict()))
        total = sum(size for size, _ in trained)
        model.load_state_dict({name: sum(size / total * w[name] for size, w in trained) for name in trained[0][1]})

    return one_round


def _stratify(module: nn.Module, method: str, batch: int, samples: int) -> tuple[Round, Round]:
    federation = _federation(10, samples // 10, (1, 28, 28))
    ours = _engine(federation, module, 10, max(batch, 2), **{"method.name": method})
    model, x, y = copy.deepcopy(module).cuda(), federation.train.x.cuda(), federation.train.y.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9 if batch > 1 else 0.0)

    def plain() -> None:
        order = torch.randperm(samples).cuda()
        for own in order.split(batch):
            optimizer.zero_grad()
            cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()

    return ours, plain


def _with_group_norm(module: nn.Module) -> nn.Module:
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, nn.GroupNorm(32, child.num_features))
    return module


def _ratio(ours: Round, loop: Round) -> float:
    """Measure alternately; the precision of ours must not change the loop's."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(REPEATS + 2):
        for seconds, way in zip(times, (ours, _as_usual(loop)), strict=True):
            taken = _timed(way)
            if repeat > 1:  # the first rounds record and warm up
                seconds.append(taken)
    return median(times[1]) / median(times[0])


def _seconds(way: Round) -> float:
    return median([_timed(way) for _ in range(REPEATS + 2)][2:])


def _as_usual(way: Round) -> Round:
    """Run with torch's own settings for TF32, whatever an engine has set."""

    def wrapped() -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32, cudnn.allow_tf32 = False, True
        way()
        matmul.allow_tf32, cudnn.allow_tf32 = before

    return wrapped


def _timed(way: Round) -> float:
    torch.cuda.synchronize()
    start = perf_counter()
    way()
    torch.cuda.synchronize()
    return perf_counter() - start
