"""Devices and network, as a plan asks for them: who can be asked, whose report arrives, how long it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedstrata.core.messages import Report
from fedstrata.core.server_parts import ServerSide
from fedstrata.core.steps import Step, View


class System(ServerSide):
    """Devices and network: who is available, whose report arrives."""

    @property
    def reliable(self) -> bool:
        """Whether steps are run as asked and every report arrives."""
        return False

    def find_available(self, view: View) -> np.ndarray:
        """Return the eligible ids that can be asked this round."""
        return view.eligible

    def adapt(self, view: View, turn: int, step: Step) -> Step:
        """Change what is asked before it is sent: a slow client may be asked for less work."""
        return step

    def count_to_ask(self, k: int) -> int:
        """Return how many clients to ask where k are wanted."""
        return k

    def count_to_wait_for(self, asked: int, needed: int) -> int:
        """Return how many reports of a training step end the wait; `needed` clients are wanted in a round."""
        return asked

    def time_reports(self, view: View, step: Step, size: int, reports: Sequence[Report]) -> Sequence[Report]:
        """Write on every report how many seconds it took; `size` is the bytes of the model's message."""
        return reports

    def find_lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Return the clients whose report is lost after they did the work; `turn` counts steps of this kind."""
        return set()

    def time_step(self, view: View, step: Step, size: int, reports: Sequence[Report], lost: set[int]) -> float:
        """Return the seconds that the step took on the virtual clock."""
        return max((r.seconds for r in reports if r.client not in lost), default=0.0)
