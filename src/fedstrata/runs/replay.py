"""Run a selector without training: on recorded losses, latencies and label counts, in seconds.

Losses of a record are what clients would report, and what a probe would find. The selector sees the same views, steps
and outcomes as in a real run; nobody computes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import ParameterSpace, Segment
from fedstrata.core.messages import Report
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View, pick_asks
from fedstrata.server.metrics import jain, label_divergence, label_imbalance


@dataclass(frozen=True)
class Record:
    """What is known of N clients over R rounds; beyond the last recorded round, the last one holds.

    Attributes
    ----------
    counts
        Label counts, [N, C].
    losses
        What clients would report, and what a probe would find, [R, N].
    latencies
        Seconds of a client update, [N] or [R, N]; None: all take one second.
    updates
        Of the last layer, [N, D], its bias last, for selectors that look at updates.
    numbers
        What else clients report, by name, [R, N].

    Raises
    ------
    RequestError
        If the shapes do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from fedstrata import Record
    >>> record = Record(counts=np.array([[9, 1], [5, 5], [1, 9]]), losses=np.array([[2.3, 2.3, 2.3], [0.4, 0.9, 1.5]]))
    >>> record.loss(7)  # the last recorded round goes on
    array([0.4, 0.9, 1.5])
    """

    counts: np.ndarray
    losses: np.ndarray
    latencies: np.ndarray | None = None
    updates: np.ndarray | None = None
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clients = len(self.counts)
        if self.counts.ndim != 2 or self.losses.ndim != 2 or self.losses.shape[1] != clients:
            raise RequestError(f"counts must be [clients, labels] and losses [rounds, clients]; {clients} clients")
        if self.latencies is not None and self.latencies.shape[-1] != clients:
            raise RequestError(f"latencies must hold one number for each of the {clients} clients")
        if self.updates is not None and (self.updates.ndim != 2 or len(self.updates) != clients):
            raise RequestError(f"updates must be [clients, numbers]; {clients} clients")

    def loss(self, round: int) -> np.ndarray:
        """Return every client's loss in a round.

        Parameters
        ----------
        round
            Counted from 0.

        Returns
        -------
        numpy.ndarray
        """
        row: np.ndarray = self.losses[min(round, len(self.losses) - 1)]
        return row

    def latency(self, round: int) -> np.ndarray:
        """Return every client's seconds in a round.

        Parameters
        ----------
        round
            Counted from 0.

        Returns
        -------
        numpy.ndarray
        """
        if self.latencies is None:
            return np.ones(len(self.counts))
        rows = np.atleast_2d(self.latencies)
        row: np.ndarray = rows[min(round, len(rows) - 1)]
        return row


@dataclass(frozen=True)
class Replay:
    """What a selector did with a record.

    Attributes
    ----------
    selected
        Clients by round.
    coverage
        Share of the clients that were ever selected.
    fairness
        Jain's index of participation: 1 where all took part equally often.
    divergence
        By round: of the labels of the selected from the global mix, in nats.
    imbalance
        By round: of the same labels from even shares of all labels, in nats.
    regret
        By round: mean loss of the k worst clients minus that of the selected.
    seconds
        By round: its slowest client.
    events
        What the selector noted, such as fallbacks.
    """

    selected: list[list[int]]
    coverage: float
    fairness: float
    divergence: list[float]
    imbalance: list[float]
    regret: list[float]
    seconds: list[float]
    events: list[dict[str, Any]] = field(default_factory=list)


def replay(selector: Selector, record: Record, rounds: int, k: int, *, lost: float = 0.0, seed: int = 0) -> Replay:
    """Let a selector choose clients from what was recorded, without training.

    Parameters
    ----------
    selector
        An object of your own, or `make_part("selectors", "oort")`.
    record
        What clients hold and would report.
    rounds
        How many.
    k
        Clients a round.
    lost
        Share of the selected whose report is lost, each round.
    seed
        Of what is drawn.

    Returns
    -------
    Replay

    Raises
    ------
    RequestError
        If a number is out of range, or the selector reads what the record does not hold.

    Examples
    --------
    >>> import numpy as np
    >>> import fedstrata
    >>> record = fedstrata.Record(counts=np.array([[9, 1], [5, 5], [1, 9]]), losses=np.array([[0.4, 0.9, 1.5]]))
    >>> selector = fedstrata.make_part("selectors", "power-of-choice")
    >>> fedstrata.replay(selector, record, rounds=3, k=2).selected  # the highest losses
    [[1, 2], [1, 2], [1, 2]]
    """
    if not 0 <= lost <= 1 or k < 1 or rounds < 1:
        raise RequestError(f"lost = {lost}, k = {k}, rounds = {rounds}: a share from 0 to 1, and at least one of each")
    looks = selector.individual or any(meter.opens_tensors for meter in selector.meters(()))
    if looks and record.updates is None:
        raise RequestError(f"{type(selector).__name__} looks at updates, which this record does not hold")
    streams, sizes = Streams(seed), record.counts.sum(1)
    holders = np.flatnonzero(sizes)
    known = {
        "sizes": sizes,
        "counts": record.counts,
        "labels": record.counts > 0,
        "totals": record.counts.sum(0),
        "speeds": 1.0 / np.maximum(record.latency(0), 1e-12),
    }
    client_info = ClientInfo(
        len(sizes), record.counts.shape[1], holders, streams("tiebreak").permutation(len(sizes)), known
    )
    events: list[dict[str, Any]] = []
    numbers = 0 if record.updates is None else record.updates.shape[1]
    bias = max(numbers - record.counts.shape[1], 0)
    layer = Segment("update", (numbers,), 0)
    space = ParameterSpace((layer,), (), slice(0, numbers), slice(0, bias), slice(bias, numbers))

    def view_of(round: int) -> View:
        def note(kind: str, **fields: Any) -> None:
            events.append({"event": kind, **fields})

        rng = partial(streams, round=round)
        return View(round, rounds, min(k, len(holders)), holders, client_info, space, rng, note)

    state, participation = selector.init(view_of(0)), np.zeros(len(sizes))
    mix = record.counts.sum(0) / max(record.counts.sum(), 1)
    selected, divergence, imbalance, regret, seconds = [], [], [], [], []
    for round in range(rounds):
        view = view_of(round)
        with _holding(selector):
            asks = _chosen(selector, state, view, record)
        ids = [ask.client for ask in asks]
        late = set(view.rng("stragglers").choice(ids, int(lost * len(ids) + 0.5), replace=False).tolist())
        reports = [r for r in _reports(record, round, ids) if r.client not in late]
        outcome = Outcome(Step(tuple(asks)), 0, tuple(reports), tuple(sorted(late)))
        with _holding(selector):
            selector.feedback(state, view, [outcome], Scores())
        participation[ids] += 1
        loss = record.loss(round)
        finite = loss[holders][np.isfinite(loss[holders])]
        worst, own = np.sort(finite)[::-1][: len(ids)], loss[ids][np.isfinite(loss[ids])]
        selected.append(sorted(ids))
        divergence.append(label_divergence(record.counts[ids].sum(0), mix) or 0.0)
        imbalance.append(label_imbalance(record.counts[ids].sum(0), mix) or 0.0)
        regret.append(float(worst.mean() - own.mean()) if len(own) else 0.0)
        seconds.append(float(max((r.seconds for r in reports), default=0.0)))
    coverage, fairness = float((participation > 0).mean()), jain(participation)
    return Replay(selected, coverage, fairness, divergence, imbalance, regret, seconds, events)


@contextmanager
def _holding(selector: Selector) -> Iterator[None]:
    """Say so if a selector reads what the record does not hold."""
    try:
        yield
    except KeyError as missing:
        name = type(selector).__name__
        raise RequestError(f"{name} reads {missing} of every report, which this record does not hold") from None


def _chosen(selector: Selector, state: Any, view: View, record: Record) -> list[Ask]:
    """Let the selector finish; its probes are answered from the record."""
    choice = pick_asks(selector, state, view)
    try:
        step = next(choice)
        while True:
            asked = [ask.client for ask in step.asks]
            step = choice.send(Outcome(step, 0, tuple(_reports(record, view.round, asked)), ()))
    except StopIteration as end:
        asks: list[Ask] = end.value
        return asks


def _reports(record: Record, round: int, clients: Sequence[int]) -> list[Report]:
    """Return what clients would report; Oort's utility is that of samples which all have the recorded loss."""
    loss, latency, sizes = record.loss(round), record.latency(round), record.counts.sum(1)
    numbers = {"probed_loss": loss, "utility": sizes * loss}
    numbers |= {name: table[min(round, len(table) - 1)] for name, table in record.numbers.items()}

    def update(client: int, name: str) -> dict[str, Tensor]:
        return {} if record.updates is None else {name: torch.from_numpy(record.updates[client])}

    return [
        Report(
            client=c,
            samples=int(sizes[c]),
            steps=1,
            loss=float(loss[c]),
            metrics={name: float(row[c]) for name, row in numbers.items()},
            seconds=float(latency[c]),
            aggregated=update(c, "update"),
            open_tensors=update(c, "HeadUpdate/head"),
        )
        for c in clients
    ]
