"""The server side of a plan, an interface a file: schedules, drivers, selectors, combiners, server steps."""

from __future__ import annotations

from fedstrata.core.combiner import Arrived, Combiner
from fedstrata.core.driver import Driver, Schedule
from fedstrata.core.selector import Selector
from fedstrata.core.server_side import ServerSide
from fedstrata.core.server_step import ServerStep

__all__ = ["Arrived", "Combiner", "Driver", "Schedule", "Selector", "ServerSide", "ServerStep"]
