"""Every client behind bytes, in one process: what real sites do, without a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedstrata.client.all_reduce import in_lockstep
from fedstrata.client.site_client import Site
from fedstrata.client.trainer import Lane
from fedstrata.core.client_parts import Local
from fedstrata.core.flat_model import Space
from fedstrata.core.messages import Report, Sums, Tag, Task, Tensors, weighted_sum
from fedstrata.core.server_parts import Step
from fedstrata.core.wire import pack_task, unpack_report
from fedstrata.data.federation import Federation


class Sites:
    """An engine that shares nothing with its clients but messages; each client has its own lane and data."""

    device = "cpu"
    joins = False

    def __init__(self, local: Local, federation: Federation):
        self._sites: dict[int, Site] = {}
        self._local, self._federation = local, federation
        self._space = Space.of(local.build(), local.head)
        self._statistics: Tensor | None = None
        self._reports: dict[int, Report] = {}

    def _site(self, client: int, round: int) -> Site:
        now = self._federation.at(round)
        if client not in self._sites or self._federation.moves is not None:
            own, train = now.client(client), now.train
            x, y = train.x[torch.from_numpy(own.rows)], train.y[torch.from_numpy(own.rows)]
            here = replace(own, rows=np.arange(own.samples))
            lane = Lane(self._local, x, y, own.samples, fastest=own.speed)
            site = self._sites.setdefault(client, Site(here, lane))
            site.client, site.lane = here, lane  # data may have moved; what the site keeps stays
        return self._sites[client]

    def ask(self, step: Step, tasks: Sequence[Task]) -> list[Report]:
        """Send each task as bytes."""
        visits = [partial(self._site(t.client, t.round).answer, pack_task(t)) for t in tasks]
        self._statistics = None
        if step.together is None:
            answers = [unpack_report(visit()) for visit in visits]
        else:
            messages, place = in_lockstep(visits, step.together)
            answers, self._statistics = list(map(unpack_report, messages)), place.statistics(self._space)
        self._reports = {r.client: r for r in answers}
        return [r.open() for r in answers]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        """Sum what the last step's clients sent."""
        sums = weighted_sum(self._reports, weights)
        met = {} if self._statistics is None else {"statistics": self._statistics}
        return replace(sums, total={**sums.total, **met})

    def each(self) -> Mapping[int, Report]:
        """Give the last step's reports whole."""
        return self._reports

    def beside(self) -> tuple[int, int]:
        """Give nothing: updates come as they are."""
        return 0, 0

    def settle(self, accepted: Collection[int], tag: Tag) -> None:
        """Nothing to do: the next task tells the client what was accepted."""
        self._reports = {}

    def keeps(self) -> Mapping[int, tuple[Tag, Tensors]]:
        """Give nothing: client state stays at the client."""
        return {}

    def restore(self, keeps: Mapping[int, tuple[Tag, Tensors]]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to end."""
