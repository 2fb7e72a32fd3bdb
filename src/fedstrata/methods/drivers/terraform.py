"""Terraform (arXiv 2602.20450): retrain the clients whose final layer moved most, again and again inside a round.

A round begins with whatever the configured selector, corrections and combiner make of it. Then the clients are sorted
by the size of their update and cut in two where the variance inside the parts is least; the hard part trains again,
as a step of its own with the same corrections and combiner, until too few clients are hard.

Where we depart from the paper, or had to choose: its equation for the variance is lost, and we weigh each part by its
share of samples ("count": of clients). A client whose report did not arrive, or whose magnitude is not finite, is not
hard. The threshold of 5 clients is inferred, the depth of 10 is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction, LocalPart
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report, Slot, Tensors
from fedstrata.core.options import Count
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver
from fedstrata.core.steps import Outcome, Select, Step, Steps, View

Layer = Literal["head", "weight", "bias"]
Signal = Literal["head", "weight", "bias", "loss"]
Range = Literal["iqr", "all", "low", "high", "top"]
Weight = Literal["size", "count"]

TIE = 1e-12  # of the whole variance: rounding must not decide between equal cuts


@dataclass(frozen=True)
class Cut:
    """Values in ascending order, cut in two."""

    order: np.ndarray  # positions of the values, ascending
    tau: int  # the first of them that is hard
    allowed: tuple[int, int]  # first and last index at which the cut was looked for

    @property
    def hard(self) -> np.ndarray:
        """Positions of the upper part, ascending by value."""
        return self.order[self.tau :]


def split(
    magnitudes: np.ndarray,
    sizes: np.ndarray,
    keys: np.ndarray | None = None,
    within: Range = "iqr",
    weight: Weight = "size",
) -> Cut | None:
    """Cut finite values in two with the least variance inside the parts; None where no index is allowed.

    `keys` decide between equal magnitudes; without them, positions do. `within` and `weight` are Terraform's options.
    """
    order = np.lexsort((np.arange(len(magnitudes)) if keys is None else keys, magnitudes))
    values, samples = np.asarray(magnitudes, np.float64)[order], np.asarray(sizes, np.float64)[order]
    first, last = 1, len(values) - 1  # both parts hold somebody
    if len(values):
        running = np.cumsum(samples)
        q1, q3 = (int(np.searchsorted(running, share * running[-1])) for share in (0.25, 0.75))
        first = max(first, {"iqr": q1, "high": q1, "top": q3}.get(within, first))
        last = min(last, q3) if within in ("iqr", "low") else last
    if last < first:
        return None
    inside = variances(values, samples if weight == "size" else np.ones_like(values))
    candidates = inside[first - 1 : last]
    tau = first + int(np.argmax(candidates <= candidates.min() + TIE * np.var(_scale(values))))
    return Cut(order, tau, (first, last))


def variances(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return, for t = 1..n-1, the weighted sum of the population variances of values[:t] and values[t:].

    In units of the squared length of the values' range, so that values of any size can be squared.
    """
    total = weights.sum()
    share = np.cumsum(weights)[:-1] / total if total > 0 else np.arange(1, len(values)) / len(values)
    centred = _scale(values)
    below, above = _prefix_variances(centred)[:-1], _prefix_variances(centred[::-1])[:-1][::-1]
    both: np.ndarray = share * below + (1 - share) * above
    return both


def _prefix_variances(values: np.ndarray) -> np.ndarray:
    """Return the population variance of the first 1, 2, ... n values, which have mean 0 and length about 1."""
    n = np.arange(1, len(values) + 1)
    found: np.ndarray = np.maximum(np.cumsum(values**2) / n - (np.cumsum(values) / n) ** 2, 0)
    found[0] = 0
    return found


def _scale(values: np.ndarray) -> np.ndarray:
    """Move ascending values to mean 0 and range 1; equal ones to 0."""
    halves = values / 2  # the range of the largest numbers is a number too
    span = halves[-1] - halves[0]
    if span == 0:
        return np.zeros_like(values)
    scaled = (halves - halves[0]) / span
    centred: np.ndarray = scaled - scaled.mean()
    return centred


@dataclass(frozen=True)
class Magnitude(Correction):
    """Reports how far the final layer moved in training."""

    paper: ClassVar[str] = "Terraform, arXiv 2602.20450"

    layer: Layer = "head"  # weight and bias together, or one of them

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the change of the layer, or of the part of it that is wanted."""
        where = {"head": space.head, "weight": space.head_weight, "bias": space.head_bias}[self.layer]
        return {"change": Slot((where.stop - where.start,))}

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Measure it: the square root of the sum of squares. A layer's weight lies first, its bias last."""
        change, head = own["change"], buf.head
        start = head.stop - change.numel() if self.layer == "bias" else head.start
        where = slice(start, start + change.numel())
        torch.sub(buf.w[where], buf.w0[where], out=change)
        return Done(metrics={"magnitude": change.norm()})

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse a final layer that lacks what is to be measured."""
        space = plan.space
        where = {"head": space.head, "weight": space.head_weight, "bias": space.head_bias}[self.layer]
        if where.stop == where.start:
            return f'the final layer has no {self.layer} that is trained; use method.driver.signal = "loss"'
        at_end = where.stop == space.head.stop if self.layer == "bias" else where.start == space.head.start
        if not at_end:
            return f'the final layer\'s {self.layer} lies amid other tensors; use method.driver.signal = "head"'
        return None


@dataclass(frozen=True)
class Terraform(Driver):
    """All selected clients train, then those whose final layer moved most train again, until few are left.

    With `baseline`, each later step asks as many clients as are hard, but draws them at random from the round's: the
    control for what retraining costs. Not all hard clients are then measured anew, so from the third step on their
    number is told from the last magnitudes known, and may differ a little: compare runs at equal `client_updates`.
    """

    paper: ClassVar[str] = "Terraform, arXiv 2602.20450"
    reads: ClassVar[str] = "how large each client's update of the last layer is"

    signal: Signal = "head"  # the final layer's update, its bias alone, its weight alone, or the loss in training
    range: Range = "iqr"  # where to cut, in quartiles of the samples: (Q1, Q3), (0, 1), (0, Q3), (Q1, 1), (Q3, 1)
    split_weight: Weight = "size"  # what the variance of a part counts for
    min_clients: Count = 5  # eta_min: fewer hard clients than these are not retrained
    depth: Count = 10  # I_max: steps of a round, the first among them
    baseline: bool = False

    @property
    def reads_envelope(self) -> bool:
        """Read losses where clients are ranked by them."""
        return self.signal == "loss"

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """How much the final layer changed."""
        return ("magnitude",) if kind == "train" and self.signal != "loss" else ()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Measure the final layer's change."""
        return () if self.signal == "loss" else (Magnitude(self.signal),)

    def round(self, state: None, view: View, select: Select) -> Steps:
        """Ask everybody, then the hard ones among those who answered."""
        asks = {ask.client: ask for ask in (yield from select())}
        hard, known, everyone = list(asks), dict[int, Report](), list[int]()
        train = hard
        for iteration in range(1, self.depth + 1):
            outcome = yield Step(tuple(asks[client] for client in sorted(train)))
            answers = {r.client: r for r in outcome.reports}
            known = known | answers if self.baseline else answers
            everyone = everyone or list(answers)
            there, magnitudes = self.measure(view, [known[client] for client in hard if client in known])
            sizes = np.array([known[client].samples for client in there])
            cut = split(magnitudes, sizes, view.client_info.key[there], self.range, self.split_weight)
            hard = [] if cut is None else [there[i] for i in cut.hard]
            over = self.reason(iteration, cut, hard)
            note = {"hard": hard, "tau": None if cut is None else cut.tau, "over": over}
            view.note("terraform", round=view.round + 1, iteration=iteration, **note, **_account(outcome, magnitudes))
            if over is not None:
                return
            train = hard
            if self.baseline:
                train = view.rng("terraform", step=iteration).choice(everyone, len(hard), replace=False).tolist()

    def reason(self, iteration: int, cut: Cut | None, hard: Sequence[int]) -> str | None:
        """Say why a round ends here, or None."""
        if cut is None:
            return "nothing to split"
        if len(hard) < self.min_clients:
            return "min_clients"
        return "depth" if iteration == self.depth else None

    def measure(self, view: View, reports: Sequence[Report]) -> tuple[list[int], np.ndarray]:
        """Return the clients that can be sorted, and their magnitudes; the others are easy."""
        signals: list[Any] = [r.loss if self.signal == "loss" else r.metrics["magnitude"] for r in reports]
        magnitudes = np.array(signals, dtype=np.float64)
        finite = np.isfinite(magnitudes)
        if not finite.all():
            clients = [r.client for r, fine in zip(reports, finite, strict=True) if not fine]
            why = f"the {self.signal} signal is not finite"
            view.note("fallback", round=view.round + 1, what="terraform", used="easy", why=why, clients=clients)
        return [r.client for r, fine in zip(reports, finite, strict=True) if fine], magnitudes[finite]


def _account(outcome: Outcome, magnitudes: np.ndarray) -> dict[str, Any]:
    """Say who trained, how large the updates were, and what the step cost."""
    quantiles = np.quantile(magnitudes, (0, 0.25, 0.5, 0.75, 1)).tolist() if len(magnitudes) else []
    return {
        "clients": [ask.client for ask in outcome.step.asks],
        "missing": list(outcome.missing),
        "magnitudes": dict(zip(("least", "q1", "median", "q3", "most"), quantiles, strict=False)),
        "client_updates": len(outcome.step.asks),
        "samples": sum(r.work for r in outcome.reports),
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "seconds": outcome.seconds,
    }
