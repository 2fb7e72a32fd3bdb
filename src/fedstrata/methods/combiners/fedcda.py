"""Wang et al., FedCDA: Federated Learning with Cross-rounds Divergence-aware Aggregation, ICLR 2024.

The server keeps each client's last models with their training losses. Of every client it chooses one, so that
mean F_n(w_n) + L/2 (mean ||w_n||^2 - ||mean w_n||^2) is small: models that fit their data and lie close together. The
next model is the plain mean of the chosen ones, of all clients ever seen. Clients that arrived are chosen for in
`groups` random groups, one after another, over all combinations inside a group. In the first rounds the chosen one is
the newest, and the mean is over those that arrived.

The authors' warm-up is 50 rounds, of 200 in FedBSS' comparison; the default here is that share. Groups are made smaller
where a group would have more than `COMBINATIONS` combinations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import floor, log
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import Count, NonNegative, Rounds, in_rounds
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View

COMBINATIONS = 20_000
MEMORY = 4 * 2**30  # most bytes that clients' models may take


@dataclass
class Kept:
    """A client's last models, newest first."""

    models: Tensor  # [up to `models`, P + Q]
    losses: list[float]
    chosen: int = 0

    @property
    def model(self) -> Tensor:
        """The chosen one."""
        return self.models[self.chosen]


@dataclass
class Cache:
    """Models of all clients ever seen."""

    clients: dict[int, Kept] = field(default_factory=dict)


@dataclass(frozen=True)
class FedCda(Combiner):
    """Of each client's last models, those that fit their data and lie close together are averaged."""

    paper: ClassVar[str] = "Wang et al., ICLR 2024"
    individual: ClassVar[bool] = True

    models: Count = 3  # kept of each client
    groups: Count = 3
    smoothness: NonNegative = 1.0  # L
    warmup: Rounds = 0.25  # rounds, or a share of them

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse reports that are no models of one round."""
        return None if plan.driver.side_by_side else "it averages models of clients that train side by side"

    def init(self, view: View) -> Cache:
        """Know nothing."""
        most = 8 * (view.space.P + view.space.Q) * self.models * view.client_info.clients
        if most > 2 * MEMORY:  # 8 bytes in double precision, 4 as usual
            raise RequestError(
                f"method.combiner would keep up to {most / 2**31:.1f} GB of models, and is limited to "
                f"{MEMORY / 2**30:.0f} GB; use a smaller method.combiner.models, fewer clients or a smaller model"
            )
        return Cache()

    def combine(self, state: Cache, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Remember the new models, choose, and average."""
        reports = arrived.each()
        here = torch.cat([model.params, model.buffers])
        for report in reports:
            parts = [report.aggregated["update"]] + (
                [report.aggregated["buffers"]] if "buffers" in report.aggregated else []
            )
            new, old = here + torch.cat(parts), state.clients.get(report.client)
            rest = (old.models[: self.models - 1], old.losses[: self.models - 1]) if old else (new[None][:0], [])
            state.clients[report.client] = Kept(torch.cat([new[None], rest[0]]), [float(report.loss), *rest[1]])
        sums = arrived.sum(arrived.weights / arrived.weights.sum())
        if view.round < in_rounds(self.warmup, view.rounds):
            return sums
        self.choose(state, view, [r.client for r in reports], here)
        mean = torch.stack([kept.model for kept in state.clients.values()]).mean(0) - here
        moved = {"update": mean[: view.space.P]}
        if view.space.Q:
            moved["buffers"] = mean[view.space.P :] * sums.weight
        return replace(sums, total={**sums.total, **moved})

    def choose(self, state: Cache, view: View, arrived: list[int], here: Tensor) -> None:
        """Choose for the clients that arrived, group by group, all others as they are."""
        largest = max(1, floor(log(COMBINATIONS) / log(self.models))) if self.models > 1 else len(arrived)
        groups = max(min(self.groups, len(arrived)), -(-len(arrived) // largest))
        if groups > self.groups:
            view.note("fallback", what="fedcda", used=f"{groups} groups", why="larger ones have too many combinations")
        for group in np.array_split(view.rng("combine").permutation(arrived), groups):
            self.choose_for(state, group.tolist(), here[: view.space.P])

    def choose_for(self, state: Cache, group: list[int], origin: Tensor) -> None:
        """Try every combination of a group's models. Distances do not depend on the origin; small numbers are exact."""
        n, width = len(state.clients), len(origin)
        fixed = [kept for client, kept in state.clients.items() if client not in group]
        apart = sum((k.model[:width] - origin for k in fixed), torch.zeros_like(origin)).double()
        own = [state.clients[client] for client in group]
        options = torch.cat([k.models[:, :width] - origin for k in own]).double()
        gram, with_fixed = (options @ options.T).numpy(), (options @ apart).numpy()
        losses, start = np.concatenate([k.losses for k in own]), np.cumsum([0, *(len(k.losses) for k in own)])
        combos = np.array(list(product(*(range(len(k.losses)) for k in own))))  # newest first: of equals, they win
        at = combos + start[:-1]
        fit = losses[at].sum(1) / n
        squares = np.diag(gram)[at].sum(1) / n
        mean = (
            2 * with_fixed[at].sum(1) + gram[at[:, :, None], at[:, None, :]].sum((1, 2)) + float(apart @ apart)
        ) / n**2
        best = combos[int(np.argmin(fit + self.smoothness / 2 * (squares - mean)))]
        for kept, chosen in zip(own, best.tolist(), strict=True):
            kept.chosen = chosen
