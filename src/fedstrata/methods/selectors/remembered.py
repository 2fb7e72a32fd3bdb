"""What selectors remember of clients: the last vector that each of them sent, whole or as a sketch.

A sketch adds the numbers of a vector up in a few cells, each with a random sign (Charikar et al., Finding Frequent
Items in Data Streams, ICALP 2002): a random projection that keeps lengths and angles on average, and whose matrix, one
cell and one sign a number, takes no more room than the vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedstrata.core.errors import RequestError
from fedstrata.core.steps import View

CHUNK = 8192  # numbers of each vector that are compared at a time
MEMORY = 4 * 2**30  # most bytes that are kept of all clients' updates
SAME = 1e-12  # what is nearer than rounding can tell counts as equal, so that ties are ties


@dataclass
class Remembered:
    """The last vector of every client that was seen."""

    ids: np.ndarray  # in the order in which they were first seen
    rows: np.ndarray  # [seen, numbers]

    @classmethod
    def nothing(cls, numbers: int) -> Remembered:
        """Return the memory before the first round."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, numbers), dtype=np.float32))

    def keep(self, vectors: dict[int, np.ndarray]) -> None:
        """Put new vectors in the place of old ones."""
        at = {client: row for row, client in enumerate(self.ids.tolist())}
        new = [client for client in vectors if client not in at]
        if new:
            self.ids = np.concatenate([self.ids, np.array(new, dtype=np.int64)])
            self.rows = np.concatenate([self.rows, np.stack([vectors[c] for c in new]).astype(np.float32)])
        for client in vectors.keys() & at.keys():
            self.rows[at[client]] = vectors[client]

    def of(self, clients: np.ndarray) -> np.ndarray:
        """Return the vectors of some clients; zeros for those never seen."""
        at = {client: row for row, client in enumerate(self.ids.tolist())}
        vectors = np.zeros((len(clients), self.rows.shape[1]), dtype=self.rows.dtype)
        here = [(i, at[c]) for i, c in enumerate(clients.tolist()) if c in at]
        if here:
            places, rows = np.array(here).T
            vectors[places] = self.rows[rows]
        return vectors


def check_memory(numbers: int, view: View) -> int:
    """Refuse to keep so many numbers of everybody where that could take too much room."""
    if (most := 4 * numbers * view.client_info.clients) > MEMORY:
        raise RequestError(
            f"method.selector would keep up to {most / 2**30:.1f} GB of updates, and is limited to "
            f"{MEMORY / 2**30:.0f} GB; set method.selector.sketch, such as 64, to keep so many numbers of each"
        )
    return numbers


def sketch(vectors: dict[int, Tensor], cells: int, view: View) -> dict[int, np.ndarray]:
    """Add the numbers of each vector up in so many cells, the same way in every round; with 0, leave them whole."""
    plain = {client: vector.detach().cpu().numpy() for client, vector in vectors.items()}
    if not cells or not plain:
        return plain
    drawn = view.rng("sketch", round=-1).integers(0, 2 * cells, len(next(iter(plain.values()))))
    cell, sign = drawn >> 1, 1.0 - 2.0 * (drawn & 1)
    return {client: np.bincount(cell, sign * vector, cells) for client, vector in plain.items()}


def refuse_beyond(limit: int, view: View, who: str, instead: str) -> None:
    """Refuse more clients than can be compared pair by pair."""
    if view.client_info.clients > limit:
        raise RequestError(
            f"{who} compares clients pair by pair, and is limited to {limit:,} of them; here are "
            f"{view.client_info.clients:,}. {instead}"
        )


# ---- distances ---------------------------------------------------------------------------------------------------


def angles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the angle between each row of one and each row of the other; 0 where one has no length."""
    products, first, second = _products(a, b)
    length = np.outer(np.sqrt(first), np.sqrt(second))
    cosine = np.where(length > 0, products / np.where(length > 0, length, 1.0), 1.0)
    rounded: np.ndarray = np.arccos(np.clip(np.round(cosine, 12), -1.0, 1.0))
    return rounded


def lengths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Euclidean distance between each row of one and each row of the other."""
    products, first, second = _products(a, b)
    both = first[:, None] + second
    square = both - 2 * products
    apart: np.ndarray = np.sqrt(np.where(square > SAME * both, square, 0.0))
    return apart


def blocks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the L1 distance between each row of one and each row of the other."""
    return np.stack([np.abs(b - row).sum(1, dtype=np.float64) for row in a])


def _products(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the products of all pairs, and of each row of either with itself.

    In double precision, without copying all numbers to it at once; rows that are compared with themselves take half.
    """
    total, first, second = np.zeros((len(a), len(b))), np.zeros(len(a)), np.zeros(len(b))
    for start in range(0, a.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        own = a[:, part].astype(np.float64)
        other = own if a is b else b[:, part].astype(np.float64)
        total += own @ other.T
        first += np.einsum("ij,ij->i", own, own)
        if a is not b:
            second += np.einsum("ij,ij->i", other, other)
    return total, first, first if a is b else second
