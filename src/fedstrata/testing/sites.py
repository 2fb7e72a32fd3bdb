"""Every client behind bytes, in one process: what real sites do, without a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedstrata.client.all_reduce import run_in_lockstep
from fedstrata.client.site_client import Site
from fedstrata.client.trainer import Trainer
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.engine import AllReduceSum
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, weighted_sum
from fedstrata.core.steps import Step
from fedstrata.core.wire import pack_task, unpack_report
from fedstrata.data.federation import Federation


class WireEngine:
    """An engine that shares nothing with its clients but messages; each client has its own worker and data."""

    device = "cpu"
    can_fuse = False
    all_reduce_sum: AllReduceSum | None = None

    def __init__(self, local: ClientPlan, federation: Federation):
        self._sites: dict[int, Site] = {}
        self._local, self._federation = local, federation
        self._space = ParameterSpace.of(local.build(), local.head)
        self._statistics: Tensor | None = None
        self._reports: dict[int, Report] = {}

    def _site(self, client: int, round: int) -> Site:
        now = self._federation.at(round)
        if client not in self._sites or self._federation.moves is not None:
            own, train = now.client(client), now.train
            x, y = train.x[torch.from_numpy(own.rows)], train.y[torch.from_numpy(own.rows)]
            here = replace(own, rows=np.arange(own.samples))
            trainer = Trainer(self._local, x, y, own.samples, fastest=own.speed)
            site = self._sites.setdefault(client, Site(here, trainer))
            site.client, site.trainer = here, trainer  # data may have moved; what the site keeps stays
        return self._sites[client]

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Send each task as bytes."""
        client_updates = [partial(self._site(t.client, t.round).answer, pack_task(t)) for t in tasks]
        self._statistics = None
        if step.together is None:
            answers = [unpack_report(context()) for context in client_updates]
        else:
            messages, place = run_in_lockstep(client_updates, step.together)
            answers, self._statistics = list(map(unpack_report, messages)), place.statistics(self._space)
        self._reports = {r.client: r for r in answers}
        return [r.open() for r in answers]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent."""
        sums = weighted_sum(self._reports, weights)
        met = {} if self._statistics is None else {"statistics": self._statistics}
        return replace(sums, total={**sums.total, **met})

    def each(self) -> Mapping[int, Report]:
        """Return the last step's reports whole."""
        return self._reports

    def overhead_bytes(self) -> tuple[int, int]:
        """Return nothing: updates come as they are."""
        return 0, 0

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Nothing to do: the next task tells the client what was accepted."""
        self._reports = {}

    def client_states(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Return nothing: client state stays at the client."""
        return {}

    def restore(self, client_states: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to end."""
