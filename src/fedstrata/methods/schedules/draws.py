"""Random numbers one by one, drawn in blocks: a generator's call costs more than the number."""

from __future__ import annotations

import numpy as np

from fedstrata.core.rng import Rng

BLOCK = 1 << 14


class Draws:
    """Numbers from one stream."""

    def __init__(self, rng: Rng):
        self._rng = rng
        self._uniform: list[float] = []
        self._block = np.zeros(0)  # where they come from, in the order of use

    def uniform(self) -> float:
        """Return a number from [0, 1)."""
        if not self._uniform:
            self._draw()
        return self._uniform.pop()

    def uniforms(self, count: int) -> list[float]:
        """Return several, as one after another would be."""
        if count > len(self._uniform):
            return [self.uniform() for _ in range(count)]
        numbers = self._uniform[len(self._uniform) - count :]
        del self._uniform[len(self._uniform) - count :]
        return numbers[::-1]

    def ahead(self, most: int) -> np.ndarray:
        """Look at the numbers that come next, without using them; fewer where a block ends."""
        if not self._uniform:
            self._draw()
        used = len(self._block) - len(self._uniform)
        return self._block[used : used + most]

    def skip(self, count: int) -> None:
        """Use numbers that were looked at."""
        del self._uniform[len(self._uniform) - count :]

    def _draw(self) -> None:
        block = self._rng.random(BLOCK)
        self._uniform, self._block = block.tolist(), block[::-1]
