"""Fraboni et al., Clustered Sampling: Low-Variance and Improved Representativity for Clients Selection, ICML 2021.

Urns of mass 1, one draw from each. A client with the share p of all samples has the mass m p, in one urn or in several,
so that the plain mean over draws is unbiased. Masses are whole numbers: a client with n_k of n samples has m n_k, and
an urn holds n. Nothing is rounded, nothing drifts.

Urns lie on a line, one after another, n numbers each; a draw from an urn is a place on its part of the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstrata.core.rng import Rng
from fedstrata.core.steps import Ask


@dataclass(frozen=True)
class Urns:
    """Clients along a line, each with its mass; every `capacity` of mass is an urn."""

    clients: np.ndarray
    masses: np.ndarray  # whole numbers; together `count` times `capacity`
    capacity: int
    count: int

    def draw(self, rng: Rng) -> list[Ask]:
        """Draw from every urn; who is drawn from several is asked once, and counts as often."""
        places = np.arange(self.count) * self.capacity + rng.integers(0, self.capacity, self.count)
        drawn = self.clients[np.searchsorted(np.cumsum(self.masses), places, side="right")]
        return count_draws(drawn)

    def shares(self, clients: int) -> np.ndarray:
        """Return each client's share of each urn, [urns, clients]."""
        stops = np.cumsum(self.masses)
        edges = np.arange(self.count + 1) * self.capacity
        inside = np.minimum(stops, edges[1:, None]) - np.maximum(stops - self.masses, edges[:-1, None])
        shares = np.zeros((self.count, clients))
        for client, share in zip(self.clients.tolist(), np.maximum(inside, 0).T / self.capacity, strict=True):
            shares[:, client] += share
        return shares


def count_draws(drawn: np.ndarray) -> list[Ask]:
    """Ask each client once, and let it count as often as it was drawn."""
    ids, times = np.unique(drawn, return_counts=True)
    return [Ask(int(i), weight=float(n)) for i, n in zip(ids, times, strict=True)]


def everyone(clients: np.ndarray, sizes: np.ndarray) -> list[Ask]:
    """Ask all clients, each with the weight that draws from urns would give it on average."""
    return [Ask(int(i), weight=float(len(clients) * n / sizes.sum())) for i, n in zip(clients, sizes, strict=True)]


def by_size(clients: np.ndarray, sizes: np.ndarray, count: int, key: np.ndarray) -> Urns:
    """Fill urns with clients from large to small (Algorithm 1); ties go by key."""
    large_first = np.lexsort((key, -sizes.astype(np.int64)))
    sizes = sizes[large_first].astype(np.int64)
    return Urns(clients[large_first], count * sizes, int(sizes.sum()), count)


def by_group(groups: Sequence[np.ndarray], clients: np.ndarray, sizes: np.ndarray, count: int, rng: Rng) -> Urns:
    """Let the heaviest groups be urns, and pour the others into the space that is left (Algorithm 2).

    Groups hold positions in `clients`, and come in the order that breaks ties. One that is heavier than an urn fills as
    many as it can by itself; what is left over of it is a group like any other. Of two groups with the same mass the
    larger is kept together.
    """
    masses, capacity = count * sizes.astype(np.int64), int(sizes.sum())
    line: list[tuple[np.ndarray, np.ndarray]] = []
    rest: list[tuple[np.ndarray, np.ndarray]] = []
    for group in groups:
        whole = int(masses[group].sum()) // capacity * capacity
        ours, theirs = _cut(group, masses[group], whole)
        line.append(ours)
        rest.append(theirs)
    left = count - sum(int(mass.sum()) for _, mass in line) // capacity
    heavy_first = sorted(range(len(rest)), key=lambda i: (-int(rest[i][1].sum()), -len(rest[i][0]), i))
    kept, poured = heavy_first[:left][::-1], heavy_first[left:][::-1]
    shuffled = [rng.permutation(len(rest[i][0])) for i in poured]
    fill = _join([(rest[i][0][order], rest[i][1][order]) for i, order in zip(poured, shuffled, strict=True)])
    for i in kept:
        now, fill = _cut(*fill, capacity - int(rest[i][1].sum()))
        line += [rest[i], now]
    positions, poured_masses = _join(line)
    return Urns(clients[positions], poured_masses, capacity, count)


Content = tuple[np.ndarray, np.ndarray]  # positions and their masses


def _cut(positions: np.ndarray, masses: np.ndarray, mass: int) -> tuple[Content, Content]:
    """Cut a line of clients where so much mass lies to the left; a client may lie on both sides."""
    stops = np.cumsum(masses)
    left = np.clip(mass - (stops - masses), 0, masses)
    right = masses - left
    return (positions[left > 0], left[left > 0]), (positions[right > 0], right[right > 0])


def _join(parts: Sequence[Content]) -> Content:
    empty = np.zeros(0, dtype=np.int64)
    return np.concatenate([empty, *(p for p, _ in parts)]), np.concatenate([empty, *(m for _, m in parts)])
