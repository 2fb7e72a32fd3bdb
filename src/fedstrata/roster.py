"""What the server may know of its clients: only what its parts declared they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
    stock: Callable[[], np.ndarray] | None = None  # label counts [N, C] where all clients live here; no message
    later: Callable[[int], Roster] | None = None  # where data move: what is known in a round

    def at(self, round: int) -> Roster:
        """Give what is known in a round."""
        return self if self.later is None else self.later(round)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of every client."""
        return self._get("sizes")

    @property
    def labels(self) -> np.ndarray:
        """Which labels each client holds, [N, C]."""
        return self._get("labels")

    @property
    def totals(self) -> np.ndarray:
        """How many samples of each label all clients hold together, [C]."""
        return self._get("totals")

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
        """What it cost the clients to tell: 4 bytes a label held or a label count, 8 a size or speed."""
        told = {name: a.size for name, a in self._known.items() if a is not None}
        if "labels" in told:
            told["labels"] = int(self.labels.sum())
        if "totals" in told:
            told["totals"] *= self.clients  # everybody's counts, though only their sum is read
        return sum(numbers * (4 if name in ("labels", "totals", "counts") else 8) for name, numbers in told.items())

    def behind_messages(self) -> Roster:
        """Give the same for clients that live elsewhere: nobody can answer in their place."""
        later = self.later
        return replace(self, stock=None, later=None if later is None else lambda round: later(round).behind_messages())

    def _get(self, name: str) -> np.ndarray:
        value = self._known.get(name)
        if value is None:
            raise RequestError(f'a part reads roster.{name} without declaring it: add "{name}" to its `needs`')
        return value
