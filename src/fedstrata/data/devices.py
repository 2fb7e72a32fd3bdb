"""Devices and network, modelled: how long clients take, who is there, whose report is waited for. Nobody sleeps.

latency_k = samples worked on * seconds_per_sample / speed_k + bytes received and sent / bandwidth_k. Stragglers as in
FLIPS, section 4: a share of the selected clients trains, and reports too late.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report, fast_replace, value_bytes
from fedstrata.core.options import AtLeastOne, Count, Fraction, NonNegative
from fedstrata.core.rng import Streams
from fedstrata.core.steps import FusedSteps, Step, View
from fedstrata.core.system import System
from fedstrata.data.federation_info import FederationInfo

Info = TypeVar("Info", bound=FederationInfo)
TIERS = (1.0, 1.5, 2.0, 3.0, 5.0)  # how much longer each fifth of the clients takes


@dataclass(frozen=True)
class Devices(System):
    """Speeds, bandwidths, availability, deadlines and stragglers."""

    paper: ClassVar[str] = "FLIPS, 2023"

    seconds_per_sample: NonNegative = 0.001  # of a device of speed 1
    deadline: NonNegative = 0.0  # seconds after which a report is not waited for; 0: there is none
    wait_for: Fraction = 1.0  # share of the asked whose reports end the wait
    over_select: AtLeastOne = 1.0  # ask so many times more clients, and wait for as many as were wanted
    rate: Fraction = 0.0  # share of stragglers
    mode: Literal["uniform", "slowest", "sticky", "partial"] = "uniform"
    availability: Literal["always", "independent", "labels", "trace"] = "always"
    available_rate: Fraction = 1.0
    period: Count = 20  # rounds of a day, for availability by label
    trace: str | None = None

    @property
    def reliable(self) -> bool:
        """Whether every report arrives."""
        return self.rate == 0 and self.deadline == 0 and self.wait_for == 1 and self.over_select == 1

    def count_to_ask(self, k: int) -> int:
        """Return how many clients to ask where k are wanted."""
        return ceil(k * self.over_select - 1e-9)

    # ---- who is there

    def find_available(self, view: View) -> np.ndarray:
        """Return the eligible clients that can be asked this round."""
        ids: np.ndarray = view.eligible
        if self.availability == "independent":
            drawn = view.rng("available").random(view.client_info.clients)[ids]
            return np.asarray(ids[drawn < self.available_rate])
        if self.availability == "labels" and view.client_info.ground_truth is not None:
            # Clients whose commonest label is l are awake during a share of the day that begins at 1 - l / classes.
            ground_truth = view.client_info.ground_truth
            hour: np.ndarray = (view.round / self.period + ground_truth.stock.argmax(1)[ids] / ground_truth.classes) % 1
            return ids[hour < self.available_rate]
        if self.availability == "trace":
            client, first, last = self._intervals
            awake = np.unique(client[(first <= view.round + 1) & (view.round + 1 <= last)])
            return np.intersect1d(ids, awake)
        return ids

    @cached_property
    def _intervals(self) -> np.ndarray:
        assert self.trace is not None
        return read_trace(self.trace)

    # ---- how long they take

    def time_reports(self, view: View, step: Step, size: int, reports: Sequence[Report]) -> list[Report]:
        """Write on every report how long it took; `size` is that of the model's message."""
        if step.fused is not None:
            return list(reports)
        sent = size if step.model else 0
        clients = np.array([r.client for r in reports], dtype=np.int64)
        work = np.array([r.work for r in reports], dtype=np.float64)
        moved = np.array([sent + r.nbytes - value_bytes(r.metrics) + r.received for r in reports], dtype=np.float64)
        seconds = self._seconds(view, clients, work, moved).tolist()
        return [fast_replace(r, seconds=s) for r, s in zip(reports, seconds, strict=True)]

    def time_step(self, view: View, step: Step, size: int, reports: Sequence[Report], lost: set[int]) -> float:
        """Return how long the server waited."""
        if step.fused is not None:
            return self._fused(view, step.fused, size, [ask.client for ask in step.asks], reports)
        arrived = [r.seconds for r in reports if r.client not in lost]
        longest = max(arrived, default=0.0)
        if not self.deadline:
            return longest
        awaited = any(r.client in lost for r in reports) and not self._enough(view, step, len(arrived))
        return self.deadline if awaited else min(longest, self.deadline)

    def _fused(
        self, view: View, fused: FusedSteps, size: int, clients: Sequence[int], reports: Sequence[Report]
    ) -> float:
        """Add up what the single steps would have taken, each as long as its slowest client."""
        if not len(fused.who):
            return 0.0
        extra = sum(r.nbytes + r.received for r in reports[:1])  # exchanges; the same for everybody
        moved = np.full(len(fused.who), 2.0 * size + extra)
        seconds = self._seconds(view, np.array(clients)[fused.who], fused.runs.astype(np.float64), moved)
        return float(np.maximum.reduceat(seconds, np.unique(fused.turns, return_index=True)[1]).sum())

    def _seconds(self, view: View, clients: np.ndarray, work: np.ndarray, moved: np.ndarray) -> np.ndarray:
        ground_truth = view.client_info.ground_truth
        seconds = work * self.seconds_per_sample
        if ground_truth is not None and ground_truth.speeds is not None:
            seconds = seconds / ground_truth.speeds[clients]
        if ground_truth is not None and ground_truth.bandwidths is not None:
            seconds = seconds + moved / ground_truth.bandwidths[clients]
        return seconds

    # ---- whom the server waits for

    def adapt(self, view: View, turn: int, step: Step) -> Step:
        """Ask stragglers for less work, where they do what they can in time."""
        if self.mode != "partial" or not self.rate or step.kind != "train" or step.fused is not None:
            return step
        slow = set(self._stragglers(view, turn, step, [a.client for a in step.asks]))
        rng = view.rng("partial", step=turn)
        asks = []
        for ask in step.asks:
            full = int(ask.config.get("epochs", view.epochs))  # type: ignore[arg-type]
            epochs = int(rng.integers(1, full + 1))
            asks.append(replace(ask, config={**ask.config, "epochs": epochs}) if ask.client in slow else ask)
        return replace(step, asks=tuple(asks))

    def find_lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Say who is too late: stragglers, those behind the deadline, and those after enough have come."""
        late = {r.client for r in reports if self.deadline and r.seconds > self.deadline}
        if not step.combine or not reports or step.fused is not None:
            return late
        if self.mode != "partial":
            late |= set(self._stragglers(view, turn, step, [r.client for r in reports], reports))
        if step.source == "server" and step.sink == "server":
            key = view.client_info.key
            first = sorted((r for r in reports if r.client not in late), key=lambda r: (r.seconds, key[r.client]))
            late |= {r.client for r in first[self._need(view, step) :]}
        return late

    def count_to_wait_for(self, asked: int, needed: int) -> int:
        """Return how many reports end the wait; where more clients were asked than are needed, they are in reserve."""
        wanted = min(asked, needed) if self.over_select > 1 and needed else asked
        return max(1, ceil(self.wait_for * wanted - 1e-9))

    def _need(self, view: View, step: Step) -> int:
        return self.count_to_wait_for(len(step.asks), view.needed)

    def _enough(self, view: View, step: Step, arrived: int) -> bool:
        return (self.wait_for < 1 or self.over_select > 1) and arrived >= self._need(view, step)

    def _stragglers(
        self, view: View, turn: int, step: Step, clients: Sequence[int], reports: Sequence[Report] = ()
    ) -> Sequence[int]:
        """Draw round(rate * selected) clients; never all of them unless the rate is 1."""
        if not self.rate:
            return ()
        if self.mode == "sticky":  # the same slow clients in every round
            drawn = view.rng("sticky", round=-1).permutation(view.client_info.clients)
            slow = set(drawn[: round(self.rate * len(drawn))].tolist())
            late = [client for client in clients if client in slow]
            return late[:-1] if len(late) == len(clients) and self.rate < 1 else late  # never everybody
        if step.part[1] > 1:  # a round of many steps: who is late is drawn once, out of everybody
            everybody = view.eligible.tolist()
            these = set(view.rng("stragglers").choice(everybody, self._count(len(everybody)), replace=False).tolist())
            return [client for client in clients if client in these]
        rng = view.rng("stragglers", step=turn)
        if "peer" in (step.source, step.sink):  # a chain asks one client at a time: each is late by itself
            return clients if rng.random() < self.rate else ()
        count = self._count(len(clients))
        if self.mode == "slowest" and reports:
            key = view.client_info.key
            return [r.client for r in sorted(reports, key=lambda r: (-r.seconds, key[r.client]))[:count]]
        return rng.choice(list(clients), count, replace=False).tolist()  # type: ignore[no-any-return]

    def _count(self, clients: int) -> int:
        return min(round(self.rate * clients), clients if self.rate == 1 else clients - 1)


def read_trace(path: str, clients: int | None = None) -> np.ndarray:
    """Read who is there when: lines `client,first,last`, rounds counted from 1; [3, lines]."""
    rows, at = list[list[int]](), 0
    try:
        with Path(path).open(newline="") as file:
            lines = csv.reader(file)
            for line in lines:
                at = lines.line_num
                if line and not line[0].startswith("#") and line[0].strip() != "client":
                    rows.append([int(cell) for cell in line])
        if any(len(row) != 3 for row in rows):
            rows = []
        table = np.array(rows, dtype=np.int64)
    except (OSError, ValueError, csv.Error, OverflowError) as error:  # whose words could quote the file
        why = error.strerror if isinstance(error, OSError) else f"see line {at}"
        raise RequestError(
            f'system.availability.trace = "{path}" cannot be read: {why}; lines must be client,first,last'
        ) from None
    if table.ndim != 2 or table.shape[1] != 3:
        raise RequestError(
            f'system.availability.trace = "{path}": every line must have three numbers, client,first,last'
        )
    if clients is not None and (strange := table[(table[:, 0] < 0) | (table[:, 0] >= clients), 0]).size:
        raise RequestError(
            f'system.availability.trace = "{path}" names client {int(strange[0])}; there are clients 0 to {clients - 1}'
        )
    return table.T


def equip_clients(federation: Info, speed: str, sigma: float, bandwidth: float, spread: float, seed: int) -> Info:
    """Give clients devices and connections, where the federation does not say which they have."""
    streams, clients = Streams(seed), len(federation)
    speeds, bandwidths = federation.speeds, federation.bandwidths
    if speeds is None and speed == "lognormal":
        speeds = streams("speed").lognormal(0.0, sigma, clients)
    elif speeds is None and speed == "tiers":
        speeds = 1.0 / np.array(TIERS)[streams("speed").permutation(np.arange(clients) % len(TIERS))]
    if bandwidths is None and bandwidth:
        bandwidths = bandwidth * streams("bandwidth").lognormal(0.0, spread, clients)
    return federation.with_devices(speeds, bandwidths)
