"""Stratify (arXiv 2504.13462), section V-F and Table V: one of the domains is concentrated on a single client.

Client 0 holds the whole domain and nothing else; the samples of all others are dealt out evenly among the other
clients, each of which gets every domain and label in proportion. The paper does not name the domain; without a name it
is the largest, which is the hardest case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Rng
from fedstrata.data.partitions.base import Deal, Labelled, Partition
from fedstrata.data.partitions.dealing import deal_out, domains_of, evenly, interleave, list_names


@dataclass(frozen=True)
class ConcentratedDomain(Partition):
    """One domain lies with one client, all others are spread over the other clients."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"
    needs_groups: ClassVar[bool] = True

    domain: str | None = None  # which one; None: the largest

    def split(self, train: Labelled, test: Labelled, clients: int, rng: Rng) -> Deal:
        """Give client 0 the domain, and the others equal shares of everything else."""
        names, kinds, test_kinds, notes = domains_of(train, test)
        if clients < 2 or len(names) < 2:
            raise RequestError(
                f"concentrated-domain needs two clients and two domains; data.clients = {clients}, domains: "
                f"{list_names(names, 10)}"
            )
        texts = [str(name) for name in names.tolist()]
        if self.domain is not None and self.domain not in texts:
            raise RequestError(f'data.partition.domain = "{self.domain}"; allowed: {list_names(names, 10)}')
        apart = int(np.bincount(kinds).argmax()) if self.domain is None else texts.index(self.domain)
        owns = np.ones((clients, len(names)), dtype=bool)
        owns[0] = np.arange(len(names)) == apart
        owns[1:, apart] = False
        dealt = []
        for samples, own in ((train, kinds), (test, test_kinds)):
            sizes = np.bincount(own[own >= 0], minlength=len(names))
            dealt.append(deal_out(interleave(own, samples.labels, rng), evenly(sizes, owns)))
        if self.domain is None:
            notes.append(f"client 0 holds domain {texts[apart]}, the largest; data.partition.domain names another")
        return Deal(dealt[0], dealt[1], notes)
