"""Training that goes wrong is told: what is seen, the likely cause, and a setting to try.

A diagnosis is a function of the evaluations so far, so that a resumed run says the same as one that was never
interrupted. Where healthy runs end: of all recipes on digits, the test loss is never above 1.1 times that of a guess,
and above it in at most two evaluations in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fedstrata.client.network import Network
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Differential
from fedstrata.core.plan import Plan
from fedstrata.core.rng import seed_torch
from fedstrata.data.federation_info import FederationInfo
from fedstrata.data.formats.tabular import some

SOFTMAX = (
    "it ends in softmax, and the loss applies one itself: it will learn slowly, if at all; let it return what goes "
    "into its softmax"
)
PROBABILITIES = f"the model, {SOFTMAX}"
SKEWED = (
    "clients learn their own samples well, and those of others not: their labels are probably skewed; try a method "
    "that fedstrata inspect advises"
)
UNSEEN = (
    '; features that are not on one scale do the same: each site says so of its own, and data.scale = "federated" at '
    "every site mends it"
)
SEVERAL, MOST = 5, 20  # evaluations in a row that count as several: a tenth of all, within these
ABOVE = 1.02  # times the loss of a guess: a model that has not begun to learn lies around it
EXPLODED = 10.0  # times the loss of a guess
FALLS = 0.01  # of the loss of a guess: a model at chance whose loss falls by so much is only slow
MOVED = 1.2  # times the loss of a guess: a loss that was ever above this, in training or after it, made too long steps
EXACT = 1e-4  # how far a sum of probabilities may be from 1
FACTOR = 10.0  # between the rate that was bad and the one to try,
LARGE, SMALL = 0.1, 0.001  # which is no larger than this where it shall be smaller, and no smaller where larger


def ends_in_softmax(plan: Plan, federation: FederationInfo) -> bool:
    """Say whether a model gives probabilities instead of logits: numbers from 0 on whose sum is 1, for any sample."""
    local = plan.local
    network = Network(local.build().to(local.dtype), local.head).eval()
    with torch.no_grad():
        answers = network(local.inputs(federation.trial(), local.dtype))[1]
    return bool((answers >= 0).all() and ((answers.sum(1) - 1).abs() < EXACT).all())


def describe_untrained(plan: Plan, federation: FederationInfo) -> str:
    """Say which weights have no part in a model's answer, as those of a second head; nothing where all have."""
    local = plan.local
    x = local.inputs(federation.trial(), local.dtype)
    unused: set[str] | None = None
    for training in (False, True):  # some are there for training alone
        network = Network(local.build().to(local.dtype), local.head).train(training)
        named = {name: p for name, p in network.module.named_parameters() if p.requires_grad}
        with seed_torch(0):
            answers = network(x)[1]
        found = torch.autograd.grad(answers.sum(), list(named.values()), allow_unused=True)
        idle = {name for name, gradient in zip(named, found, strict=True) if gradient is None}
        unused = idle if unused is None else unused & idle
    if not unused:
        return ""
    said = some(sorted(unused), "weight")
    return f"{said} had no part in its answer to two samples; unless others need them, they are not trained"


def may_be_uneven(federation: FederationInfo) -> bool:
    """Say whether nobody brings the features to one scale, as far as that shows without a look at them."""
    x, done = federation.trial(), federation.preprocessing
    scaled = done.mean is not None or done.per_client or federation.inputs.mean is not None
    return x.ndim == 2 and x.is_floating_point() and not scaled


def describe_noise(dp: Differential | None, numbers: int, clients: int) -> str:
    """Say that noise is longer than what clients say in a round can be; nothing where it is not.

    Each of so many numbers gets noise, while an update as a whole is clipped: steps of any length end in as much.
    """
    if dp is None:
        return ""
    times = dp.noise * math.sqrt(numbers) / (math.sqrt(clients) if dp.where == "local" else clients)
    if times <= 1:
        return ""
    return (
        f"the likely cause is the noise: with privacy.dp.noise={dp.noise:g}, what it adds to {clients} clipped "
        f"update{'s' * (clients > 1)} is {times:.1f} times as long as their sum can be; try more clients a round, a "
        f"smaller model, or less noise, which protects less"
    )


class Diagnosis(NamedTuple):
    """What is wrong; the more severe, the higher."""

    severity: int
    why: str


@dataclass
class Health:
    """Looks at every evaluation of a run, and says once what is wrong, or again where it got worse."""

    experiment: Experiment
    classes: int
    tests: int  # samples that models are scored on
    known: str = ""  # what explains all of it, and was seen before training: of the model, or of the features
    beside: str = ""  # what may explain it as well as steps do, and cannot be seen from here
    noise: str = ""  # what is likelier than steps or skew where updates drown in it
    told: Diagnosis | None = None
    _seen: list[dict[str, float]] = field(default_factory=list)
    _broken: bool = False  # whether a client's training was not finite

    def see(self, event: Mapping[str, Any]) -> Diagnosis | None:
        """Take note of an event; return what is worse than anything that was told."""
        self._broken |= event["event"] == "dropped" and event["why"] == "not finite"
        if "loss_test" not in event:
            return None
        figures = ("round", "loss_test", "balanced_accuracy", "loss_train")
        self._seen.append({key: math.nan if event.get(key) is None else float(event[key]) for key in figures})
        labels = sum(recall is not None for recall in event.get("recall") or ()) or self.classes
        found = self._diagnose(labels)
        if found is None or (self.told is not None and found.severity <= self.told.severity):
            return None
        self.told = found
        return found

    @property
    def guess(self) -> float:
        """Loss of a guess that gives all labels the same chance."""
        return math.log(self.classes)

    def _diagnose(self, labels: int) -> Diagnosis | None:
        last, several = self._seen[-1], self._several()
        loss = last["loss_test"]
        if not math.isfinite(loss):
            return Diagnosis(4, f"the model is not finite any more: {self._too_long()}")
        if loss > EXPLODED * self.guess:
            seen = f"the loss on test samples is {loss:.3g}, {loss / self.guess:.0f} times that of a guess"
            return Diagnosis(3, f"{seen}: {self._too_long()}")
        row = self._seen[-several:]
        if len(row) < several:
            return None
        if all(own["loss_test"] > ABOVE * self.guess for own in row):
            seen = f"the loss on test samples was above that of a guess ({self.guess:.3g}) in {several} evaluations"
            alone = self._fits_clients_alone(last["loss_train"])
            cause = self._beside_noise(SKEWED) if alone else self._too_long()
            return Diagnosis(2, f"{seen} in a row, last {loss:.3g}: {cause}")
        chance = 1 / labels + 2 * math.sqrt((1 - 1 / labels) / labels / max(self.tests, 1))
        falls = row[0]["loss_test"] - loss > FALLS * self.guess
        if all(own["balanced_accuracy"] <= chance for own in row) and not falls:
            seen = f"in {several} evaluations in a row the model was no better than chance"
            said = f"balanced accuracy {last['balanced_accuracy']:.3f}, loss {loss:.3g}; a guess has {self.guess:.3g}"
            losses = [own[key] for own in self._seen for key in ("loss_test", "loss_train")]
            moved = self._broken or any(loss > MOVED * self.guess for loss in losses)
            cause = self._too_long() if moved or self._server_rate() is not None else self._too_short()
            return Diagnosis(1, f"{seen} ({said}): {cause}")
        return None

    def _several(self) -> int:
        """Return how many evaluations are several in a run of this length."""
        planned = self.experiment.train.rounds // self.experiment.train.evaluate.every
        return min(max(SEVERAL, planned // 10), MOST)

    def _server_rate(self) -> float | None:
        """Return the rate of the server's steps where it may be the cause: of adaptive ones, or one above 1."""
        step: Mapping[str, Any] = self.experiment.method.server_step
        rate = step.get("lr")
        if not isinstance(rate, int | float) or (step["kind"] == "sgd" and rate <= 1):
            return None
        return float(rate)

    def _fits_clients_alone(self, trained: float | None) -> bool:
        """Say whether clients learn their own samples well, so that steps and model are not the likely cause."""
        fits = trained is not None and trained < self.guess / 2
        return fits and not self.known and self._server_rate() is None

    def _too_long(self) -> str:
        if self.known:
            return f"the likely cause is {self.known}"
        rate = self._server_rate()
        if rate is None:
            shorter = smaller(self.experiment.train.lr)
            said = f"the steps of clients are probably too long; try train.lr={shorter:g}{self.beside}"
        else:
            lower = 1.0 if self.experiment.method.server_step["kind"] == "sgd" else smaller(rate)
            said = f"the steps of the server are probably too long; try method.server_step.lr={lower:g}"
        return self._beside_noise(said)

    def _too_short(self) -> str:
        if self.known:
            return f"the likely cause is {self.known}"
        larger = max(self.experiment.train.lr * FACTOR, SMALL)
        said = f"the steps of clients are probably too short; try train.lr={larger:g}{self.beside}"
        return self._beside_noise(said)

    def _beside_noise(self, said: str) -> str:
        return f"{self.noise}; if that does not help, {said}" if self.noise else said


def smaller(rate: float) -> float:
    """Return a rate to try instead of one that is too large."""
    return min(rate / FACTOR, LARGE)


def worst_told(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the events of a run say of its training: the last diagnosis, which is the most severe."""
    told = [event for event in events if event["event"] == "training"]
    return [f"in round {told[-1]['round']}: {told[-1]['why']}"] if told else []
