"""Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.

FedNova divides each update by what its steps add up to, and moves by the mean of that times the mean of those:
d_k = -Delta_k / a_k, w <- w - tau_eff sum p_k d_k, tau_eff = sum p_k a_k. Here that is a weight p_k tau_eff / a_k.

With plain steps a_k is their number. In general a_k is how far a constant gradient of 1 would have come in units of
the step size: with momentum rho and a proximal term mu, v <- rho v + 1 - eta mu a, a <- a + v at every step. The
authors' code takes plain numbers of steps for tau_eff where there is a proximal term: `effective = "steps"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction, LocalPart
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Slot, Sums, Tensors
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.optimizers.sgd import Sgd


@dataclass(frozen=True)
class Counting(Correction):
    """Counts what a client's steps add up to."""

    momentum: float = 0.0
    mu: float = 0.0

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold a and its velocity."""
        return {"a": Slot(), "v": Slot()}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Start at rest."""
        own["a"].zero_()
        own["v"].zero_()

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Take the step that a constant gradient of 1 would take."""
        own["v"].mul_(self.momentum).add_(1.0 - self.mu * rate[0] * own["a"])
        own["a"].add_(own["v"])

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell the count."""
        return Done(metrics={"a": own["a"]})


@dataclass(frozen=True)
class FedNova(Combiner):
    """Updates are divided by their clients' numbers of steps before they are averaged."""

    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    reads: ClassVar[str] = "how many local steps each client took"

    effective: Literal["normalised", "steps"] = "normalised"  # what tau_eff is the mean of

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse steps that cannot be counted beforehand."""
        optimizer = plan.local.optimizer
        if not isinstance(optimizer, Sgd) or (optimizer.momentum and optimizer.state != "fresh"):
            return "it counts steps of sgd whose momentum starts afresh at every client"
        for part in plan.local.parts.values():
            if isinstance(part, FedDyn) or (isinstance(part, Prox) and part.looks):
                return "it counts steps under one proximal term for all clients"
        return None

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """How much steps count."""
        return ("a",) if kind == "train" else ()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients count, knowing what else acts on their steps."""
        momentum = sum(part.momentum for part in others if isinstance(part, Sgd))
        return (Counting(momentum, sum(part.mu for part in others if isinstance(part, Prox))),)

    def combine(self, state: None, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Weigh by p_k tau_eff / a_k; who took no step is left out."""
        a = np.array([r.metrics["a"] for r in arrived.reports], dtype=np.float64)
        steps = np.array([r.steps for r in arrived.reports], dtype=np.float64)
        sizes = arrived.weights * np.array([r.samples for r in arrived.reports], dtype=np.float64) * (a > 0)
        if not sizes.sum():
            return arrived.sum(np.full(len(sizes), 1.0 / len(sizes)))  # nobody took a step: all updates are zero
        effective = (sizes * (a if self.effective == "normalised" else steps)).sum() / sizes.sum()
        # in this order equal numbers of steps cancel exactly, and leave the mean by size
        return arrived.sum(sizes / sizes.sum() * (effective / np.where(a > 0, a, 1.0)))
