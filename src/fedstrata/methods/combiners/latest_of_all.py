"""FedBSS (AAAI 2025), Algorithm 1, line 12, to the letter: the mean over all N clients' last models.

Only some clients train in a round, and yet the sum goes over all of them. Read literally, a client that did not train
counts with the model it ended with when it last did. The recipe `fedbss` averages those that arrived, as its line 11
says; this combiner offers the other reading, whose runs vary as little from round to round as the paper's tables do:
a round moves the model by about the share of clients that trained.

A client that never trained has no last model. It stays out of the mean (`unseen = "out"`): the first rounds then move
as far as FedAvg's. With "global" the model as it is stands in its place, as for servers that begin with N copies of it:
the first rounds move by the share of clients seen.

Models lie in the files of the checkpoint, once one holds them; only those of clients that arrive are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.core.storage.stored import Stored
from fedstrata.methods.combiners.client_models import model_of, move_to, vector, warn_of_size


@dataclass
class LastModels:
    """Every client's last model."""

    total: Tensor  # their sum
    clients: dict[int, Stored] = field(default_factory=dict)


@dataclass(frozen=True)
class LatestOfAll(Combiner):
    """The next model is the mean of all clients' last models, whether they trained in this round or not."""

    paper: ClassVar[str] = "FedBSS, AAAI 2025"
    individual: ClassVar[bool] = True

    unseen: Literal["out", "global"] = "out"  # clients that never trained: left out, or counted as the model as it is

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse reports that are no models of one round."""
        return None if plan.driver.side_by_side else "it averages models of clients that train side by side"

    def init(self, view: View) -> LastModels:
        """Know nothing."""
        warn_of_size(view, "latest-of-all", 1)
        return LastModels(torch.zeros(view.space.P + view.space.Q, dtype=torch.float64))

    def combine(self, state: LastModels, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Put the new models in the place of the old ones, and average."""
        here = vector(model)
        for report in arrived.each():
            new, old = model_of(report, here), state.clients.get(report.client)
            state.total = state.total + (new.double() if old is None else new.double() - old.read())
            state.clients[report.client] = Stored(new)
        total, count = state.total, len(state.clients)
        if self.unseen == "global":
            total, count = total + (view.client_info.clients - count) * here.double(), view.client_info.clients
        return move_to(total / count, here, arrived.sum(arrived.weights / arrived.weights.sum()), view)
