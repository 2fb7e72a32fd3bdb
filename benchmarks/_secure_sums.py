"""What sums under masks cost: beside a round of LeNet-5, and for a large model with drop-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import shake_256
from itertools import count
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks._rows import row
from benchmarks.peers.job import CLASSES, LR, network
from fedstrata.core.machine.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions
from fedstrata.privacy.identity import Entropy, Identity, KeyDirectory
from fedstrata.privacy.sums.fixed_point import NARROW, WIDE
from fedstrata.privacy.sums.secure_sum import Parties, secure_sum
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round

CLIENTS, WARM, LONG = 10, 2, 1_000_000


@dataclass(frozen=True)
class Size:
    """How much is trained in a round, and what is summed in the large."""

    samples: int  # of a client
    turns: int
    many: int  # clients of the large sum
    missing: int
    large: int  # numbers


FULL = Size(samples=600, turns=12, many=100, missing=10, large=1_000_000)
QUICK = Size(samples=32, turns=WARM + 1, many=20, missing=2, large=10_000)


def rows(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    size = QUICK if quick else FULL
    return [*_beside_a_round(size.samples, size.turns), _large(size.many, size.missing, size.large)]


def _beside_a_round(samples: int, turns: int) -> list[dict[str, Any]]:
    """Take turns: a round of ten clients, and the sums of ten updates of its model."""
    numbers = sum(parameter.numel() for parameter in network("lenet5").parameters())
    values, weights = _updates(CLIENTS, numbers), dict.fromkeys(range(CLIENTS), 1.0)
    parties, jobs = _parties(CLIENTS), (number.to_bytes(16, "little") for number in count())
    seconds: dict[str, list[float]] = {"round": [], "narrow": [], "wide": []}
    with _rounds(samples) as run_one:
        for _ in range(turns):
            _timed(seconds["round"], run_one)
            told = _timed(
                seconds["narrow"], lambda: secure_sum(values, weights, range(CLIENTS), parties, next(jobs), NARROW)
            )
            _timed(seconds["wide"], lambda: secure_sum(values, weights, range(CLIENTS), parties, next(jobs), WIDE))
    round, narrow, wide = (median(taken[WARM:]) for taken in seconds.values())
    error = np.abs(told.total - sum(values[i].astype(np.float64) for i in values)).max()
    name = f"masked sum of {CLIENTS} updates of LeNet-5"
    return [
        row(f"{name}, share of a round of {CLIENTS} x {samples} samples, at most", narrow / round, "", at_most=0.10),
        row("that round", round, "s"),
        row(name, narrow, "s"),
        row(f"{name}, words of 64 bits", wide, "s"),
        row(f"{name}, sent by a client", told.up[0] / 1e6, "MB"),
        row(f"{name}, largest error", error / NARROW.unit, "units"),
    ]


def _large(clients: int, missing: int, numbers: int) -> dict[str, Any]:
    """Count the CPU seconds of all parties together."""
    values = _updates(clients - missing, numbers)
    weights, parties = dict.fromkeys(range(clients), 1.0), _parties(clients)
    start = process_time()
    secure_sum(values, weights, range(clients), parties, bytes(16))
    name = f"masked sum of {numbers:,} numbers, {clients} clients, {missing} drop-outs, CPU of all, at most"
    return row(name, process_time() - start, "s", at_most=15.0)


@contextmanager
def _rounds(samples: int) -> Iterator[Callable[[], None]]:
    """Return a function that runs a round of LeNet-5 on clients of so many images."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * samples, 1, 28, 28), dtype=np.float32)
    y, owner = np.arange(len(x)) % CLASSES, np.repeat(np.arange(CLIENTS), samples)
    federation, module = Federation.from_arrays(x, y, owner, test=(x[:CLASSES], y[:CLASSES])), network("lenet5")
    asked = {"train.clients_per_round": CLIENTS, "train.batch_size": 32, "train.epochs": 1, "train.lr": LR}
    work = build_session(describe_experiment(None, "fedavg", asked, federation, module), federation, module)
    engine, state = (
        LocalEngineOptions(device="cpu").start(work.plan.local, federation, LONG, _ignore),
        work.initial_state(),
    )

    def run_one() -> None:
        run_round(work.plan, state, work.plan.view(work.client_info, state.round, _ignore), engine)
        state.round += 1

    with one_thread():
        yield run_one
    engine.close()


def _timed(kept: list[float], act: Callable[[], Any]) -> Any:
    start = perf_counter()
    told = act()
    kept.append(perf_counter() - start)
    return told


def _updates(clients: int, size: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {client: rng.standard_normal(size, dtype=np.float32) for client in range(clients)}


def _parties(clients: int) -> Parties:
    server, *others = (Identity.new(_entropy(party)) for party in range(-1, clients))
    return Parties(server, dict(enumerate(others)), KeyDirectory.of(server, others), _entropy)


def _entropy(party: int) -> Entropy:
    calls = count()
    return lambda size: shake_256(b"%d|%d" % (party, next(calls))).digest(size)


def _ignore(*_: Any, **__: Any) -> None:
    """Keep no events."""
