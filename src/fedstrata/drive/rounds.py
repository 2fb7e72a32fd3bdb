"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedstrata.serverside import Choice, Driver, Step, Steps, View, chosen


@dataclass(frozen=True)
class Rounds(Driver):
    """All selected clients train side by side from the same model, once a round."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def round(self, state: None, view: View, select: Callable[[], Choice]) -> Steps:
        """Ask everybody at once."""
        asks = yield from chosen(select())
        yield Step(tuple(asks))
