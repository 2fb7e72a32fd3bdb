"""How long a campaign may go on: a long one can be ended without losing what it found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TypeVar

Case = TypeVar("Case")
_until = [float("inf")]


def end_after(minutes: float) -> None:
    """Begin no case after so many minutes."""
    _until[0] = monotonic() + 60 * minutes


def in_time(cases: Iterable[Case]) -> Iterator[Case]:
    """Give cases for as long as there is time."""
    for case in cases:
        if monotonic() > _until[0]:
            return
        yield case


def seconds_left() -> float:
    """Return how long it is until then."""
    return _until[0] - monotonic()
