"""Time at real sites is what the clock says: `[system]` decides whom the server waits for, not how long things take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.core.messages import Report
from fedstrata.core.steps import Step, View
from fedstrata.data.devices import Devices


@dataclass(frozen=True)
class Observed(Devices):
    """Devices whose speeds are real: every report says how long its site worked for it."""

    def time_reports(self, view: View, step: Step, size: int, reports: Sequence[Report]) -> list[Report]:
        """Leave what was measured."""
        return list(reports)
