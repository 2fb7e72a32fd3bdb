"""The best model so far. It is part of the state, so that a resumed run keeps the same one as an uninterrupted run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.steps import Evaluate, Scores, View
from fedstrata.core.storage.stored import Stored

if TYPE_CHECKING:
    from fedstrata.server.state import State


@dataclass
class Best:
    """The best model by one figure: the first that no later one surpassed."""

    value: float = -1.0
    round: int = 0  # counted from 1; 0: there is none yet
    weights: Stored | None = None  # parameters, then buffers; a checkpoint writes them only when they are new

    def offer(self, value: float | None, round: int, model: FlatModel) -> None:
        """Keep a model if it is better."""
        if value is not None and (not self.round or value > self.value):
            self.value, self.round = value, round
            self.weights = Stored(torch.cat([model.params, model.buffers]))

    def model(self, parameters: int) -> FlatModel:
        """Return the model, which has so many parameters."""
        assert self.weights is not None
        weights = self.weights.read()
        return FlatModel(weights[:parameters], weights[parameters:])


def keep_best(evaluate: Evaluate, state: State, metric: str) -> Evaluate:
    """Return an evaluation that also keeps the best model, by one of the figures that it gives."""

    def scored(model: FlatModel, view: View) -> Scores:
        scores = evaluate(model, view)
        state.best.offer(scores.figures.get(metric), view.round + 1, model)
        return scores

    return scored
