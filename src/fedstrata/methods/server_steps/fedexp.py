"""Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.

w <- w + eta_g d, with d the combined update and eta_g = max(1, sum p_k ||Delta_k||^2 / (2 (||d||^2 + eps))): the more
the clients disagree, the longer the step. The mean of the last two iterates is evaluated. With equal p_k this is the
paper's form; the authors' code has |S| eps for eps (`eps_each`), and eps falls with the square of the step size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import AtLeastOne, Positive
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View


@dataclass
class Iterate:
    """The model before the last step."""

    before: FlatModel


@dataclass(frozen=True)
class FedExp(ServerStep):
    """A longer step where clients' updates point in different directions."""

    paper: ClassVar[str] = "Jhunjhunwala et al., ICLR 2023"
    reads: ClassVar[str] = "how long each client's update is"

    eps: Positive = 1e-3
    eps_each: bool = False  # eps for every client that arrived
    eta_max: AtLeastOne = 100.0

    @property
    def reads_envelope(self) -> bool:
        """Read the lengths of updates."""
        return True

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse combiners whose update is no mean of what clients sent."""
        if plan.combiner.individual:
            return "the length of its step follows from the mean of all updates, and this combiner makes something else"
        return None

    def init(self, view: View, model: FlatModel) -> Iterate:
        """Start where the model starts."""
        return Iterate(model)

    def eta(self, sums: Sums, decay: float = 1.0) -> float:
        """Return the length of the step."""
        shares = np.array([sums.shares.get(r.client, 1.0) for r in sums.reports])
        squares = float((shares * np.array([r.update_norm for r in sums.reports]) ** 2).sum() / shares.sum())
        eps = self.eps * decay**2 * (sums.count if self.eps_each else 1)
        return min(max(1.0, squares / (2 * (float(sums.total["update"].square().sum()) + eps))), self.eta_max)

    def step(self, state: Iterate, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move by eta_g d."""
        state.before, eta = model, self.eta(sums, view.decay)
        view.note("extrapolated", round=view.round + 1, eta=eta)
        return FlatModel(model.params + eta * (proposal.params - model.params), proposal.buffers)

    def model_to_evaluate(self, state: Iterate, model: FlatModel) -> FlatModel:
        """Evaluate the mean of the last two."""
        return FlatModel((state.before.params + model.params) / 2, model.buffers)
