"""How long a table takes on a CPU and on a GPU: by its own runs where there are some, else by its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import Wanted

DEVICES = ("cpu", "gpu")
Place = tuple[str, str]  # condition and row


@dataclass(frozen=True)
class Timing:
    """How long runs of a table keep one kind of device busy."""

    results: Results
    device: str

    @cached_property
    def measured(self) -> dict[Place, float]:
        """Seconds of a run, in the mean, where some were made; of those that shared the device, each its part."""
        found: dict[Place, list[float]] = {}
        for (condition, method, _), entry in self.results.runs.items():
            if entry["device"] == self.device:
                found.setdefault((condition, method), []).append(entry["costs"]["seconds"] / entry.get("jobs", 1))
        return {place: sum(own) / len(own) for place, own in found.items()}

    def minutes(self, runs: Iterable[Wanted]) -> float:
        """Return how long these runs take, one after another."""
        places = Counter((one.condition, one.method) for one in runs)
        return sum(number * self._seconds(place) for place, number in places.items()) / 60

    def _seconds(self, place: Place) -> float:
        return self.measured[place] if place in self.measured else self._slower * self._reckoned(place)

    @cached_property
    def _slower(self) -> float:
        """How much longer the runs that were made took than their work says."""
        reckoned = sum(map(self._reckoned, self.measured))
        return sum(self.measured.values()) / reckoned if reckoned else 1.0

    def _reckoned(self, place: Place) -> float:
        return self.results.table.work(*place).seconds(self.device)


UNITS = (("years", 365 * 24 * 60, 2), ("days", 24 * 60, 3), ("h", 60, 1.5), ("min", 1, 1))  # each from so many on


def in_words(minutes: float) -> str:
    """Write minutes as people say them."""
    for name, size, least in UNITS:
        if minutes >= least * size:
            return f"{minutes / size:.0f} {name}"
    return f"{60 * minutes:.0f} s"
