"""The app that measures: exchanges, rounds and batches by messages and over a stream, and bytes on the wire."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from flwr.serverapp import Grid

from benchmarks._counting import Counting
from benchmarks._ports import free_port
from benchmarks._site import ECHO
from benchmarks._telling import measuring
from fedstrata.config.experiment import Experiment
from fedstrata.remote.flower.messages import Messages
from fedstrata.remote.flower.server_app import wait_for
from fedstrata.remote.flower.stream import open_stream
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.transport import Failure, Transport

WARM, BATCH = 20, 16  # exchanges that do not count; samples of a batch
COMMON = {"model.name": "lenet5", "train.batch_size": BATCH, "train.clients_per_round": "all"}
FEDAVG = COMMON | {"train.epochs": 1}
STRATIFY = COMMON | {"method.name": "stratify-batch"}
TRIVIAL = FEDAVG | {"model.name": "mlp", "model.hidden": [77], "train.batch_size": 2_000}  # one step, as large a model


@dataclass(frozen=True)
class Size:
    """How often everything is done."""

    requests: Mapping[int, int]  # over the stream, by their bytes
    messages: int  # of 250,000 bytes
    rounds: int  # of FedAvg by messages
    few: int  # batches by messages, which take ten seconds each and as long again to begin; 0 leaves them out
    many: int  # batches over the stream
    counted_rounds: int  # of FedAvg, whose bytes are counted
    counted_batches: int


FULL = Size(
    requests={4_000: 400, 250_000: 400, 2_500_000: 60, 25_000_000: 12},
    messages=3,
    rounds=3,
    few=2,
    many=300,
    counted_rounds=5,
    counted_batches=20,
)
QUICK = Size(
    requests={4_000: 6, 250_000: 6, 2_500_000: 3, 25_000_000: 1},
    messages=1,
    rounds=1,
    few=0,
    many=4,
    counted_rounds=1,
    counted_batches=2,
)


def measured(grid: Grid, sites: int, quick: bool) -> dict[str, Any]:
    """Measure everything."""
    messages, size = Messages(grid), QUICK if quick else FULL
    wait_for(messages, sites, 120.0)
    told: dict[str, Any] = {"message": exchanged(messages, 250_000, size.messages)}
    told["round"] = median_round(messages, sites, size.rounds)
    told["batch by messages"] = batch(messages, sites, size.few, rounds=1) if size.few else None
    longest = 2 * max(size.requests)  # echoes are longer than any reply before a run's model is known may be
    stream = open_stream(messages, "127.0.0.1:0", "timed", longest=longest)
    try:
        told["stream"] = {length: exchanged(stream, length, times) for length, times in size.requests.items()}
        told["batch"] = batch(stream, sites, size.many, rounds=2)
    finally:
        stream.close()
    told["bytes"] = counted(messages, sites, size)
    messages.close()
    return told


def exchanged(transport: Transport, size: int, times: int) -> float:
    """Return the seconds of an exchange of so many bytes with all sites, the median of many."""
    requests, seconds = dict.fromkeys(transport.names(), ECHO + os.urandom(size - len(ECHO))), []
    for _ in range(min(WARM, times // 3) + times):
        start = perf_counter()
        replies = transport.exchange(requests, 60.0)
        seconds.append(perf_counter() - start)
        if replies != requests:
            raise AssertionError(f"{sorted(replies)} answered, or not with what they got")
    return median(seconds[-times:])


def median_round(transport: Transport, sites: int, rounds: int) -> float:
    """Return the seconds of a round of FedAvg with its evaluation; sites have next to nothing to do."""
    _, times = timed_run(transport, sites, TRIVIAL | {"train.rounds": rounds})
    marks = [times["sites", 1], *(times["round", number + 1] for number in range(rounds))]
    return median(later - earlier for earlier, later in pairwise(marks))


def batch(transport: Transport, sites: int, batches: int, rounds: int) -> float:
    """Return the seconds of a global batch of Stratify, over the batches of the last round.

    Evaluation is not counted.
    """
    asked = STRATIFY | {"train.rounds": rounds, "method.schedule.length": BATCH * batches}
    _, times = timed_run(transport, sites, asked)
    began = times["round", rounds - 1] if rounds > 1 else times["sites", 1]
    return (times["schedule", rounds] - began) / batches


def counted(messages: Transport, sites: int, size: Size) -> dict[str, tuple[int, int]]:
    """Return, by method, the bytes that the account of a run says, and those that crossed the wire meanwhile."""
    found: dict[str, tuple[int, int]] = {}
    for name, asked in {
        "FedAvg": FEDAVG | {"train.rounds": size.counted_rounds},
        "Stratify batch": STRATIFY | {"train.rounds": 1, "method.schedule.length": size.counted_batches * BATCH},
    }.items():
        port = free_port()
        with Counting(port) as wire:
            stream = open_stream(messages, wire.address, f"counted-{len(found)}", listen=f"127.0.0.1:{port}")
            try:
                summary, _ = timed_run(stream, sites, asked)
            finally:
                stream.close()
        told = sum(int(summary[key]) for key in ("bytes_up", "bytes_down", "bytes_setup", "bytes_evaluate"))
        found[name] = told, wire.carried
    return found


Times = dict[tuple[str, int], float]  # when the n-th event of a kind came, from 1


def timed_run(transport: Transport, sites: int, asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], Times]:
    """Run an experiment; give its summary, and when its events came."""
    times: Times = {}

    def watch(event: Mapping[str, Any]) -> None:
        kind = str(event["event"])
        times[kind, 1 + sum(known == kind for known, _ in times)] = perf_counter()

    with tempfile.TemporaryDirectory(prefix="sites-") as folder:
        run = run_at_sites(Kept(transport), Experiment.of(None, **asked), Path(folder), sites, watch=watch)
        summary = run.summary
    if wrong := {"site_refused", "site_not_scored", "dropped", "no_update"} & {kind for kind, _ in times}:
        raise AssertionError(f"not everybody did what was asked for: {sorted(wrong)}")
    return summary, times


class Kept:
    """A way to the sites that stays open when a run is over."""

    def __init__(self, transport: Transport):
        self.names, self.reachable, self._transport = transport.names, transport.reachable, transport
        self.invite, self.awaited = transport.invite, transport.awaited

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes | Failure]:
        """Ask."""
        return self._transport.exchange(requests, deadline, enough)

    def close(self) -> None:
        """Stay."""


server = measuring(measured)
