"""What the server may know of its clients: only what its parts declared they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedstrata.errors import RequestError


@dataclass(frozen=True)
class Roster:
    """What the server knows of its clients. Fields a part did not declare in `needs` cannot be read."""

    clients: int
    classes: int
    holders: np.ndarray  # ids of clients with data
    key: np.ndarray  # seeded tie-break
    _known: dict[str, np.ndarray | None] = field(default_factory=dict)
    later: Callable[[int], Roster] | None = None  # where data move: what is known in a round

    def at(self, round: int) -> Roster:
        """Give what is known in a round."""
        return self if self.later is None else self.later(round)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client."""
        return self._get("sizes")

    @property
    def counts(self) -> np.ndarray:
        """Label counts of every client, [N, C]."""
        return self._get("counts")

    @property
    def speeds(self) -> np.ndarray:
        """Relative device capacity of every client."""
        return self._get("speeds")

    @property
    def setup_bytes(self) -> int:
        """What it cost the clients to tell: 4 bytes a label count, 8 a size or speed."""
        return sum(a.size * (4 if name == "counts" else 8) for name, a in self._known.items() if a is not None)

    def _get(self, name: str) -> np.ndarray:
        value = self._known.get(name)
        if value is None:
            raise RequestError(f'a part reads roster.{name} without declaring it: add "{name}" to its `needs`')
        return value
