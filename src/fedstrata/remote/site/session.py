"""A run as one site takes part in it, from the request that begins it to the one that begins another."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from fedstrata.client.network import Network
from fedstrata.client.site_client import Site
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Tag
from fedstrata.data.federation import Federation
from fedstrata.privacy.identity import KeyDirectory
from fedstrata.privacy.noise import UpdateNoise
from fedstrata.privacy.sums.fixed_point import Encoding
from fedstrata.privacy.sums.member import SumMember
from fedstrata.remote.site.chain import ChainSite
from fedstrata.remote.site.running_task import RunningTask


@dataclass
class SiteSession:
    """One run, as this site takes part in it."""

    run: str
    client: int
    site: Site
    federation: Federation  # its own data, with the run's class indices
    network: Network
    space: ParameterSpace
    everybody: int  # sites that take part
    hides_label_counts: bool = False  # whether it tells nothing by label
    noise: UpdateNoise | None = None  # on what leaves it
    encoding: Encoding | None = None  # of what leaves it, where updates are masked
    clip: float | None = None  # the same: the length that all sites keep to
    hides_figures: bool = False  # the same: whether losses and lengths of updates are
    key_directory: KeyDirectory | None = None  # the same
    most_spent: float = inf  # of a privacy budget
    step: Tag = (0, 0)  # round and step of the task at hand
    given: bool = False  # whether the ledger has it
    leaving: np.ndarray | None = None  # what was trained and waits for its sum, flat
    member: SumMember | None = None
    hops: ChainSite | None = None  # where a chain's models pass the server sealed
    running: RunningTask | None = None  # under way: it waits for others, and leaves under this run's privacy alone

    @property
    def protected(self) -> bool:
        """Whether updates leave under masks or with noise: then once for each step."""
        return self.key_directory is not None or self.noise is not None

    def end(self) -> None:
        """Let go of a task that still waits for others: no other run, and no other task, goes on with it."""
        running, self.running = self.running, None
        if running is not None:
            running.end()
