"""Metrics of a whole run, read from its evaluations: last, best, mean of the last ten, what a target took.

A run's summary has them by name. `Criterion` is one of them as a comparison asks for it, with the direction in which it
is better. What was measured can be asked for afterwards: a target need not be known while a run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.config.measured import AMOUNTS
from fedstrata.core.errors import RequestError, unknown_name

LAST = 10  # evaluations whose mean papers give
CURVES = ("accuracy", "balanced_accuracy")
# Accuracy on clients' own test data: of all, of those who trained in the round, of those of its last step alone.
BY_CLIENT = ("client_mean", "participant_mean", "last_step_mean")
HIGHER = (
    *CURVES,
    *(f"best_{name}" for name in CURVES),
    *(f"{name}_last{LAST}" for name in CURVES),
    "worst10",
    *BY_CLIENT,
    *(f"{name}_last{LAST}" for name in BY_CLIENT),
    "personal_mean",
    "personal_worst10",
)
TO = ("rounds_to", "bytes_to", "client_updates_to", "time_to")  # what it took to reach an accuracy: less is better
BALANCED = "balanced_"  # before one of these: what it took to reach a balanced accuracy
SHORT = {"best": "best_accuracy", f"mean_last{LAST}": f"accuracy_last{LAST}", "personal": "personal_mean"}

Evaluation = Mapping[str, Any]  # the event of a round that was evaluated


def is_share(figure: str) -> bool:
    """Say whether what runs are compared by is written in percent: what a model is worth, also by one's own metrics."""
    return figure in HIGHER or not figure.removeprefix(BALANCED).startswith(AMOUNTS)


def evaluations(events: Iterable[Mapping[str, Any]]) -> list[Evaluation]:
    """Return the rounds that were evaluated."""
    return [event for event in events if event["event"] == "round" and "accuracy" in event]


def final_figures(scored: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the best, with its round, and the mean and standard deviation of the last ten evaluations.

    Without any evaluation, each of them is None.
    """
    figures: dict[str, Any] = {}
    for name in CURVES:
        if not scored:
            names = (f"best_{name}", f"best_{name}_round", f"{name}_last{LAST}", f"{name}_last{LAST}_std")
            figures |= dict.fromkeys(names)
            continue
        curve = np.array([event[name] for event in scored], dtype=np.float64)
        best = int(np.argmax(curve))  # the first, where several are equal
        figures[f"best_{name}"] = float(curve[best])
        figures[f"best_{name}_round"] = scored[best]["round"]
        figures[f"{name}_last{LAST}"] = float(curve[-LAST:].mean())
        figures[f"{name}_last{LAST}_std"] = float(curve[-LAST:].std())
    for name in BY_CLIENT:
        told = [event[name] for event in scored[-LAST:] if name in event]
        figures |= {f"{name}_last{LAST}": float(np.mean(told))} if told else {}
    return figures


def spent_until(scored: Sequence[Evaluation], target: float, curve: str = "accuracy") -> dict[str, float | None]:
    """Return what a run had spent when an evaluation first showed an accuracy; None where none did."""
    first = next((event for event in scored if event[curve] >= target), None)
    if first is None:
        return dict.fromkeys(TO)
    total = first["bytes_up"] + first["bytes_down"] + first["bytes_p2p"]
    return dict(zip(TO, (first["round"], total, first["client_updates"], first["time"]), strict=True))


def to_targets(scored: Sequence[Evaluation], targets: Iterable[float]) -> dict[str, dict[str, float | None]]:
    """Return what each target took, by what was spent and by target."""
    spent = {f"{target:g}": spent_until(scored, target) for target in sorted(set(targets))}
    return {name: {target: own[name] for target, own in spent.items()} for name in TO}


@dataclass(frozen=True)
class Criterion:
    """What runs are compared by."""

    name: str  # a key of the summary, or such as "rounds_to:0.8"
    target: float | None = None

    @classmethod
    def of(cls, text: str, own: Collection[str] = ()) -> Criterion:
        """Read a metric: `accuracy`, `best`, `rounds_to:0.8`; `own`: names of those in `train.evaluate.metrics`."""
        name, colon, target = str(text).strip().partition(":")
        name = SHORT.get(name, name)
        if name.removeprefix(BALANCED) in TO:
            return cls(f"{name}:{_target(text, target):g}", _target(text, target))
        if colon or not (name in HIGHER or name in own):
            raise unknown_name(
                "metric", str(text), (*HIGHER, *SHORT, *own, *(f"{to}:0.8" for to in TO), f"{BALANCED}{TO[0]}:0.8")
            )
        return cls(name)

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return self.target is not None

    @property
    def personal(self) -> bool:
        """Whether it is only there where `train.evaluate.personal` is set."""
        return self.name.startswith("personal")

    def read(self, summary: Mapping[str, Any], scored: Sequence[Evaluation]) -> float | None:
        """Return its value in a finished run: infinite where the target was never reached, None if not measured."""
        if self.target is None:
            value = (summary.get("metrics") or {}).get(self.name, summary.get(self.name))
            return None if value is None else float(value)
        what = self.name.partition(":")[0]
        curve = "balanced_accuracy" if what.startswith(BALANCED) else "accuracy"
        spent = spent_until(scored, self.target, curve)[what.removeprefix(BALANCED)]
        return math.inf if spent is None else float(spent)

    def so_far(self, scored: Sequence[Evaluation]) -> float | None:
        """Return its value after some evaluations, as if the run ended with them; None if there is none yet."""
        if not scored:
            return None
        value = self.read({**scored[-1], **final_figures(scored)}, scored)
        return value if value is not None and math.isfinite(value) else None


def metrics_of(asked: str | Sequence[str], own: Collection[str] = ()) -> tuple[Criterion, ...]:
    """Read one metric or several, by which is ranked first."""
    names = [asked] if isinstance(asked, str) else list(asked)
    found = tuple(dict.fromkeys(Criterion.of(part, own) for name in names for part in str(name).split(",")))
    if not found:
        raise RequestError("metric is empty; name one, such as accuracy")
    return found


def _target(asked: str, text: str) -> float:
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not 0 <= target <= 1:
        raise RequestError(f'metric = "{asked}" needs an accuracy from 0 to 1, such as rounds_to:0.8')
    return target
