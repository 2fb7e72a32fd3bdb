"""Evaluation: one pass over the test set, from which every accuracy is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedstrata.client.network import Network
from fedstrata.client.probe import CHUNK
from fedstrata.client.products import WORTH_THREADS, products_a_sample
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.machine.threads import spare, threads
from fedstrata.core.metric import Metric
from fedstrata.core.steps import Scores, View
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Samples
from fedstrata.server.metrics import accuracy, mean_recall, recalls, worst
from fedstrata.server.personal import FineTuning


@dataclass
class Evaluator:
    """Scores models on the global test set, by label, by group and by client."""

    local: ClientPlan
    federation: Federation
    every: int = 1
    clients: int = 1000  # most clients that enter the per-client metrics
    satisfied_at: float | None = None  # accuracy at which a client votes to stop
    device: str = "cpu"
    fine_tuning: FineTuning | None = None  # where clients are also tested with models of their own
    metrics: Sequence[Metric] = ()  # what else is measured
    _network: Network = field(init=False)
    _shared: bool = field(init=False)  # whether all cores work on a batch
    _asked: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.federation.test):
            raise RequestError("there are no test samples: hold some out, or give a test set")
        module = self.local.build().to(self.device, self.local.dtype)
        self._space = ParameterSpace.of(module, self.local.head)
        self._network = Network(module, self.local.head, self.local.half).eval()
        two = self.local.inputs(self.federation.test.x[:2].to(self.device), self.local.dtype)
        products = products_a_sample(module, two) * min(len(self.federation.test), CHUNK)
        self._shared = products > WORTH_THREADS  # threads only wait on tiny models
        tested = np.flatnonzero(self.federation.test_split.sizes)
        rng = self.local.streams("evaluate")
        test = self.federation.test  # it stays where models are evaluated
        self._test = replace(test, x=test.x.to(self.device), y=test.y.to(self.device))
        self._asked = np.sort(rng.choice(tested, min(self.clients, len(tested)), replace=False))

    def __call__(self, model: FlatModel, view: View) -> Scores:
        """Score every n-th round and the last; other rounds have no scores."""
        return self.score(model, view.round) if is_due(view, self.every) else Scores()

    def score(self, model: FlatModel, round: int = 0) -> Scores:
        """Score a model, on what clients hold in a round."""
        test, split = self.federation.test, self.federation.at(round).test_split
        self._space.bind(self._network.module, model.params.to(self.device), model.buffers.to(self.device))
        with threads(spare() if self._shared else 1):  # no worker is at work
            said: list[Tensor] | None = [] if self.metrics else None
            hits, losses = answers(self._network, self.local, self._test, said)
        recall = recalls(hits, test.y.numpy(), len(self.federation.classes))
        if (codes := self.federation.codes) is not None:
            recall = [recall[code] for code in codes]  # in the labels' own order
        own = {int(i): float(hits[rows].mean()) for i in self._asked if len(rows := split[int(i)])}
        figures: dict[str, Any] = {
            "accuracy": accuracy(hits),
            "balanced_accuracy": mean_recall(recall),
            "loss_test": float(losses.mean()),
            "recall": recall,
        }
        figures |= self._measure(said or ())
        figures |= client_figures(own, self.satisfied_at)
        if self.fine_tuning is not None and own:
            tuned = self.fine_tuning.models(model, round, own)
            personal = np.array([self._score_own(split[client], one) for client, one in tuned])
            figures |= {"personal_mean": float(personal.mean()), "personal_worst10": worst(personal)}
        if test.groups is not None:
            figures["groups"] = {str(g): accuracy(hits[test.groups == g]) for g in np.unique(test.groups)}
        return Scores(figures, own)

    def _measure(self, said: Sequence[Tensor]) -> dict[str, float | None]:
        """Return what the metrics make of a model's answers; labels are in their own order, also where masked."""
        if not said:
            return {}
        probabilities = torch.cat(list(said)).double().softmax(1).cpu().numpy()
        labels = self.federation.test.y.numpy().copy()
        if not np.isfinite(probabilities).all():
            return dict.fromkeys(metric.figure for metric in self.metrics)
        if (codes := self.federation.codes) is not None:
            probabilities, labels = probabilities[:, codes], np.argsort(codes)[labels]
        for told in (probabilities, labels):
            told.setflags(write=False)  # all metrics have the same ones
        return {metric.figure: measured(metric, labels, probabilities) for metric in self.metrics}

    def _score_own(self, rows: np.ndarray, model: FlatModel) -> float:
        """Return the accuracy of a client's model on its own test samples."""
        self._space.bind(self._network.module, model.params.to(self.device), model.buffers.to(self.device))
        at = torch.from_numpy(rows).to(self.device)
        own = Samples(self._test.x.index_select(0, at), self._test.y.index_select(0, at))
        return accuracy(answers(self._network, self.local, own)[0])


def measured(metric: Metric, labels: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return what a metric measures; None where it cannot be told."""
    value = metric.measure(labels, probabilities)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RequestError(f"{type(metric).__name__}: `measure` gave {value!r:.60}, which is no number") from None
    return number if math.isfinite(number) else None


def is_due(view: View, every: int) -> bool:
    """Say whether a round's model is scored: every n-th and the last."""
    return view.round + 1 == view.rounds or (view.round + 1) % every == 0


def client_figures(accuracies: Mapping[int, float], satisfied_at: float | None) -> dict[str, float]:
    """Sum up the accuracies of clients; from `satisfied_at` on, one votes to stop."""
    if not accuracies:
        return {}
    values = np.array(list(accuracies.values()))
    figures = {"client_mean": float(values.mean()), "worst10": worst(values)}
    return figures if satisfied_at is None else {**figures, "satisfied": float((values >= satisfied_at).mean())}


@dataclass
class ProxyLoss:
    """A model's mean loss on samples that the server holds."""

    local: ClientPlan
    samples: Samples
    _network: Network = field(init=False)

    def __post_init__(self) -> None:
        module = self.local.build().to(self.local.dtype)
        self._space, self._network = (
            ParameterSpace.of(module, self.local.head),
            Network(module, self.local.head, self.local.half).eval(),
        )

    def __call__(self, model: FlatModel) -> float:
        """Score a model."""
        self._space.bind(self._network.module, model.params, model.buffers)
        return float(answers(self._network, self.local, self.samples)[1].mean())


def answers(
    network: Network, local: ClientPlan, samples: Samples, said: list[Tensor] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return which samples a network gets right, and its loss on each; what it said of them is put into `said`."""
    hits, losses = [], []
    with torch.no_grad():
        for start in range(0, len(samples), CHUNK):
            x, y = local.inputs(samples.x[start : start + CHUNK], local.dtype), samples.y[start : start + CHUNK]
            logits = network(network.to_preferred_layout(x))[1]
            hits.append(logits.argmax(1) == y)
            if said is not None:
                said.append(logits)
            losses.append(cross_entropy(logits, y, reduction="none"))
    return torch.cat(hits).cpu().numpy(), torch.cat(losses).double().cpu().numpy()
