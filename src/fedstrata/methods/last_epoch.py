"""How well a client's model fits its data in the end: the mean loss over the last epoch, not over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedstrata.core.client_context import Batch, Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.messages import Report, Slot, Tensors


@dataclass(frozen=True)
class LastEpoch(Correction):
    """Tells the mean loss of the samples of the last epoch, each as it was met."""

    @property
    def name(self) -> str:
        """Under which it is told."""
        return "last_epoch_loss"

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the sum of losses, of how many, and the steps that come before the last epoch."""
        return {"sum": Slot(), "seen": Slot(), "before": Slot()}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Start from nothing."""
        own["sum"].zero_()
        own["seen"].zero_()
        own["before"].fill_(context.steps - context.last_steps)

    def observe(self, own: Tensors, buf: Buffers, batch: Batch) -> None:
        """Add up a batch of the last epoch, without its padding."""
        counts = (batch.weight > 0) & (own["before"] <= 0)
        own["sum"].add_(torch.where(counts, batch.each, 0.0).sum())
        own["seen"].add_(counts.sum())
        own["before"].sub_(1)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell the mean."""
        return Done(metrics={self.name: own["sum"] / own["seen"].clamp(min=1)})

    def read(self, report: Report) -> float:
        """Find it in a report."""
        return float(report.metrics[self.name])  # type: ignore[arg-type]
