"""Wang et al., FedCDA: Federated Learning with Cross-rounds Divergence-aware Aggregation, ICLR 2024.

The server keeps each client's last models with their training losses. Of every client it chooses one, so that
mean F_n(w_n) + L/2 (mean ||w_n||^2 - ||mean w_n||^2) is small: models that fit their data and lie close together. The
next model is the plain mean of the chosen ones, of all clients ever seen. Clients that arrived are chosen for in
`groups` random groups, one after another, over all combinations inside a group; groups whose turn has not come are left
out of both means. In the first rounds the chosen one is the newest, and the mean is over those that arrived.

F_n is the mean loss over the last epoch, which clients tell beside their report. The authors' warm-up is 50 rounds, of
200 in FedBSS' comparison; the default here is that share. Groups are made smaller where a group would have more than
`COMBINATIONS` combinations.

Models lie in the files of the checkpoint, once one holds them: for 100 clients with a ResNet-50, 28 GB. Of these only
the models of clients that arrive are read. Without checkpoints (a strategy in a Flower app) they stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import floor, log
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_parts import LocalPart
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Sums
from fedstrata.core.options import Count, NonNegative, Rounds, in_rounds
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Arrived, Combiner
from fedstrata.core.steps import View
from fedstrata.core.storage.stored import Stored
from fedstrata.methods.combiners.client_models import model_of, move_to, vector, warn_of_size
from fedstrata.methods.last_epoch import LastEpoch

COMBINATIONS = 20_000
WIDTH = 2**14  # numbers of every model that are multiplied at a time, in double precision: they fit into a cache


@dataclass
class Kept:
    """A client's last models, newest first."""

    models: list[Stored]
    losses: list[float]
    chosen: int = 0


@dataclass
class Cache:
    """Models of all clients ever seen."""

    total: Tensor  # sum of the chosen ones
    clients: dict[int, Kept] = field(default_factory=dict)


@dataclass
class Fixed:
    """Clients for whom a model is chosen: how many, and the sum of their models."""

    count: int
    total: Tensor


@dataclass(frozen=True)
class FedCda(Combiner):
    """Of each client's last models, those that fit their data and lie close together are averaged."""

    paper: ClassVar[str] = "Wang et al., ICLR 2024"
    individual: ClassVar[bool] = True

    models: Count = 3  # kept of each client
    groups: Count = 3
    smoothness: NonNegative = 1.0  # L
    warmup: Rounds = 0.25  # rounds, or a share of them

    @property
    def plans_ahead(self) -> bool:
        """The warm-up may be a share of all rounds."""
        return isinstance(self.warmup, float)

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse reports that are no models of one round."""
        return None if plan.driver.side_by_side else "it averages models of clients that train side by side"

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read how well models fit."""
        return (LastEpoch().name,) if kind == "train" else ()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients tell how well their model fits in the end."""
        return (LastEpoch(),)

    def init(self, view: View) -> Cache:
        """Know nothing."""
        warn_of_size(view, "fedcda", self.models)
        return Cache(torch.zeros(view.space.P + view.space.Q, dtype=torch.float64))

    def combine(self, state: Cache, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Remember the new models, choose, and average."""
        here, reports = vector(model), arrived.each()
        fixed = Fixed(len(state.clients), state.total)
        for report in reports:
            old = state.clients.get(report.client, Kept([], []))
            if old.models:
                fixed = Fixed(fixed.count - 1, fixed.total - old.models[old.chosen].read())
            models, losses = old.models[: self.models - 1], old.losses[: self.models - 1]
            state.clients[report.client] = Kept(
                [Stored(model_of(report, here)), *models], [LastEpoch().read(report), *losses]
            )
        sums = arrived.sum(arrived.weights / arrived.weights.sum())
        clients, warming_up = [r.client for r in reports], view.round < in_rounds(self.warmup, view.rounds)
        groups = [clients] if warming_up else self.form_groups(view, clients)
        for group in groups:
            own = [state.clients[client] for client in group]
            if not warming_up:
                self.choose(own, fixed, here[: view.space.P])
            chosen = sum((kept.models[kept.chosen].read() for kept in own), torch.zeros_like(fixed.total))
            fixed = Fixed(fixed.count + len(own), fixed.total + chosen)
        state.total = fixed.total
        return sums if warming_up else move_to(state.total / fixed.count, here, sums, view)

    def form_groups(self, view: View, arrived: list[int]) -> list[list[int]]:
        """Deal the clients that arrived into groups."""
        largest = max(1, floor(log(COMBINATIONS) / log(self.models))) if self.models > 1 else len(arrived)
        groups = max(min(self.groups, len(arrived)), -(-len(arrived) // largest))
        if groups > self.groups:
            view.note("fallback", what="fedcda", used=f"{groups} groups", why="larger ones have too many combinations")
        return [group.tolist() for group in np.array_split(view.rng("combine").permutation(arrived), groups)]

    def choose(self, own: Sequence[Kept], fixed: Fixed, origin: Tensor) -> None:
        """Try every combination of a group's models. Distances do not depend on the origin; small numbers are exact."""
        n = fixed.count + len(own)
        gram, with_fixed, square = products([m.read() for kept in own for m in kept.models], fixed, origin)
        losses, start = np.concatenate([k.losses for k in own]), np.cumsum([0, *(len(k.losses) for k in own)])
        combos = np.array(list(product(*(range(len(k.losses)) for k in own))))  # newest first: of equals, they win
        at = combos + start[:-1]
        fit = losses[at].sum(1) / n
        squares = np.diag(gram)[at].sum(1) / n
        mean = (2 * with_fixed[at].sum(1) + gram[at[:, :, None], at[:, None, :]].sum((1, 2)) + square) / n**2
        best = combos[int(np.argmin(fit + self.smoothness / 2 * (squares - mean)))]
        for kept, chosen in zip(own, best.tolist(), strict=True):
            kept.chosen = chosen


def products(models: Sequence[Tensor], fixed: Fixed, origin: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the inner products of models, seen from an origin: with each other, with the fixed sum, of that sum."""
    gram, with_fixed, square = np.zeros((len(models), len(models))), np.zeros(len(models)), 0.0
    for start in range(0, len(origin), WIDTH):
        part = slice(start, min(start + WIDTH, len(origin)))
        here = origin[part].double()
        options = torch.stack([model[part] for model in models]).double() - here
        apart = fixed.total[part] - fixed.count * here
        gram += (options @ options.T).numpy()
        with_fixed += (options @ apart).numpy()
        square += float(apart @ apart)
    return gram, with_fixed, square
