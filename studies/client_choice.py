"""Who gives the samples of a label? What each choice does to the gradients of an epoch, and to who trains late in it.

Clients' samples look different, and one client holds most of them. Every row goes through epochs over all samples with
one choice of clients (`method.schedule.clients`): how much of each quarter comes from the large client, and how far the
mean gradient of 64 entries in a row is from that of all samples with labels balanced. Gradients are those of a softmax
regression in the middle of its training; errors are squared distances, as a multiple of the error of independent draws
by counts with labels in the same order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from fedstrata import Federation
from fedstrata.core.rng import Streams
from fedstrata.core.steps import View
from fedstrata.methods.drivers.fused import Stock
from fedstrata.methods.drivers.passing import Passing
from fedstrata.methods.drivers.scheduled import ScheduleState
from fedstrata.methods.drivers.sync import GlobalBatches
from fedstrata.methods.schedules.fill import fill
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import without
from studies._looks import looks

Mode = Literal["single", "batch"]
STRETCH, HALFWAY = 64, 50


def main(arguments: Sequence[str]) -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies client_choice", description=__doc__)
    parser.add_argument("--epochs", type=int, default=20, help="for each row")
    asked = parser.parse_args(arguments)
    federation = looks()
    print(f"the large client holds {federation.counts[0].sum() / federation.counts.sum():.2f} of all samples")
    print("mode    order     clients    its part of quarters       error of quarters              of all")
    for mode in get_args(Mode):
        for order in ("shuffled", "spread"):
            unit = 0.0
            for clients in ("weighted", "uniform", "remaining", "spread"):
                schedule = Stratified(frequency="capped", clients=clients, order=order)  # type: ignore[arg-type]
                parts, errors = measure(federation, schedule, mode, asked.epochs)
                unit = unit or errors.mean()
                shown = " ".join(f"{part:.2f}" for part in parts), " ".join(f"{e / unit:6.2f}" for e in errors)
                print(f"{mode:7} {order:9} {clients:10} {shown[0]:26} {shown[1]:30} {errors.mean() / unit:.2f}")
    return 0


def measure(federation: Federation, schedule: Stratified, mode: Mode, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first client's part of each quarter of an epoch, and the error of gradients in each."""
    gradients, whole = _gradients(federation)
    parts, errors = np.zeros(4), np.zeros(4)
    for seed in range(epochs):
        clients, samples = (
            np.array(column) for column in zip(*_run_epoch(federation, schedule, mode, seed), strict=True)
        )
        parts += [np.mean(own == 0) for own in np.array_split(clients, 4)]
        stretches = samples[: len(samples) // STRETCH * STRETCH].reshape(-1, STRETCH)
        off = ((gradients[stretches].mean(1) - whole) ** 2).sum(1)
        errors += [own.mean() for own in np.array_split(off, 4)]
    return parts / epochs, errors / epochs


def _run_epoch(federation: Federation, schedule: Stratified, mode: Mode, seed: int) -> Iterator[tuple[int, int]]:
    """Go through an epoch: clients and their samples, in order."""
    streams = Streams(seed)
    info = federation.client_info(schedule.needs, streams)
    view = View(0, 1, STRETCH, info.holders, info, None, lambda purpose: streams(purpose, seed), lambda *_, **__: None)  # type: ignore[arg-type]
    shelves = {}
    for client in range(len(federation)):
        rows = streams("take", client=client).permutation(federation.client(client).rows)
        for label in range(info.classes):
            shelves[client, label] = iter(rows[federation.labels[rows] == label].tolist())
    for client, label in _planned(schedule, mode, view):
        yield client, next(shelves[client, label])


def _planned(schedule: Stratified, mode: Mode, view: View) -> Iterator[tuple[int, int]]:
    driver: Any = Passing(schedule) if mode == "single" else GlobalBatches(schedule)
    now = driver.begin(ScheduleState(), view)
    stock = Stock.of(schedule, view, now.pools)
    if mode == "batch":
        filled = fill(now.epoch, now.pools, stock.counts, now.until, STRETCH, 1, replacement=False)
        yield from zip(filled.clients, now.pools.strata(filled.codes), strict=True)
        return
    route, answer = driver.route(now), None
    while True:
        try:
            hop = route.send(answer)
        except StopIteration:
            return
        answer = stock.refuses(hop.client, hop.codes, 0)
        yield from ((hop.client, stratum) for stratum in now.pools.strata(without(hop.codes, answer)))


def _gradients(federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient of every sample in the middle of training, and the mean over labels of those of each."""
    x, y = federation.train.x.numpy(), federation.labels
    x = np.hstack([x, np.ones((len(x), 1), x.dtype)])
    target, weights = np.eye(y.max() + 1)[y], np.zeros((x.shape[1], y.max() + 1))
    balance = 1 / np.bincount(y)[y] / len(weights.T)
    for _ in range(HALFWAY):
        weights -= 0.5 * x.T @ (balance[:, None] * (_softmax(x @ weights) - target))
    gradients = ((_softmax(x @ weights) - target)[:, None, :] * x[:, :, None]).reshape(len(x), -1)
    return gradients, balance @ gradients


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
