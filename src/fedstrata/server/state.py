"""All that changes at the server during a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedstrata.core.contract import expect_state
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.plan import Plan
from fedstrata.core.steps import View
from fedstrata.server.accounting import ParticipationLog, Traffic
from fedstrata.server.best import Best
from fedstrata.server.stopping import Progress


@dataclass
class State:
    """The server, whole: with the engine's client state, this is the checkpoint. No generator state exists."""

    model: FlatModel
    driver: Any  # what `init` of each part made
    selector: Any
    combiner: Any
    server_steps: dict[str, Any]
    participation_log: ParticipationLog
    round: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    clock: float = 0.0  # virtual seconds
    progress: Progress = field(default_factory=Progress)
    best: Best = field(default_factory=Best)
    stopped: str | None = None

    @classmethod
    def first(cls, plan: Plan, view: View, model: FlatModel) -> State:
        """Return the state before the first round."""
        server_steps = {name: expect_state(part, part.init(view, model)) for name, part in plan.server_steps.items()}
        driver, selector, combiner = (
            expect_state(part, part.init(view)) for part in (plan.driver, plan.selector, plan.combiner)
        )
        return cls(model, driver, selector, combiner, server_steps, ParticipationLog.of(view.client_info.clients))

    @property
    def participation(self) -> np.ndarray:
        """How often each client took part."""
        return self.participation_log.participation
